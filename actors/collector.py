"""Host the collection: it alone writes the ledger, and it moves keys and states, never payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from gym_ray.actors.health import Watched
from gym_ray.actors.ray_port import RayPort
from gym_ray.actors.run_metrics import RunMetricsPublisher
from gym_ray.actors.seats import Seat
from gym_ray.agents.context import ServerUrls
from gym_ray.errors import ClusterError, GymRayError
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.collection import Collection, Finished, Progress
from gym_ray.rollouts.control.desk import ControlDesk
from gym_ray.rollouts.metrics import RunMetrics
from gym_ray.rollouts.run_files.parts_files import read_inline_line
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.rollouts.session import RunPlan, RunSession, SessionStart

_EMPTY_PATIENCE_S = 120.0  # how long a run that has lost all of its workers or joiners waits for a node that joins

__all__ = ["CollectionPlan", "CollectorHost", "finished_records"]


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """A run, and how much its processes take in hand.

    Attributes:
        run: The run.
        lanes: Attempts that one worker may have in hand.
    """

    run: RunPlan
    lanes: int

    @property
    def calls_at_once(self) -> int:
        """Calls that one seat must take at once, so that no attempt waits at the last seat while its time runs."""
        limits = (self.run.settings.num_samples_in_parallel, self.run.settings.max_resident_rollout_tasks)
        return max(1000, 2 * max(limit or 0 for limit in limits))


class CollectorHost(Watched):
    """Runs one collection. It holds the output's lock, so a lost collector frees the output for the next run."""

    def __init__(self, plan: CollectionPlan) -> None:
        super().__init__()
        self._plan = plan
        self._session = RunSession(plan.run)
        self._collection: Collection | None = None
        self._finished: AsyncGenerator[Finished] | None = None
        self._turn = asyncio.Lock()
        self._port: RayPort | None = None
        self._desk: ControlDesk | None = None
        self._publisher: RunMetricsPublisher | None = None

    async def begin(self) -> SessionStart:
        """Take the output's lock, and begin the run or take it up again (D48, D49).

        Raises:
            InputError: A row, or a line of an earlier run, cannot be used; nothing of an earlier run has changed.
            StorageError: The output cannot be written, or another collector writes it or captures the same ids.
        """
        return await asyncio.to_thread(self._session.begin)

    async def open(self, workers: Sequence[Seat], joiners: Sequence[Seat]) -> None:
        """Take the seats that will do the work; call it once, after :meth:`begin`.

        Raises:
            GymRayError: The run's files, or its token captures, cannot be opened.
        """
        run = self._plan.run
        stale = None if run.tokens is None else await asyncio.to_thread(run.tokens.stale_captures)
        clearing = Clearing(run.captures, stale)
        port = self._port = RayPort(
            workers, joiners, lanes=self._plan.lanes, clearing=clearing, empty_patience_s=_EMPTY_PATIENCE_S
        )
        self._collection = self._session.collection(port)
        self._finished = self._collection.finished()
        self._desk = ControlDesk(run.paths, self._collection)
        await self._desk.start()
        self._publisher = RunMetricsPublisher(partial(RunStanding.of, self._collection), run.paths.run_name)
        self._publisher.start()
        self._keep_what_is_loaded()
        self._ready = True

    async def admit(self, workers: Sequence[Seat], joiners: Sequence[Seat]) -> None:
        """Use the seats of a node that joined as well."""
        if self._port is not None:
            self._port.admit(workers, joiners)
            self._resize()

    async def part(self, nodes: Sequence[str]) -> None:
        """Give nothing more to seats on nodes that were lost."""
        if self._port is not None:
            self._port.part(nodes)
            self._resize()

    def _resize(self) -> None:
        if self._collection is not None:
            self._collection.resize()

    async def use(self, urls: Mapping[str, ServerUrls]) -> None:
        """Send attempts that start later to these servers, by the name of their worker."""
        if self._port is not None:
            self._port.use(urls)

    async def run(self) -> None:
        """Run to the end with nobody listening to single attempts.

        Raises:
            GymRayError: The run ended early; everything that had ended by then is stored.
        """
        while await self.next_finished() is not None:
            pass

    async def next_finished(self) -> Finished | None:
        """Return the next attempt that finished, None when the run is over.

        A caller that stops asking slows dispatch down; nothing is kept for it beyond the attempts in hand.

        Raises:
            GymRayError: The run ended early; everything that had ended by then is stored.
        """
        if self._finished is None:
            raise RuntimeError("the collector has not been opened")
        async with self._turn:
            return await anext(self._finished, None)

    @ray.method(concurrency_group="control")
    def progress(self) -> Progress | None:
        """Return where the run stands, in constant time; None before it is open."""
        return None if self._collection is None else self._collection.progress()

    async def metrics(self) -> RunMetrics:
        """Return the aggregates over every finished attempt so far."""
        return RunMetrics() if self._collection is None else self._collection.metrics

    async def stop(self) -> None:
        """Start nothing more and cancel what runs; what has ended is still stored."""
        if self._collection is not None:
            self._collection.stop()

    async def close(self) -> None:
        """Stop what still runs, store what has ended, and give the output's lock back; idempotent."""
        await self.stop()
        if self._finished is not None:
            async with self._turn:
                await self._finished.aclose()
        if self._desk is not None:
            await self._desk.aclose()
        if self._publisher is not None:
            await self._publisher.close()
        if self._port is not None:
            await self._port.aclose()
        self._session.close()


async def finished_records(collector: Any, paths: RunPaths) -> AsyncIterator[bytes]:
    """Yield each finished record as its line of JSON, in completion order, read back from the run's files.

    Records of a compact run come in the contract's inline shape, as those of any other (D163).

    The collector keeps no payload and this iterator holds one record at a time, so memory does not grow with the run.
    Leaving the iteration early stops the run; what has ended is stored.

    Args:
        collector: Handle of an opened :class:`CollectorHost`.
        paths: Where that collector writes.

    Raises:
        GymRayError: The run ended early, or its collector did.
    """
    over = False
    try:
        while (item := await collector.next_finished.remote()) is not None:
            if item.written is not None:
                yield await asyncio.to_thread(read_inline_line, paths, item.written)
        over = True
    except RayTaskError as error:
        over = True
        if isinstance(error.cause, GymRayError):
            raise error.cause from error
        raise ClusterError(f"the collector failed: {error.cause!r}") from error
    except RayActorError as error:
        over = True
        raise ClusterError(f"the collector's process ended; what had ended is in {paths.output}: {error}") from error
    finally:
        if not over:
            await collector.stop.remote()
