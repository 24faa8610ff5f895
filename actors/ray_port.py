"""Move attempts to workers and results to joiners; the moved results never pass through the collector's process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from gym_ray.actors.attempt_joins import AttemptJoins
from gym_ray.actors.cluster import alive_nodes
from gym_ray.actors.packing import packed
from gym_ray.actors.seats import Seat, expect_back, first_line, least_busy_there
from gym_ray.agents.context import ServerUrls
from gym_ray.errors import AgentError, ClusterError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, Placement, ReplyHandle

__all__ = ["RayPort"]

_GRACE_S = 30.0
"""What a worker may take beyond an attempt's own time; longer means that it no longer runs its loop."""
_CANCEL_PATIENCE_S = 20.0
"""What a worker may take to cancel an attempt; longer means the same."""
_JOIN_PATIENCE_S = 90.0
"""How long a joiner that has work may finish none of it: longer than a join waits for servers and for the disk."""


class RayPort:
    """A :class:`~gym_ray.rollouts.ports.RolloutPort` over Ray actors.

    Args:
        workers: Seats of rollout workers.
        joiners: Seats of joiners.
        lanes: Attempts that one worker may have in hand.
        clearing: Empties the captures of attempts; closed with the port.
        run: What joiners call the run, where they hold several; None for those of one run.
        empty_patience_s: How long to wait for a seat that joins when none is left.
        cancel_patience_s: Time in which a worker must end a cancelled attempt.
        join_patience_s: Time in which a joiner that has work must finish some of it.
    """

    def __init__(
        self,
        workers: Sequence[Seat],
        joiners: Sequence[Seat],
        *,
        lanes: int,
        clearing: Clearing,
        run: str | None = None,
        empty_patience_s: float = 0.0,
        cancel_patience_s: float = _CANCEL_PATIENCE_S,
        join_patience_s: float = _JOIN_PATIENCE_S,
    ) -> None:
        self._cancel_patience_s, self._empty_patience_s = cancel_patience_s, empty_patience_s
        self._joins = AttemptJoins(run, join_patience_s)
        self._admitted = asyncio.Event()
        self._workers, self._joiners, self._lanes = list(workers), list(joiners), lanes
        self._clearing = clearing
        self._placed: dict[str, Placement] = {}

    @property
    def capacity(self) -> int:
        """Attempts that all living workers can have in hand."""
        return max(1, self._lanes * sum(1 for seat in self._workers if not seat.gone))

    def placements(self) -> Sequence[Placement]:
        """Return where each attempt runs that runs now, oldest first."""
        return list(self._placed.values())

    def admit(self, workers: Sequence[Seat], joiners: Sequence[Seat]) -> None:
        """Use more seats from now on; call it on the loop that runs the port."""
        self._workers.extend(workers)
        self._joiners.extend(joiners)
        self._admitted.set()  # for those that wait; who comes later waits for the next ones
        self._admitted = asyncio.Event()

    def part(self, nodes: Collection[str]) -> None:
        """Give nothing more to seats on nodes that were lost; what they had in hand ends by itself."""
        for seat in (*self._workers, *self._joiners):
            seat.gone = seat.gone or seat.node_id in nodes

    def use(self, urls: Mapping[str, ServerUrls]) -> None:
        """Send attempts that start later to other servers, by the name of their worker; what runs keeps its own."""
        for seat in self._workers:
            seat.urls = urls.get(seat.name, seat.urls)

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of these attempts (D25, D28)."""
        await self._clearing.clear(rollout_ids)

    async def aclose(self) -> None:
        """Close the connections to the servers; idempotent."""
        for seat in self._workers:
            if seat.comes_back is not None:
                seat.comes_back.cancel()
        await self._clearing.aclose()

    async def run(self, job: AttemptJob) -> ReplyHandle | Lost:
        """Run one attempt on the least busy worker; the result stays in the object store."""
        seat = await self._some(self._workers, "rollout worker")
        seat.busy += 1
        self._placed[job.rollout_id] = Placement(job.rollout_id, job.attempt, seat.name, seat.node_id, time.time())
        ended, result = seat.handle.run.options(num_returns=2).remote(packed(job, seat.urls))
        # A future of its own: what waits for it may be cancelled or run out of time, the run's end is still awaited.
        end = asyncio.wrap_future(ended.future())
        try:
            done, _ = await asyncio.wait([end], timeout=None if job.timeout_s is None else job.timeout_s + _GRACE_S)
            if not done:
                return await self._end_worker(seat, end, job)
            end.result()
        except asyncio.CancelledError:
            await self._cancel(seat, ended, end)
            raise
        except (RayActorError, ActorUnschedulableError) as error:
            return await self._lost(seat, error)
        except RayTaskError as error:
            # AgentRunner turns every failure of an agent into a result, so this is the worker's own.
            raise AgentError("agent_run_error", f"{seat.name}: {error.cause!r}") from error
        finally:
            seat.busy -= 1
            self._placed.pop(job.rollout_id, None)
        return ReplyHandle(result)

    async def _cancel(self, seat: Seat, reference: Any, end: asyncio.Future[Any]) -> None:
        ray.cancel(reference)
        await _outlast(end, self._cancel_patience_s)
        if not end.done():  # its agent blocks the loop; nothing else there can be told to end either
            ray.kill(seat.handle, no_restart=False)
            expect_back(seat)
            await _outlast(end, self._cancel_patience_s)
        # However it ended, the run is over, which is all that was asked for.
        end.exception() if end.done() and not end.cancelled() else None

    async def _end_worker(self, seat: Seat, end: asyncio.Future[Any], job: AttemptJob) -> Lost:
        """End the process of a worker that cannot even tell that an attempt ran out of time; Ray starts a new one."""
        ray.kill(seat.handle, no_restart=False)
        expect_back(seat)
        await asyncio.wait([end])
        end.exception()
        return Lost("worker_lost", f"{seat.name}: no word {_GRACE_S:g} s after the attempt's {job.timeout_s} s; ended")

    async def _lost(self, seat: Seat, error: RayError) -> Lost:
        if isinstance(error, ActorUnavailableError):
            expect_back(seat)
            if seat.comes_back is not None:  # whether its node went with it is known when it comes back or cannot
                await asyncio.wait([seat.comes_back], timeout=self._cancel_patience_s)
            if not seat.gone:
                return Lost("worker_lost", f"{seat.name}: its process ended during the run")
        if isinstance(error, ActorDiedError | ActorUnschedulableError):
            seat.gone = True
        node_alive = any(node.node_id == seat.node_id for node in alive_nodes())
        return Lost("worker_lost" if node_alive else "node_lost", f"{seat.name}: {first_line(error)}")

    async def join(self, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest) -> JoinOutcome | Lost:
        """Join one attempt in the least busy joiner.

        Raises:
            ClusterError: The joiner's process ended, or hung and was ended; ask again with ``retry`` set.
            GymRayError: The record could not be stored.
        """
        seat = await self._some(self._joiners, "joiner")
        return await self._joins.join(seat, job, result, request)

    async def _some(self, seats: Sequence[Seat], what: str) -> Seat:
        """Return the least busy seat that is there; while none is left, wait for one that joins."""
        until = time.monotonic() + self._empty_patience_s
        while True:
            try:
                return await least_busy_there(seats, what)
            except ClusterError:
                if time.monotonic() >= until:
                    raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._admitted.wait(), until - time.monotonic())


async def _outlast(end: asyncio.Future[Any], patience_s: float) -> None:
    """Wait for ``end`` at most ``patience_s``, also when cancelled again: whoever called promised to be there."""
    until = time.monotonic() + patience_s
    while not end.done() and time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([end], timeout=until - time.monotonic())
