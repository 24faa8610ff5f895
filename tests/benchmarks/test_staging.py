"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import staging
from benchmarks.measuring import verdict
from benchmarks.staging import Plan
from benchmarks.staging_probes import PROBES

SMALL = Plan(
    processes=1,
    tokens=1000,
    rounds=2,
    callers=8,
    calls=24,
    waiting_tokens=20_000,
    stored=48,
    attachment_mib=1,
    row_tokens=2000,
)


def test_every_figure_comes_from_probes_that_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def in_this_process(_: object, probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
        asked.append(probe)
        return PROBES[probe](directory, size, count)

    monkeypatch.setattr(staging.Processes, "fresh", in_this_process)
    monkeypatch.setattr(staging, "QUICK", SMALL)
    figures = staging.run(True, tmp_path)
    assert set(asked) == set(PROBES)
    assert staging.WANTED.keys() == figures.keys()
    assert figures["stage_mean_batch_64"] >= 1
    assert 2 <= figures["fetch_requests"] <= 3
    assert figures["fetch_kib"] < 512
    said = capsys.readouterr().out
    assert "8 callers, 2000 tokens a call" in said
    assert "an attachment of 1 MiB" in said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fetch_requests", 3.0, "fetch_requests: 3 (wanted: 3 or less)"),
        ("fetch_requests", 4.0, "fetch_requests: 4 (wanted: 3 or less, MISSED)"),
        ("stage_over_pyarrow_64", 0.5, "stage_over_pyarrow_64: 0.5 (wanted: 0.6 or more, MISSED)"),
    ],
)
def test_a_figure_that_was_not_reached_is_said_to_be_missed(name: str, value: float, said: str) -> None:
    assert verdict(name, value, staging.WANTED) == said
