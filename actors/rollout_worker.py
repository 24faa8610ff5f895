"""Host the agents: run attempts, many at once, and leave each result where a joiner can fetch it."""

from __future__ import annotations

from gym_ray.actors.health import Watched
from gym_ray.actors.packing import unpacked
from gym_ray.agents.runner import AgentRunner, ServerUrls
from gym_ray.errors import GymRayError
from gym_ray.evidence.run_result import RunResult
from gym_ray.log_context import bound
from gym_ray.rollouts.ports import AttemptJob
from gym_ray.settings import RunSettings

__all__ = ["RolloutWorkerHost"]


class RolloutWorkerHost(Watched):
    """Runs attempts of any agent of the settings. It holds nothing that outlives an attempt."""

    def __init__(self, settings: RunSettings, urls: ServerUrls, run_token: str | None) -> None:
        super().__init__()
        self._failure: GymRayError | None = None
        try:
            self._runner = AgentRunner(settings, urls, run_token=run_token)
        except GymRayError as error:
            # Raised by ready(): an error of a constructor would lose its type on the way.
            self._failure = error
        self._ready = self._failure is None

    async def ready(self) -> None:
        """Return when the worker can run attempts.

        Raises:
            GymRayError: An agent could not be built; the message names it and the cause.
        """
        if self._failure is not None:
            raise self._failure

    async def run(self, task: bytes) -> tuple[None, RunResult]:
        """Run one attempt.

        Args:
            task: The attempt's job, and where it finds the servers and keeps finding them, None for where they were
                when the worker started; see :mod:`gym_ray.actors.packing`.

        Returns:
            Nothing, as the small word that the run ended, and the result, which stays in the object store.
        """
        job: AttemptJob
        job, urls = unpacked(task)
        with bound(rollout_id=job.rollout_id, attempt=job.attempt):
            return None, await self._runner.run(job.row, job.rollout_id, job.agent, job.timeout_s, urls)

    async def close(self) -> None:
        """Close the worker's connections; idempotent."""
        if self._failure is None:
            await self._runner.aclose()
