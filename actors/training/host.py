"""Host the steps of a training loop: one long-lived actor that runs each as a small collection over the same seats."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.ray_port import RayPort
from gym_ray.actors.run_metrics import RunMetricsPublisher
from gym_ray.actors.seats import Seat
from gym_ray.actors.training.seats import SharedSeats
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.run_files.parts_files import read_inline_line
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.rollouts.session import RunPlan
from gym_ray.rollouts.training.outcomes import Requested
from gym_ray.rollouts.training.step import Step, StepPlan, Taken
from gym_ray.rollouts.training.step_files import StepDirectory

__all__ = ["TrainingHost"]

_EMPTY_PATIENCE_S = 120.0
"""How long a step that has lost all of its workers or joiners waits for a node that joins."""


class TrainingHost(SharedSeats):
    """Runs steps. It holds the directory's lock, so that one loop at a time writes there.

    Args:
        lanes: Attempts that one worker may have in hand.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self._lanes = lanes
        self._directory: StepDirectory | None = None
        self._steps: dict[int, Step] = {}
        self._clearings: dict[int, Clearing] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._paused, self._epoch, self._over = False, 0, RunStanding()
        self._version: int | None = None
        self._publisher: RunMetricsPublisher | None = None

    async def open(self, directory: Path, workers: Sequence[Seat], joiners: Sequence[Seat]) -> tuple[int, ...]:
        """Take the directory and the seats; return the steps that an earlier loop left half finished.

        Raises:
            StorageError: Another collector uses the directory, or it cannot be written.
        """
        self._directory = await asyncio.to_thread(StepDirectory, directory)
        self._workers, self._joiners = list(workers), list(joiners)
        self._publisher = RunMetricsPublisher(self._standing, directory.name)
        self._publisher.start()
        self._ready = True
        return self._directory.interrupted

    async def next_step(self, lines: Sequence[bytes]) -> tuple[int, Path]:
        """Take the next number and write the rows of its step; see :class:`StepDirectory`."""
        return await asyncio.to_thread(self._files.next_step, lines)

    def _standing(self) -> RunStanding:
        return sum((step.standing() for step in self._steps.values()), self._over)

    @property
    def _files(self) -> StepDirectory:
        if self._directory is None:
            raise RuntimeError("the host has not been opened")
        return self._directory

    async def begin(self, number: int, plan: StepPlan) -> tuple[Requested, ...]:
        """Begin a step and start its rollouts; return what is delivered, one for each.

        Raises:
            InputError: A row cannot be used; nothing runs.
            StorageError: The files cannot be written, or captures of the same ids are claimed.
        """
        step = Step(plan, lambda: self._epoch)
        try:
            requested = await step.begin()
            run = plan.run
            stale = None if run.tokens is None else await asyncio.to_thread(run.tokens.stale_captures)
            clearing = self._clearings[number] = Clearing(run.captures, stale)
            port = RayPort(
                self._workers,
                self._joiners,
                lanes=self._lanes,
                clearing=clearing,
                run=str(number),
                empty_patience_s=_EMPTY_PATIENCE_S,
            )
            self._steps[number], self._ports[number] = step, port
            if self._paused:
                step.pause()
            step.open(port)
        except BaseException:
            await self._end(number, step, "refused")
            raise
        return requested

    async def plan_of(self, key: str) -> RunPlan:
        """Return the run of a step that is under way, for a joiner."""
        return self._steps[int(key)].plan.run

    async def take(self, number: int, most: int, wait_s: float, delivered: int) -> Taken | None:
        """Return what a step has to deliver, see :meth:`Step.take`; None in a process that does not know the step."""
        step = self._steps.get(number)
        if step is None:
            return None
        taken = await step.take(most, wait_s, delivered)
        if taken.over:
            # Before the last result leaves: a loop that is killed once it has all of them left nothing half finished.
            await asyncio.to_thread(self._files.note_closed, number, "complete", {"failure": step.failure})
            self.finish(number, "complete")
        return taken

    def finish(self, number: int, state: str) -> None:
        """End a step behind the caller's back: what still runs is cancelled, what has ended is stored."""
        step = self._steps.get(number)
        if step is not None and number in self._ports:
            del self._ports[number]
            self._later(self._end(number, step, state))

    def _later(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(what)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, number: int, step: Step, state: str) -> None:
        await step.aclose()
        # Not the port's own close: its seats are those of the other steps too.
        if (clearing := self._clearings.pop(number, None)) is not None:
            await clearing.aclose()
        if self._steps.pop(number, None) is not None:
            self._over += step.standing().counts()
        self._ports.pop(number, None)
        closed = [seat.handle.close_run.remote(str(number)) for seat in self._joiners if not seat.gone]
        await asyncio.gather(*closed, return_exceptions=True)  # a joiner that is gone holds no files either
        await asyncio.to_thread(self._files.note_closed, number, state, {"failure": step.failure})

    async def record(self, paths: RunPaths, written: Written) -> bytes:
        """Return a record, for a caller that does not see the storage."""
        return await asyncio.to_thread(read_inline_line, paths, written)

    async def set_version(self, version: int) -> None:
        """Note the weights' version, for model servers that start from now on."""
        self._version = version

    @ray.method(concurrency_group="control")
    def weight_version(self) -> int | None:
        """Return the weights' version, None before it was said; reads a plain attribute, see :meth:`health`."""
        return self._version

    async def set_epoch(self, epoch: int) -> None:
        """Note the epoch of the weights: attempts that begin from now on belong to it."""
        self._epoch = epoch

    async def pause(self, paused: bool) -> None:
        """Start nothing more, in no step, until this is called with False."""
        self._paused = paused
        for step in self._steps.values():
            step.pause() if paused else step.resume()

    async def drain(self, timeout_s: float | None) -> None:
        """Start nothing more in the steps of now; return when they are decided, after ``timeout_s`` by force."""
        steps = list(self._steps.values())
        for step in steps:
            step.drain()
        await asyncio.gather(*(step.drained(timeout_s) for step in steps))

    async def cancel(self, rollout_ids: Sequence[str] | None) -> int:
        """End rollouts of the steps of now, None for all; return how many this decided."""
        return sum(step.cancel(rollout_ids) for step in list(self._steps.values()))

    async def status(self) -> dict[str, Any]:
        """Return where each step of now stands."""
        steps = {}
        for number in self._ports:
            progress, undecided, undelivered = self._steps[number].progress()
            steps[number] = {"progress": progress, "undecided": undecided, "undelivered_bytes": undelivered}
        return {"paused": self._paused, "epoch": self._epoch, "steps": steps}

    async def close(self) -> None:
        """End every step, store what has ended, give the directory back; idempotent."""
        for number in list(self._ports):
            self.finish(number, "cut short")
        if self._ending:
            await asyncio.wait(list(self._ending))
        if self._publisher is not None:
            await self._publisher.close()
        if self._directory is not None:
            self._directory.close()
