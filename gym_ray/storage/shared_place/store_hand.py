"""One node's part of examining an object store: whole values only, no locks, no appends.

It judges nothing. Everything it makes has the run's prefix, which any node removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.shared_place.evidence import Alone, Change, PlaceFacts
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.watching import watch
from gym_ray.storage.store import SegmentStore

__all__ = ["StoreHand"]

_PREFIX = "gym-ray-doctor"
_BEFORE, _AFTER = b"before", b"after"
_ROUNDS = 3
_VALUE = bytes(16 * 1024)
_THERE_BEFORE = (Change.REPLACE, Change.REMOVE)
_T = TypeVar("_T")


class StoreHand:
    """Works in a store for one node.

    Args:
        store: The store; closed by :meth:`finish`.
        run: What this examination is called; part of a name.
        me: This node's number.
        calls: Where the time comes from.
    """

    def __init__(self, store: SegmentStore, run: str, me: int, calls: PlaceCalls | None = None) -> None:
        self._store, self._run, self._me = store, run, me
        self._calls = calls or PlaceCalls()
        self._made: set[str] = set()

    def begin(self, create: bool) -> PlaceFacts:
        """Find out whether the store answers, and can tell a free name from a taken one."""
        del create  # a store has no directories
        try:
            if not self._store.exclusive:
                return PlaceFacts(True, "two writers can both create one name: no create-if-absent")
        except StorageError as error:
            return PlaceFacts(False, str(error))
        return PlaceFacts(True)

    def work_alone(self) -> Alone:
        """Put, get, list, get a range of, and delete a value that no other node looks at."""
        name = self._name("alone", self._me)
        steps: dict[str, Callable[[], object]] = {
            "put": lambda: self._publish(name, _VALUE),
            "get": lambda: self._store.read(name),
            "get a range": lambda: self._store.read_range(name, 100, 100),
            "list": lambda: self._store.list(self._prefix),
            "delete": lambda: self._store.delete(name),
        }
        took: dict[str, list[float]] = {}
        try:
            for what in (what for _ in range(_ROUNDS) for what in steps):
                begun = time.perf_counter()
                answer = steps[what]()
                took.setdefault(what, []).append(time.perf_counter() - begun)
                if (what, answer != _VALUE) == ("get", True):
                    return Alone("a value that was put is another one when it is got")
        except StorageError as error:
            return Alone(str(error))
        return Alone("", "", {what: tuple(times) for what, times in took.items()})

    def prepare(self, others: Sequence[int]) -> None:
        """Lay down what will change.

        Raises:
            StorageError: It could not be done.
        """
        del others
        for change in _THERE_BEFORE:
            self._publish(self._name(change.name, self._me), _BEFORE)

    def look(self, others: Sequence[int], change: Change) -> None:
        """Look at what the others will change, so that what is kept of it on the way is old afterwards."""
        for other in others:
            self._is_seen(change, other)

    def change(self, change: Change) -> None:
        """Make a change, durable when it returns.

        Raises:
            StorageError: It could not be done.
        """
        name = self._name(change.name, self._me)
        if change is Change.REMOVE:
            self._store.delete(name)
        else:
            self._publish(name, self._identity(self._me) if change is Change.IDENTITY else _AFTER)

    def watch_visibility(self, change: Change, others: Sequence[int], patience_s: float) -> dict[int, float | None]:
        """Return after how many seconds each other node's change was seen here: 0.0 at once, None never."""
        return watch(others, lambda other: self._is_seen(change, other), patience_s)

    def _is_seen(self, change: Change, other: int) -> bool:
        name = self._name(change.name, other)
        if change is Change.LIST:
            return name in self._store.list(self._prefix)
        found = _found(lambda: self._store.read(name))
        if change is Change.REMOVE:
            return found is None
        return found == (self._identity(other) if change is Change.IDENTITY else _AFTER)

    def race(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Try to be the one who creates each name; return those that were got.

        Raises:
            StorageError: It could not be tried.
        """
        return {"create": [name for name in names if self._create(name)]}

    def _create(self, name: str) -> bool:
        full = f"{self._prefix}race-{name}"
        self._made.add(full)
        try:
            self._store.create(full, self._identity(self._me))
        except StorageExistsError:
            return False
        return True

    def clock(self) -> float:
        """Return this node's clock, unix seconds."""
        return self._calls.now()

    def sweep(self) -> None:
        """Remove everything of the run that this node made or that is listed.

        Raises:
            StorageError: Something is left.
        """
        for name in {*self._store.list(self._prefix), *self._made}:
            self._store.delete(name)
        self._made.clear()

    def finish(self) -> None:
        """Give up the store's connections."""
        self._store.close()

    @property
    def _prefix(self) -> str:
        return f"{_PREFIX}/{self._run}/"

    def _name(self, what: str, node: int) -> str:
        return f"{self._prefix}{what.lower()}-{node}"

    def _identity(self, node: int) -> bytes:
        return f"{self._run} {node}".encode()

    def _publish(self, name: str, data: bytes) -> None:
        self._made.add(name)
        self._store.publish(name, data)


def _found(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except StorageMissingError:
        return None
