"""A joiner of a compact run: the parts of a record are there before the record is, and nobody reads anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.evidence.build import JoinOptions
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.parts_files import read_inline, read_inline_line
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputMark, RunPaths, Written

ROW: dict[str, Any] = {
    "responses_create_params": {"input": "q"},
    "agent_ref": {"name": "a"},
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
JOB = AttemptJob(0, 0, "0-0", "a", json.dumps(ROW).encode())
START = JoinRequest(OutputMark(0, 0))
REFERENCES = [{"model_call_id": f"c{number}"} for number in range(4)]
OBSERVED = {
    "source": "s",
    "records": [{"kind": "agent_invocation", "invocation_id": "root", "model_calls": REFERENCES}],
}
REPLY = RunResult(json.dumps({"reward": 1.0, "ng_agent_observations": OBSERVED}).encode(), None, 7.0)


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Four calls, each of which sends the whole history again."""
    (tmp_path / "captures").mkdir()
    lines, history = [], []
    for number in range(4):
        history.append({"type": "message", "role": "user", "content": f"turn {number} " * 200})
        call = {
            "model_call_id": f"c{number}",
            "dialect": "responses",
            "model_ref": {"type": "responses_api_models", "name": "policy_model"},
            "started_at": 1.0 + number,
            "completed_at": 2.0 + number,
            "latency_ms": 1000.0,
            "latency_ttft_ms": None,
            "status_code": 200,
            "error_category": None,
            "request": {"input": list(history)},
            "response": {"id": f"r{number}", "status": "completed", "output": []},
        }
        lines.append(json.dumps(call) + "\n")
    (tmp_path / "captures" / "0-0.capture.jsonl").write_text("".join(lines))
    return tmp_path / "captures"


def begun(root: Path) -> RunPaths:
    root.mkdir()
    (root / "in.jsonl").write_text(json.dumps({key: ROW[key] for key in ROW if not key.startswith("_")}) + "\n")
    paths = RunPaths.of(root / "out.jsonl")
    with RunLock(paths) as lock:
        begin_run(lock, root / "in.jsonl", RowOptions())
    return paths


async def joined(paths: RunPaths, captures: Path, *, compact: bool) -> JoinOutcome:
    joiner = Joiner(paths, CaptureLocation.of(captures), options=JoinOptions(compact=compact))
    try:
        return await joiner.join(JOB, REPLY, START)
    finally:
        await joiner.aclose()


async def test_what_is_stored_is_small_and_what_is_read_is_whole(tmp_path: Path, captures: Path) -> None:
    inline, compact = begun(tmp_path / "inline"), begun(tmp_path / "compact")
    whole = await joined(inline, captures, compact=False)
    small = await joined(compact, captures, compact=True)
    assert whole.written is not None
    assert small.written is not None
    assert read_inline(compact, small.written) == read_inline(inline, whole.written)
    assert json.loads(read_inline_line(compact, small.written)) == json.loads(inline.output.read_bytes())
    parts = sum(path.stat().st_size for path in compact.parts.iterdir())
    assert small.written.length + parts < whole.written.length / 2
    assert small.summary == whole.summary


async def test_the_parts_are_there_when_the_record_is_stored(
    tmp_path: Path, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, seen = begun(tmp_path / "run"), []
    append = RunOutputs.append

    def looking(outputs: RunOutputs, *args: Any, **kwargs: Any) -> Written:
        seen.extend(path.name for path in paths.parts.iterdir())
        return append(outputs, *args, **kwargs)

    monkeypatch.setattr(RunOutputs, "append", looking)
    await joined(paths, captures, compact=True)
    assert seen == ["0-0.parts.jsonl"]


async def test_without_its_parts_no_record_is_stored(tmp_path: Path, captures: Path) -> None:
    paths = begun(tmp_path / "run")
    paths.parts.write_text("no directory")
    with pytest.raises(StorageError, match="parts"):
        await joined(paths, captures, compact=True)
    assert paths.output.read_bytes() == b""
