"""A store that says what was asked of it, shows listings as late as a test wants, and lets a test step in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.storage.store import SegmentStore

__all__ = ["StoreRequest", "WatchedStore"]


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """One request.

    Attributes:
        method: Name of the method.
        name: What it was asked about.
        nbytes: How many bytes it returned.
    """

    method: str
    name: str
    nbytes: int


class WatchedStore:
    """A :class:`~gym_ray.storage.store.SegmentStore` in front of another one.

    Args:
        store: Where everything really is.

    Attributes:
        requests: What was asked, in the order of the answers.
        hides: Tells names that no listing shows.
        before: Method name to what is called, with the name, before the request is passed on.
        after: Method name to what is called, with the name, before the answer is returned.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.requests: list[StoreRequest] = []
        self.hides: Callable[[str], bool] = lambda _: False
        self.before: dict[str, Callable[[str], object]] = {}
        self.after: dict[str, Callable[[str], object]] = {}

    @property
    def place(self) -> str:
        """Place of the store behind it."""
        return self._store.place

    @property
    def exclusive(self) -> bool:
        """Whether names can be created exclusively behind it."""
        return self._store.exclusive

    def bytes_read(self, suffix: str = "") -> int:
        """Return how many bytes of names with this end were read."""
        return sum(request.nbytes for request in self.requests if request.name.endswith(suffix))

    def publish(self, name: str, data: bytes) -> None:
        """Pass it on."""
        self._asked("publish", name, data)

    def create(self, name: str, data: bytes) -> None:
        """Pass it on."""
        self._asked("create", name, data)

    def list(self, prefix: str = "") -> list[str]:
        """Return what is not hidden."""
        found: list[str] = self._asked("list", prefix)
        return [name for name in found if not self.hides(name)]

    def read(self, name: str) -> bytes:
        """Pass it on."""
        data: bytes = self._asked("read", name)
        return data

    def delete(self, name: str) -> None:
        """Pass it on."""
        self._asked("delete", name)

    def sync_dir(self, name: str = "") -> None:
        """Pass it on."""
        self._asked("sync_dir", name)

    def stream(self, name: str) -> Any:
        """Pass it on."""
        return self._asked("stream", name)

    def size(self, name: str) -> int:
        """Pass it on."""
        size: int = self._asked("size", name)
        return size

    def exists(self, name: str) -> bool:
        """Pass it on; hidden names are there all the same."""
        is_there: bool = self._asked("exists", name)
        return is_there

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Pass it on."""
        data: bytes = self._asked("read_range", name, start, length)
        return data

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Pass it on."""
        tail: tuple[bytes, int] = self._asked("read_tail", name, length)
        return tail

    def sweep_temporary(self, older_than_s: float) -> Sequence[str]:
        """Pass it on."""
        return self._store.sweep_temporary(older_than_s)

    def close(self) -> None:
        """Leave the store behind it open."""

    def _asked(self, method: str, name: str, *arguments: Any) -> Any:
        if method in self.before:
            self.before[method](name)
        answer = getattr(self._store, method)(name, *arguments)
        data = answer[0] if isinstance(answer, tuple) else answer
        with self._lock:
            self.requests.append(StoreRequest(method, name, len(data) if isinstance(data, bytes) else 0))
        if method in self.after:
            self.after[method](name)
        return answer
