"""Host the joiner: one process a node that turns replies and captures into durable records."""

from __future__ import annotations

from gym_ray.actors.health import Watched
from gym_ray.errors import GymRayError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.session import RunPlan

__all__ = ["JoinerHost"]


class JoinerHost(Watched):
    """Joins attempts; whatever it acknowledges is in the run's files, so its loss costs nothing but time."""

    def __init__(self, run: RunPlan) -> None:
        super().__init__()
        self._failure: GymRayError | None = None
        try:
            delivery = None if run.tokens is None else run.tokens.delivery()
            self._joiner = Joiner(run.paths, run.captures, tokens=delivery, options=run.join)
        except GymRayError as error:
            self._failure = error  # raised by the methods: an error of a constructor would lose its type on the way
        self._ready = self._failure is None

    async def ready(self) -> None:
        """Return when the joiner can join.

        Raises:
            GymRayError: The outputs cannot be opened; the message names the file and the cause.
        """
        if self._failure is not None:
            raise self._failure

    async def join(self, job: AttemptJob, result: RunResult, request: JoinRequest) -> JoinOutcome:
        """Join one attempt; its record is durable when this returns."""
        await self.ready()
        return await self._joiner.join(job, result, request)

    async def close(self) -> None:
        """Close connections and files; idempotent."""
        if self._failure is None:
            await self._joiner.aclose()
