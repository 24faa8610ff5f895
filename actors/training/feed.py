"""The trainer's end of one step: takes deliveries from the host, and stands in for it when its process is gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pyarrow as pa
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from gym_ray.actors.calls import get
from gym_ray.errors import GymRayError, StorageError
from gym_ray.rollouts.run_files.parts_files import read_inline_line
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.outcomes import (
    COLLECTOR_FAILED,
    COLLECTOR_LOST,
    Outcome,
    Requested,
    TokenRows,
    lost_outcome,
)
from gym_ray.rollouts.training.recovered import recovered_outcomes
from gym_ray.rollouts.training.results import ResultMaker, RolloutResult
from gym_ray.rollouts.training.step import Taken
from gym_ray.rollouts.training.weight_versions import Spoken

__all__ = ["StepFeed", "fetched", "in_threads"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 64
_FETCH_S = 60.0
_WAIT_S = 2.0
"""How long one question to the host waits, so that whoever asks can be interrupted in between."""
_CUT_OFF_S = 60.0
"""How long a host may be away; one that lost its process is back before that, and says that it forgot the step."""
_LOOK_S = 0.2


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
        now: Returns the weight version that was said last.
        epoch: Epoch of the weights when it began.
        groups: Its deliveries are whole groups.
        stop: Set by whoever wants no more of it.
    """

    host: Any
    number: int
    paths: RunPaths
    requested: tuple[Requested, ...]
    trained: frozenset[str]
    max_staleness: int | None
    now: Callable[[], Spoken | None]
    epoch: int
    groups: bool
    stop: threading.Event

    def units(self) -> Iterator[tuple[RolloutResult, ...]]:
        """Yield deliveries until every rollout was delivered once; leaving early cancels the rest of the step."""
        maker = ResultMaker(self.trained, self.max_staleness, fetched, self._read)
        left = {item.ordinal: item for item in self.requested}
        try:
            while left and not self.stop.is_set():
                taken = self._take(left)
                for unit in taken.units:
                    for outcome in unit:
                        del left[outcome.requested.ordinal]
                    yield tuple(maker.result(outcome, self.now()) for outcome in unit)
        finally:
            if left:
                self._finish("cut short")

    def _finish(self, state: str) -> None:
        with suppress(RayError):  # a host that is gone, or a Ray that was ended, runs nothing
            self.host.finish.remote(self.number, state)

    def _take(self, left: Mapping[int, Requested]) -> Taken:
        """Return what the host has, or what the files say once it has nothing any more."""
        until = time.monotonic() + _CUT_OFF_S
        delivered = len(self.requested) - len(left)
        while True:
            try:
                asked = self.host.take.remote(self.number, _MOST_AT_ONCE, _WAIT_S, delivered)
                taken: Taken | None = get(asked, None)
            except GymRayError as error:
                match error.__cause__:
                    case ActorUnavailableError() if time.monotonic() < until:
                        time.sleep(_LOOK_S)  # it starts again, or is cut off for a moment; then it says what it knows
                    case RayActorError():
                        return self._without_host(left, str(error))
                    case RayTaskError():
                        return self._failed(left)
                    case _:
                        raise
            else:
                return self._without_host(left, "its process is a new one") if taken is None else taken

    def _without_host(self, left: Mapping[int, Requested], why: str) -> Taken:
        _log.warning("step %d: its host is gone, and its files say what is done: %s", self.number, why)
        return self._recovered(left, COLLECTOR_LOST)

    def _failed(self, left: Mapping[int, Requested]) -> Taken:
        _log.exception(
            "step %d: its host lives and failed, which is a fault in it and no loss; please report it", self.number
        )
        self._finish("failed")
        return self._recovered(left, COLLECTOR_FAILED)

    def _recovered(self, left: Mapping[int, Requested], reason: str) -> Taken:
        missing = tuple(left.values())
        try:
            found = recovered_outcomes(self.paths, missing, reason, epoch=self.epoch)
        except GymRayError as error:  # the storage is not seen from here, or is damaged
            _log.warning("step %d: its files cannot be read either: %s", self.number, error)
            found = [lost_outcome(item, reason) for item in missing]
        return Taken(self._in_units(found), True)

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


def fetched(rows: object) -> pa.Table | None:
    """Return a table out of the object store, its buffers where the store maps them; None when it is lost there."""
    if not isinstance(rows, TokenRows):
        return None
    try:
        table = ray.get(cast("Any", rows.reference), timeout=_FETCH_S)
    except RayError:  # its owner or its node is gone, or it cannot be moved here in time: the record holds the same
        return None
    return table if isinstance(table, pa.Table) else None


async def in_threads(items: Generator[_T], stop: threading.Event) -> AsyncIterator[_T]:
    """Yield what a generator that blocks yields, each in a thread; it is closed when the iteration ends.

    Args:
        items: The generator.
        stop: Set when the iteration is cancelled; the generator ends soon after it.
    """
    try:
        while (item := await _in_thread(stop, next, items, None)) is not None:
            yield item
    finally:
        await _in_thread(stop, items.close)


async def _in_thread(stop: threading.Event, call: Any, *arguments: Any) -> Any:
    """Await a blocking call; it is over when this returns, also when the caller is cancelled."""
    thread = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([thread])
        thread.exception()  # taken: whoever cancelled wants no more of it
        raise
