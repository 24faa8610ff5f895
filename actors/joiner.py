"""Host the joiner: one process a node that turns replies and captures into durable records."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import ray

from gym_ray.actors.health import Watched
from gym_ray.actors.packing import unpacked
from gym_ray.errors import ClusterError, GymRayError
from gym_ray.evidence.run_result import RunResult
from gym_ray.log_context import bound
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.session import RunPlan
from gym_ray.rollouts.training.outcomes import TokenRows

__all__ = ["JoinerHost"]


class JoinerHost(Watched):
    """Joins attempts; whatever it acknowledges is in the run's files, so its loss costs nothing but time.

    Args:
        run: The one run whose attempts it joins. For a joiner of several, name and namespace of the actor that knows
            their plans by key: a joiner that lost its process asks it again.
    """

    def __init__(self, run: RunPlan | tuple[str, str]) -> None:
        super().__init__()
        self._failure: GymRayError | None = None
        self._plans, self._opening = (run if isinstance(run, tuple) else None), asyncio.Lock()
        self._joiners: dict[str | None, Joiner] = {}
        try:
            if not isinstance(run, tuple):
                self._joiners[None] = _joiner(run)
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

    async def open_run(self, key: str, plan: RunPlan) -> None:
        """Open one of several runs; nothing when it is open.

        Raises:
            GymRayError: The outputs cannot be opened.
        """
        async with self._opening:
            if key not in self._joiners:
                self._joiners[key] = await asyncio.to_thread(_joiner, plan)

    async def close_run(self, key: str) -> None:
        """Close the files of one of several runs; call it when none of its joins is in flight. Idempotent."""
        joiner = self._joiners.pop(key, None)
        if joiner is not None:
            await joiner.aclose()

    async def join(self, task: bytes, result: RunResult) -> JoinOutcome:
        """Join one attempt; its record is durable when this returns.

        A table of training rows stays in the object store: ``token_rows`` says where. Putting it there by hand also
        puts small ones there, which a returned value would carry in its message.

        Args:
            task: The attempt's job, the request, and the run's key, None for a joiner of one run; see
                :mod:`gym_ray.actors.packing`.
            result: How the attempt ended.
        """
        await self.ready()
        job: AttemptJob
        request: JoinRequest
        job, request, run = unpacked(task)
        with bound(rollout_id=job.rollout_id, attempt=job.attempt):
            outcome = await (await self._joiner_of(run)).join(job, result, request)
        table: Any = outcome.token_rows
        if table is None:
            return outcome
        return replace(outcome, token_rows=TokenRows(ray.put(table), table.nbytes))

    async def _joiner_of(self, run: str | None) -> Joiner:
        if run not in self._joiners and run is not None and self._plans is not None:
            name, namespace = self._plans
            host: Any = ray.get_actor(name, namespace=namespace)
            await self.open_run(run, await host.plan_of.remote(run))
        if run not in self._joiners:
            raise ClusterError(f"run {run!r} is not open in this joiner")
        return self._joiners[run]

    async def close(self) -> None:
        """Close connections and files; idempotent."""
        while self._joiners:
            _, joiner = self._joiners.popitem()
            await joiner.aclose()


def _joiner(run: RunPlan) -> Joiner:
    delivery = None if run.tokens is None else run.tokens.delivery()
    return Joiner(run.paths, run.captures, tokens=delivery, options=run.join, token_tables=run.token_tables)
