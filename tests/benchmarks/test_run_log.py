"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.run_log_probes import PROBES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which imports what stands beside it as a script does."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("run_log")


QUIET = {"rss_bytes": 5e7, "rss_early": 5e7, "rss_late": 5e7, "rollouts_per_s": 1.0, "idle_ms": 1.0, "loaded_ms": 4.0}
"""What probes might find that say nothing outside of a process of their own."""


def test_every_figure_comes_from_a_probe_and_what_a_resume_reads_is_counted(
    run_log: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def found(_: object, probe: str, directory: Path, size: int, count: int) -> dict[str, float]:
        asked.append(probe)
        return PROBES[probe](directory, size, count) if probe in ("write_rows", "write_run", "resume") else QUIET

    monkeypatch.setattr(run_log.Processes, "fresh", found)
    monkeypatch.setattr(run_log, "QUICK", run_log.Plan(1, 40, 10, 60, 40, 4))
    figures = run_log.run(True, tmp_path)
    assert set(asked) == set(PROBES)
    assert run_log.WANTED.keys() == figures.keys()
    assert figures["driver_stall_ms_512"] == 3.0, "beyond that of an idle loop"
    said = capsys.readouterr().out
    read = re.search(r"resuming 40 finished rollouts .* ([0-9.]+) bytes a rollout", said)
    assert read
    assert float(read[1]) >= 64, "an index frame of each is read, and counted"
    assert "4 end at once, server: longest stall 4.0 ms, of an idle loop 1.0 ms" in said
