"""Runs whose files are written as a collection writes them, one attempt after the other, for tests of what is found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gym_ray import exact_json
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.frames import Frame, FrameKind
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, rollout_digest
from gym_ray.rollouts.run_files.run_index import IndexLog, finished_frame
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_resume import RunResume, resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["STORY", "UnsyncedCalls", "WrittenRun", "facts", "resumed", "story"]


class UnsyncedCalls(FileCalls):
    """Syncs nothing, for the many tests that are not about power cuts."""

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_data(self, fd: int) -> None:
        """Do nothing."""


class WrittenRun:
    """A run that has begun below a directory, or was resumed there. Close it, or use it as a context manager.

    Args:
        root: Directory of the run.
        rows: Rows of the input; None to resume the run that is there.
        calls: How the operating system is called.

    Attributes:
        paths: The run's files.
        resumed: What the resume found, None for a fresh run.
    """

    def __init__(self, root: Path, rows: int | None, *, calls: FileCalls | None = None) -> None:
        self.paths, self._held = RunPaths.of(root / "out.jsonl"), ExitStack()
        self.resumed: RunResume | None = None
        with self._held:
            lock = self._held.enter_context(RunLock(self.paths))
            if rows is None:
                self.resumed = resume_run(lock, calls=calls)
            else:
                begin_run(lock, _input(root, rows), RowOptions(), calls=calls)
            self.rows = self._held.enter_context(MaterialisedRows.of(self.paths))
            self.outputs = self._held.enter_context(RunOutputs(self.paths, calls=calls))
            self.ledger = self._held.enter_context(LedgerLog(self.paths.ledger, calls=calls))
            self.index = self._held.enter_context(IndexLog(self.paths.index, calls=calls))
            self._held = self._held.pop_all()

    def __enter__(self) -> WrittenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and give up the run's lock; safe to repeat."""
        self._held.close()

    def start(self, ordinal: int, attempt: int) -> None:
        """Make an attempt durable as started."""
        rollout_id = self.rows.attempt(ordinal, attempt).rollout_id
        digest, at_us = rollout_digest(rollout_id), time.time_ns() // 1000
        self.ledger.append_frames([Frame(FrameKind.STARTED, ordinal, attempt, digest, at_us)])

    def record(self, ordinal: int, attempt: int, **fields: Any) -> Written:
        """Append the record of an attempt, a failure where it has a class, and return where it lies."""
        row = exact_json.loads_object(self.rows.attempt(ordinal, attempt).data) or {}
        names = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "_ng_rollout_id")
        record = {**{name: row[name] for name in names if name in row}, **fields}
        file: OutputFile = "main" if record.get("_ng_failure_class") is None else "failures"
        return self.outputs.append(file, exact_json.dumps(record))

    def log(self, ordinal: int, attempt: int, written: Written) -> None:
        """Append the frame of a durable record."""
        self.index.append_frames([finished_frame(ordinal, attempt, written)])

    def finish(self, ordinal: int, attempt: int, **fields: Any) -> Written:
        """Take an attempt through all steps in their order."""
        self.start(ordinal, attempt)
        written = self.record(ordinal, attempt, **fields)
        self.log(ordinal, attempt, written)
        return written


def resumed(paths: RunPaths, *, salvage: bool = False, calls: FileCalls | None = None) -> RunResume:
    """Resume a run under its lock and return what was found; nothing stays open."""
    with RunLock(paths) as lock:
        return resume_run(lock, salvage=salvage, calls=calls)


def facts(state: RunState) -> dict[str, list[int]]:
    """Return all that a state says of its rows."""
    return {name: list(getattr(state, name)) for name in ("done", "attempts", "failures", "terminal", "last_class")}


def story(root: Path) -> RunPaths:
    """A run that died: every kind of row, one record that was durable but not logged, one start without an end."""
    with WrittenRun(root, 6, calls=UnsyncedCalls()) as run:
        run.finish(0, 0, reward=1.0)
        run.finish(1, 0, _ng_failure_class="agent_timeout")
        run.start(4, 0)
        run.record(4, 0, reward=0.5, text="ä\u2028")
        run.finish(1, 1, reward=0.0)
        run.finish(2, 0, _ng_failure_class="judge_failed", _ng_failure_terminal=True)
        run.start(3, 0)
        run.outputs.append_source(b'{"rollout_id": "0-0"}')
        return run.paths


STORY: Mapping[str, list[int]] = MappingProxyType(
    {
        "done": [1, 1, 0, 0, 1, 0],
        "attempts": [1, 2, 1, 1, 1, 0],
        "failures": [0, 1, 1, 0, 0, 0],
        "terminal": [0, 0, 3, 0, 0, 0],
        "last_class": [0, 3, 4, 0, 0, 0],
    }
)
"""What a resume of :func:`story` finds."""


def _input(root: Path, rows: int) -> Path:
    path = root / "in.jsonl"
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    path.write_bytes(b"".join(exact_json.dumps({**row, "n": n}) + b"\n" for n in range(rows)))
    return path
