"""Whoever joins, the output is the same: records are where their places say, and only their order differs (D161)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gym_ray.capture_location import CaptureLocation
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputMark, RunPaths

ROWS = 24
START = JoinRequest(OutputMark(0, 0))


def row(task: int) -> dict[str, Any]:
    key = {"_ng_task_index": task, "_ng_rollout_index": 0}
    return {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}, "n": task, **key}


def result(task: int) -> RunResult:
    if task % 5 == 4:
        return RunResult(None, RunFailure("agent_run_error", "E", f"row {task} broke"), 7.0)
    invocation = {"kind": "agent_invocation", "invocation_id": "root", "model_calls": [{"model_call_id": f"c{task}"}]}
    reply = {"reward": task / ROWS, "ng_agent_observations": {"source": "s", "records": [invocation]}}
    return RunResult(json.dumps(reply).encode(), None, 7.0)


def captured(directory: Path) -> Path:
    directory.mkdir()
    for task in range(ROWS):
        call = {
            "model_call_id": f"c{task}",
            "dialect": "responses",
            "model_ref": {"type": "responses_api_models", "name": "policy_model"},
            "started_at": 1.0,
            "completed_at": 2.0,
            "latency_ms": 1000.0,
            "latency_ttft_ms": None,
            "status_code": 200,
            "error_category": None,
            "request": {"input": "q"},
            "response": {"id": f"r{task}", "status": "completed", "output": []},
        }
        (directory / f"{task}-0.capture.jsonl").write_text(json.dumps(call) + "\n")
    return directory


def begun(root: Path) -> RunPaths:
    root.mkdir()
    (root / "in.jsonl").write_text("".join(json.dumps(row(task)) + "\n" for task in range(ROWS)))
    paths = RunPaths.of(root / "out.jsonl")
    with RunLock(paths) as lock:
        begin_run(lock, root / "in.jsonl", RowOptions())
    return paths


async def collected(paths: RunPaths, captures: Path, joiners: int) -> list[JoinOutcome]:
    several = [Joiner(paths, CaptureLocation.of(captures)) for _ in range(joiners)]
    jobs = [AttemptJob(task, 0, f"{task}-0", "a", json.dumps(row(task)).encode()) for task in range(ROWS)]
    # The last one first, so that several joiners store in another order than one does.
    tasks = [
        several[job.ordinal % joiners].join(job, result(job.ordinal), START)
        for job in (jobs if joiners == 1 else reversed(jobs))
    ]
    outcomes = await asyncio.gather(*tasks)
    for joiner in several:
        await joiner.aclose()
    return outcomes


def by_key(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    return sorted(lines, key=lambda line: json.loads(line)["_ng_task_index"])


async def test_three_joiners_leave_the_output_of_one(tmp_path: Path) -> None:
    captures = captured(tmp_path / "captures")
    alone, shared = begun(tmp_path / "one"), begun(tmp_path / "three")
    await collected(alone, captures, 1)
    outcomes = await collected(shared, captures, 3)
    for ours, theirs in ((shared.output, alone.output), (shared.failures, alone.failures)):
        assert b"".join(by_key(ours)) == b"".join(by_key(theirs))
    assert len(by_key(shared.output)) == ROWS - ROWS // 5
    for outcome in outcomes:
        assert outcome.written is not None
        record = json.loads(read_record(shared, outcome.written))
        assert record["ng_model_call_capture"]["calls"][0]["model_call_id"] == f"c{record['_ng_task_index']}"
