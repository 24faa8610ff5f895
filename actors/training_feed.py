"""The trainer's end of one step: takes deliveries from the host, and stands in for it when its process is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayTaskError

from gym_ray.actors.calls import get
from gym_ray.actors.training_parts import fetched
from gym_ray.errors import ClusterError, GymRayError, StorageError
from gym_ray.rollouts.run_files.parts_files import read_inline_line
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.outcomes import COLLECTOR_LOST, Outcome, Requested, lost_outcome
from gym_ray.rollouts.training.recovered import recovered_outcomes
from gym_ray.rollouts.training.results import ResultMaker, RolloutResult
from gym_ray.rollouts.training.step import Taken
from gym_ray.rollouts.training.weight_versions import VersionOrder

__all__ = ["StepFeed", "in_threads"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 64
_WAIT_S = 2.0
"""How long one question to the host waits, so that whoever asks can be interrupted in between."""


@dataclass(frozen=True, slots=True)
class StepFeed:
    """One begun step, as the trainer sees it.

    Attributes:
        host: Handle of the step's host.
        number: The step.
        paths: Where it writes.
        requested: Its rollouts.
        trained: Names of agents whose tokens are captured.
        max_staleness: How many versions ago a row may be sampled.
        order: The versions that were said.
        groups: Its deliveries are whole groups.
    """

    host: Any
    number: int
    paths: RunPaths
    requested: tuple[Requested, ...]
    trained: frozenset[str]
    max_staleness: int | None
    order: VersionOrder
    groups: bool

    def units(self) -> Iterator[tuple[RolloutResult, ...]]:
        """Yield deliveries until every rollout was delivered once; leaving early cancels the rest of the step."""
        maker = ResultMaker(self.trained, self.max_staleness, fetched, self._read)
        epoch = 0 if self.order.last is None else self.order.last.epoch
        left = {item.ordinal: item for item in self.requested}
        try:
            while left:
                taken = self._take(tuple(left.values()), epoch)
                for unit in taken.units:
                    for outcome in unit:
                        del left[outcome.requested.ordinal]
                    yield tuple(maker.result(outcome, self.order.last) for outcome in unit)
        finally:
            if left:
                self.host.finish.remote(self.number, "cut short")

    def _take(self, left: Sequence[Requested], epoch: int) -> Taken:
        try:
            taken: Taken = get(self.host.take.remote(self.number, _MOST_AT_ONCE, _WAIT_S), None)
        except ClusterError as error:
            if not isinstance(error.__cause__, RayActorError | RayTaskError):
                raise
            _log.warning("step %d: its host is gone, and its files say what is done: %s", self.number, error)
        else:
            return taken
        return Taken(self._in_units(self._recovered(left, epoch)), True)

    def _recovered(self, left: Sequence[Requested], epoch: int) -> list[Outcome]:
        try:
            return recovered_outcomes(self.paths, left, epoch=epoch)
        except GymRayError:  # the storage is not seen from here, or is damaged; each rollout still has its result
            return [lost_outcome(item, COLLECTOR_LOST) for item in left]

    def _in_units(self, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, ...]]:
        if not self.groups:
            return [(outcome,) for outcome in outcomes]
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in outcomes:
            groups.setdefault(outcome.requested.group, []).append(outcome)
        return [tuple(group) for group in groups.values()]

    def _read(self, outcome: Outcome) -> bytes:
        """Return a record from the storage, or from a host that sees the storage where this process does not."""
        if outcome.written is None:
            raise StorageError(f"{outcome.rollout_id}: it left no record")
        try:
            return read_inline_line(self.paths, outcome.written)
        except StorageError:
            line: bytes = get(self.host.record.remote(self.paths, outcome.written), None)
            return line


async def in_threads(items: Generator[_T]) -> AsyncIterator[_T]:
    """Yield what a generator that blocks yields, each in a thread; it is closed when the iteration ends."""
    try:
        while (item := await _in_thread(next, items, None)) is not None:
            yield item
    finally:
        await _in_thread(items.close)


async def _in_thread(call: Any, *arguments: Any) -> Any:
    """Await a blocking call; it is over when this returns, also when the caller is cancelled."""
    thread = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        raise
