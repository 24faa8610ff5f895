"""Runs whose records were joined with real captures, as joiners write them, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.join import Joined, JoinOptions, join
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.rollouts.reports.facts_files import FactsWriter
from gym_ray.rollouts.run_files.parts_files import publish_parts
from gym_ray.rollouts.run_paths import Written
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.written_runs import WrittenRun

__all__ = ["JoinedRun", "captured_call"]


def captured_call(call_id: str, started_at: float, **members: Any) -> dict[str, Any]:
    """Return a sound exchange of a Responses call."""
    call = {
        "model_call_id": call_id,
        "dialect": "responses",
        "model_ref": {"type": "responses_api_models", "name": "policy"},
        "started_at": started_at,
        "completed_at": started_at + 1,
        "latency_ms": 1000.0,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"model": "m", "input": [{"role": "user", "content": f"question of {call_id} " * 20}]},
        "response": {
            "id": f"resp_{call_id}",
            "model": "m",
            "status": "completed",
            "output": [{"type": "message", "role": "assistant", "content": f"answer to {call_id} " * 20}],
            "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
        },
    }
    return call | members


class JoinedRun(WrittenRun):
    """A run below a directory with its captures in ``captures`` beside it. Close it, or use it as a context manager.

    Args:
        root: Directory of the run.
        rows: Rows of the input.
        options: How evidence is built.
        keep_sources: Whether what replies brought is kept, which a peer's run does not do.
        calls: How the operating system is called.
    """

    def __init__(
        self,
        root: Path,
        rows: int,
        *,
        options: JoinOptions | None = None,
        keep_sources: bool = True,
        calls: FileCalls | None = None,
    ) -> None:
        super().__init__(root, rows, calls=calls)
        self.captures = CaptureStore(root / "captures")
        self.captures.root.mkdir(exist_ok=True)
        self._facts, self._options = FactsWriter(self.paths), options or JoinOptions()
        self._keeps_sources = keep_sources

    def close(self) -> None:
        """Close all files and give up the run's lock; safe to repeat."""
        self._facts.close()
        super().close()

    def rollout_id(self, ordinal: int) -> str:
        """Return the capture key of a row's first attempt."""
        return self.rows.attempt(ordinal, 0).rollout_id

    def capture(self, ordinal: int, exchanges: Iterable[Mapping[str, Any]]) -> None:
        """Append exchanges to the capture of a row's first attempt."""
        for exchange in exchanges:
            self.captures.record(self.rollout_id(ordinal), dict(exchange))

    def joined(
        self,
        ordinal: int,
        reply: Mapping[str, Any] | RunFailure,
        *,
        written: WrittenCalls | None = None,
        latency_ms: float = 1234.5,
        trains: bool = True,
    ) -> Joined:
        """Join a row's first attempt with what its capture holds now; nothing is stored."""
        attempt = self.rows.attempt(ordinal, 0)
        failure = reply if isinstance(reply, RunFailure) else None
        result = RunResult(None if failure else exact_json.dumps(reply), failure, latency_ms)
        snapshot = self.captures.snapshot(attempt.rollout_id)
        return join(
            attempt.data,
            attempt.rollout_id,
            result,
            snapshot,
            written or WrittenCalls(),
            options=self._options,
            trains=trains,
        )

    def store(self, ordinal: int, joined: Joined) -> Written:
        """Store a joined record as a joiner does, and log it."""
        assert joined.destination != "nowhere"
        self.start(ordinal, 0)
        if joined.source is not None and self._keeps_sources:
            self.outputs.append_source(joined.source)
        if joined.parts is not None:
            publish_parts(self.paths, self.rollout_id(ordinal), joined.parts)
        written = self.outputs.append(joined.destination, joined.line)
        self._facts.append(written, joined.facts)
        self.log(ordinal, 0, written)
        return written

    def finish_joined(self, ordinal: int, reply: Mapping[str, Any] | RunFailure, **options: Any) -> Joined:
        """Join and store a row's first attempt; see :meth:`joined`."""
        joined = self.joined(ordinal, reply, **options)
        self.store(ordinal, joined)
        return joined
