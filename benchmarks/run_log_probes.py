"""The measurements of the benchmark ``run_log``, each in a process of its own, through the code that collectors run."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import orjson

from benchmarks.measuring import memory_bytes
from benchmarks.stalls import Stalls
from gym_ray.evidence.run_result import RunResult
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.model_server.serving import tune_collector
from gym_ray.rollouts.collection import Collection, CollectionSettings
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, Placement, ReplyHandle
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.frames import Frame, FrameKind
from gym_ray.rollouts.run_files.ledger_log import rollout_digest
from gym_ray.rollouts.run_files.run_index import finished_frame
from gym_ray.rollouts.run_files.run_log import written_line
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.rollouts.session import RunPlan, RunSession

_RECORD_PADDING = "The answer is B. " * 50
_ADMITTED_TOGETHER, _BETWEEN_ADMISSIONS_S = 8, 0.02
_ROW_PADDING = "Which of these is a prime number? " * 20


def plan_in(directory: Path, *, at_once: int | None = None) -> RunPlan:
    settings = CollectionSettings(num_samples_in_parallel=at_once, max_resident_rollout_tasks=at_once and 2 * at_once)
    return RunPlan(
        RunPaths.of(directory / "out.jsonl"), directory / "in.jsonl", RowOptions(), settings, None, resume=True
    )


def write_rows(directory: Path, rows: int, padding: str) -> RunPaths:
    """Begin a run of so many rows."""
    directory.mkdir(exist_ok=True)
    plan = plan_in(directory)
    with plan.source.open("w") as out:
        for number in range(rows):
            row = {"responses_create_params": {"input": f"{number}: {padding}"}, "agent_ref": {"name": "a"}}
            out.write(json.dumps(row) + "\n")
    with RunLock(plan.paths) as lock:
        begin_run(lock, plan.source, plan.options)
    return plan.paths


def probe_write_rows(directory: Path, rows: int, _count: int) -> dict[str, float]:
    """Leave a run of which nothing has started."""
    write_rows(directory, rows, "?")
    return {}


def probe_write_run(directory: Path, finished: int, _count: int) -> dict[str, float]:
    """Leave a run in which every rollout has ended: rows, records, and the frames that a collector writes."""
    paths = write_rows(directory, finished, _ROW_PADDING)
    with paths.output.open("wb") as main, paths.ledger.open("ab") as ledger, paths.index.open("ab") as index:
        offset = 0
        for ordinal in range(finished):
            record = {"reward": 1.0, "text": _RECORD_PADDING, "_ng_task_index": ordinal, "_ng_rollout_index": 0}
            line = orjson.dumps(record)
            main.write(line + b"\n")
            digest, now_us = rollout_digest(f"{ordinal}-0"), time.time_ns() // 1000
            ledger.write(Frame(FrameKind.STARTED, ordinal, 0, digest, now_us).encode())
            index.write(finished_frame(ordinal, 0, written_line("main", offset, line)).encode())
            offset += len(line) + 1
    return {"main_bytes": float(offset), "materialised_bytes": float(paths.materialised.stat().st_size)}


def _read_so_far() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def probe_resume(directory: Path, finished: int, _count: int) -> dict[str, float]:
    """Take up a run in which everything has ended."""
    session = RunSession(plan_in(directory))
    before, begun = _read_so_far(), time.perf_counter()
    start = session.begin()
    collection = session.collection(InstantPort(1))
    took_s, read = time.perf_counter() - begun, _read_so_far() - before
    if start.done != finished or collection.progress().done != finished:
        raise RuntimeError(f"{start} after {finished} finished rollouts")
    session.close()
    begun = time.perf_counter()
    with session.plan.paths.output.open("rb") as lines:
        for line in lines:
            orjson.loads(line)
    return {"read_bytes": float(read), "resume_s": took_s, "whole_s": time.perf_counter() - begun}


def probe_hold_rows(directory: Path, rows: int, _count: int) -> dict[str, float]:
    """Hold everything that a collector holds of a run that is about to start."""
    session = RunSession(plan_in(directory))
    session.begin()
    collection = session.collection(InstantPort(1))
    if collection.progress().pending != rows:
        raise RuntimeError(f"{collection.progress()} of {rows} rows")
    gc.collect()
    return {"rss_bytes": float(memory_bytes("VmRSS"))}


class InstantPort:
    """Workers and joiners that cost nothing; every ``at_once`` runs end in the same moment."""

    def __init__(self, at_once: int) -> None:
        self._at_once, self._running, self._end = at_once, 0, asyncio.Event()
        summary = RolloutSummary("0-0", "a", "0", 1.0, False, None, 10, 1000, 200, 0, 1200, 0, 900.0, 1000.0, ())
        self._outcome = pickle.dumps(JoinOutcome(Written("main", 0, 1000, bytes(16)), summary))

    @property
    def capacity(self) -> int:
        """Runs at once."""
        return self._at_once

    def placements(self) -> Sequence[Placement]:
        """Return nothing: no run has a place."""
        return ()

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Nothing to clear."""

    async def run(self, job: AttemptJob) -> ReplyHandle | Lost:
        """End together with the others."""
        end = self._end
        self._running += 1
        if self._running == self._at_once:
            self._running, self._end = 0, asyncio.Event()
            end.set()
        await end.wait()
        return ReplyHandle(job.rollout_id)

    async def join(self, *_: AttemptJob | ReplyHandle | RunResult | JoinRequest) -> JoinOutcome | Lost:
        """Give the one outcome, as it comes out of another process."""
        await asyncio.sleep(0)
        outcome: JoinOutcome = pickle.loads(self._outcome)
        return outcome


def _collection(directory: Path, rows: int, at_once: int) -> tuple[RunSession, Collection]:
    write_rows(directory, rows, "?")
    session = RunSession(plan_in(directory, at_once=at_once))
    session.begin()
    return session, session.collection(InstantPort(at_once))


async def _finish(directory: Path, rollouts: int, early: int) -> dict[str, float]:
    session, collection = _collection(directory, rollouts, 50)
    found, finished, begun = {}, 0, time.perf_counter()
    async for _ in collection.finished():
        finished += 1
        if finished == early:
            gc.collect()
            found["rss_early"] = float(memory_bytes("VmRSS"))
    found["rollouts_per_s"] = finished / (time.perf_counter() - begun)
    gc.collect()
    found["rss_late"] = float(memory_bytes("VmRSS"))
    session.close()
    return found


def probe_finish(directory: Path, rollouts: int, early: int) -> dict[str, float]:
    """Memory after some, and after many finished rollouts."""
    return asyncio.run(_finish(directory, rollouts, early))


async def _driver_stall(directory: Path, at_once: int) -> dict[str, float]:
    tune_collector()
    async with Stalls() as idle:
        await asyncio.sleep(2.0)
    session, collection = _collection(directory, 4 * at_once, at_once)
    async with Stalls() as loaded:
        await collection.run()
    session.close()
    return {"idle_ms": idle.longest_ms, "loaded_ms": loaded.longest_ms}


def probe_driver_stall(directory: Path, at_once: int, _count: int) -> dict[str, float]:
    """Let many rollouts end in the same moment, four times."""
    return asyncio.run(_driver_stall(directory, at_once))


async def _ask(url: str, at_once: int) -> None:
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    body = {"model": "bench", "messages": [{"role": "user", "content": _ROW_PADDING * 10}]}
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:

        async def call(number: int) -> int:
            answer = await client.post(f"/ng-rollout/{number}-0/v1/chat/completions", json=body)
            return answer.status_code

        calls = []
        for number in range(at_once):  # admitted one after the other, as collectors do; what is measured is their end
            calls.append(asyncio.create_task(call(number)))
            if number % _ADMITTED_TOGETHER == 0:
                await asyncio.sleep(_BETWEEN_ADMISSIONS_S)
        statuses = await asyncio.gather(*calls)
    if set(statuses) != {200}:
        raise RuntimeError(f"answers with {set(statuses)}")


def probe_server_stall(directory: Path, at_once: int, _count: int) -> dict[str, float]:
    """Let a model server give many captured answers in the same moment; see ``run_log_server.py``."""
    command = [sys.executable, "-m", "benchmarks.run_log_server", str(directory), str(at_once)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        asyncio.run(_ask(f"http://127.0.0.1:{port}", at_once))
        server.stdin.close()
        found: dict[str, float] = json.loads(server.stdout.readline().removeprefix("FOUND "))
    if found["recorded"] != at_once:
        raise RuntimeError(f"{found['recorded']} of {at_once} calls were recorded")
    return found


PROBES = {
    "write_rows": probe_write_rows,
    "write_run": probe_write_run,
    "resume": probe_resume,
    "hold_rows": probe_hold_rows,
    "finish": probe_finish,
    "driver_stall": probe_driver_stall,
    "server_stall": probe_server_stall,
}
