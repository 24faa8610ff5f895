"""A port whose runs wait at a gate: for room, while a loop is paused, and for good when nobody wants them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, Placement, ReplyHandle, RolloutPort

__all__ = ["GatedPort"]


class GatedPort:
    """A :class:`~gym_ray.rollouts.ports.RolloutPort` in front of another one.

    Args:
        port: Does the work.
        admit: Awaited before each run: returns whether it may go on; False ends the attempt as cancelled.
    """

    def __init__(self, port: RolloutPort, admit: Callable[[AttemptJob], Awaitable[bool]]) -> None:
        self._port, self._admit = port, admit
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    @property
    def capacity(self) -> int:
        """Runs that the workers can take at once."""
        return self._port.capacity

    def placements(self) -> Sequence[Placement]:
        """Return where each attempt runs that runs now; those at the gate run nowhere."""
        return self._port.placements()

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of these attempts."""
        await self._port.clear(rollout_ids)

    async def run(self, job: AttemptJob) -> ReplyHandle | Lost:
        """Run an attempt once it is let through.

        Raises:
            asyncio.CancelledError: It is not wanted any more.
        """
        task = asyncio.current_task()
        if task is not None:
            self._tasks[job.ordinal] = task
        try:
            if not await self._admit(job):
                raise asyncio.CancelledError
            return await self._port.run(job)
        finally:
            self._tasks.pop(job.ordinal, None)

    async def join(self, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest) -> JoinOutcome | Lost:
        """Join an attempt."""
        return await self._port.join(job, result, request)

    def end(self, ordinals: Iterable[int]) -> None:
        """Cancel what runs, or waits at the gate, of these rows; their attempts are recorded as cancelled."""
        for ordinal in ordinals:
            task = self._tasks.get(ordinal)
            if task is not None:
                task.cancel()
