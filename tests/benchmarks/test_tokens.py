"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tokens, tokens_rollouts
from benchmarks.tokens import KINDS, USUAL, Plan
from benchmarks.tokens_probes import PROBES, window_ratio

SMALL = Plan(processes=1, calls=24, samples=4, digest_tokens=1000, turns=4, rollouts=3)


def test_every_figure_comes_from_probes_that_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def in_this_process(_: object, probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
        asked.append(probe)
        return PROBES[probe](directory, size, count)

    monkeypatch.setattr(tokens.Processes, "fresh", in_this_process)
    monkeypatch.setattr(tokens, "QUICK", SMALL)
    figures = tokens.run(True, tmp_path)
    assert set(asked) == set(PROBES)
    assert tokens.WANTED.keys() <= figures.keys()
    assert figures["append_bytes_4000_over_10"] == pytest.approx(1, abs=0.01)
    assert 4 < figures["disk_bytes_per_token"] < 40
    assert figures["disk_bytes_per_token_4_over_1"] == pytest.approx(1, abs=0.25)
    assert figures["build_bytes_per_token_any"] >= figures["build_bytes_per_token"]
    said = capsys.readouterr().out
    assert "2000 tokens in 4 turns: freeze" in said
    assert "8000 tokens in 16 turns: freeze" in said


def test_the_kinds_are_those_that_can_be_measured() -> None:
    assert set(KINDS) == set(tokens_rollouts.KINDS)
    assert tokens_rollouts.USUAL.name == USUAL


def test_a_probe_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = SMALL.measured.fresh("digest", tmp_path, 1000, 2)
    assert found["bytes"] == 8009
    assert 0 < found["sha256_s"] < 1e9


def test_rollouts_that_were_not_built_whole_give_no_figures(tmp_path: Path) -> None:
    PROBES["write@10-32"](tmp_path, 4, 2)
    path = tmp_path / "k10-32-t4-1.tokens.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    record: dict[str, Any] = json.loads(first)
    record["generation_token_ids"][0] += 1
    path.write_bytes(json.dumps(record).encode() + b"\n" + b"".join(others))
    with pytest.raises(SystemExit, match="k10-32-t4-1 was not built whole"):
        PROBES["build@10-32"](tmp_path, 4, 2)


def test_lost_parents_give_no_figures(tmp_path: Path) -> None:
    PROBES["write@10-32"](tmp_path, 3, 1)
    with pytest.raises(SystemExit, match="k10-32-t4-0: the parent was not resolved"):
        PROBES["cold"](tmp_path, 4, 2)


def test_a_ratio_of_windows_is_not_moved_by_a_burst_of_other_work() -> None:
    late, early = [3.0] * 60, [2.0] * 60
    late[10:25] = [90.0] * 15
    assert window_ratio({"append_long_us": late, "append_short_us": early}, "append") == 1.5
    assert window_ratio({"append_long_us": [4.0, 4.0], "append_short_us": [2.0, 1.0]}, "append") == 3.0
