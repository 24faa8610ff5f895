"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.join_probes import PROBES, even_rollout, growing_rollout

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which imports what stands beside it as a script does."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("join")


def test_every_figure_comes_from_probes_that_run(
    join: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def in_this_process(_: object, probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
        asked.append(probe)
        return PROBES[probe](directory, size, min(count, 2))

    monkeypatch.setattr(join.Processes, "fresh", in_this_process)
    figures = join.run(True, tmp_path)
    assert set(asked) == set(PROBES)
    assert join.WANTED.keys() <= figures.keys()
    assert all(value > 0 for value in figures.values())
    assert 0.5 < figures["growing_bytes_ratio"] <= 1.2
    said = capsys.readouterr().out
    assert "bytes of capture" in said
    assert "of distinct content" in said


def test_its_rollouts_are_of_the_size_that_the_figures_are_about() -> None:
    even = even_rollout(10)
    assert 7_500 <= len(even.data) / 10 <= 9_000, "8 KB a call"
    few, many = len(growing_rollout(25).data), len(growing_rollout(50).data)
    assert 3.5 < many / few < 4.5, "each call sends the whole history"


def test_what_it_measures_is_a_whole_record() -> None:
    line = even_rollout(3).evidence_line()
    for field in (b"ng_model_call_capture", b"ng_trajectory", b"ng_perf", b'"turn_no":3'):
        assert field in line
    assert b"_unmatched" not in line
