"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.processes import cpu_by_process, spent
from benchmarks.scale_handoff import buffers_of, outside, store_mappings
from benchmarks.stalls import Stalls

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"whole": (30, 8), "workers": (6, 1), "handoff": (2, 64)}


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which imports what stands beside it as a script does."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("scale")


def probe(name: str, directory: Path, size: int, count: int) -> dict[str, float]:
    """Run one probe as the benchmark does, in a process of its own."""
    command = [sys.executable, str(BENCHMARKS / "scale.py"), "--probe", name, str(directory), str(size), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_every_figure_comes_from_probes_that_run(
    scale: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def tiny(_: object, name: str, directory: Path, *__: int) -> dict[str, float]:
        asked.append(name)
        if name == "captures":  # counted in the tests of what counts them
            return {"calls": 64.0, "puts": 7.0, "calls_per_s": 100.0}
        return probe(name, directory, *SIZES[name])

    monkeypatch.setattr(scale.Processes, "fresh", tiny)
    monkeypatch.setattr(scale, "QUICK", scale.Plan(rollouts=30, at_once=8, busy_rounds=1, batch=2, tokens=64))
    figures = scale.run(True, tmp_path)
    assert set(asked) == {"whole", "workers", "handoff", "captures"}
    assert scale.WANTED.keys() <= figures.keys()
    assert figures["handoff_copied_mib"] == 0
    assert all(figures[name] > 0 for name in ("driver_cpu_over_noop", "two_workers_over_bare", "rollouts_per_s"))
    said = capsys.readouterr().out
    for part in ("MeasuredCollector", "JoinerHost", "RolloutWorkerHost", "InstantModelServer", "raylet", "gcs_server"):
        assert f"{part}: " in said, "what each process costs is printed"


def test_bytes_outside_the_store_are_counted_and_verdicts_of_the_loop_are_not() -> None:
    table = pa.table({"token_ids": pa.array([[1, 2], [3]], pa.list_(pa.uint32())), "reward": pa.array([1.0, 2.0])})
    found = list(buffers_of(table))
    assert sum(size for _, size in found) == 3 * 4 + 3 * 4, "three ids, three offsets"
    total, out = outside(iter(found), [])
    assert total == out == 24
    first, size = found[0]
    assert outside(iter(found), [(first, first + size)]) == (24, 24 - size)
    assert outside(iter(found), [(first, first + size - 1)]) == (24, 24), "a buffer that sticks out is outside"
    assert store_mappings() == [], "this process has no object store"


def test_processor_time_is_told_apart_by_what_processes_do() -> None:
    program = "import sys\nsum(range(10**7))\nprint('done', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", program]
    before = cpu_by_process(os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        after = cpu_by_process(os.getpid())
        assert child.stdin is not None
        child.stdin.close()
    assert child.pid in after
    assert child.pid not in before
    name, seconds = after[child.pid]
    assert name.startswith("python")
    assert seconds > 0
    assert spent(before, {child.pid: ("ray::Host", 1.5), 1: ("ray::Host", 0.5)})["ray::Host"] == 2.0
    assert spent({7: ("a", 1.0)}, {7: ("a", 1.25)}) == {"a": 0.25}


async def test_work_of_the_loop_is_told_from_waiting_for_a_processor() -> None:
    async with Stalls(0.001) as stalls:
        await asyncio.sleep(0.005)
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.005)
        threading.Event().wait(0.2)  # stands still, and does nothing
        await asyncio.sleep(0.005)
    assert stalls.busiest_ms >= 50
    assert stalls.longest_ms >= 190
    assert stalls.busiest_ms < stalls.longest_ms
