"""Host the joiner: one process a node that turns replies and captures into durable records."""

from __future__ import annotations

from pathlib import Path

from gym_ray.actors.health import Watched
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["JoinerHost"]


class JoinerHost(Watched):
    """Joins attempts; whatever it acknowledges is in the run's files, so its loss costs nothing but time."""

    def __init__(self, paths: RunPaths, capture_dir: Path | None) -> None:
        self._joiner = Joiner(paths, capture_dir)
        self._ready = True

    async def join(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome:
        """Join one attempt; its record is durable when this returns."""
        return await self._joiner.join(job, result, request)

    async def close(self) -> None:
        """Close connections and files; idempotent."""
        await self._joiner.aclose()
