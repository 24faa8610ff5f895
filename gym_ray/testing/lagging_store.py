"""A store whose listings are behind: what one host cannot show of network file systems and of some object stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gym_ray.storage.store import SegmentStore
from gym_ray.storage.streams import StreamedValue

__all__ = ["LaggingStore"]


class LaggingStore:
    """A :class:`gym_ray.storage.store.SegmentStore` over another one, whose listings leave out the newest names.

    Everything else is as it is now: a name that is not listed can be read, and cannot be created again.

    Args:
        store: Where the values are.
        lag: How many of the newest names no listing shows.

    Attributes:
        lag: The same; 0 lets listings catch up.
    """

    def __init__(self, store: SegmentStore, lag: int = 1) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._noticed: dict[str, None] = {}
        self.lag = lag

    @property
    def place(self) -> str:
        """Where the values are."""
        return self._store.place

    @property
    def exclusive(self) -> bool:
        """Whether the store below is."""
        return self._store.exclusive

    def list(self, prefix: str = "") -> list[str]:
        """Return names without the newest ones; of those met together, the last in the alphabet are the newest."""
        with self._lock:
            there = self._store.list()
            names = set(there)
            self._noticed = {name: None for name in (*self._noticed, *there) if name in names}
            shown = [*self._noticed][: max(0, len(self._noticed) - self.lag)]
        return sorted(name for name in shown if name.startswith(prefix))

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value."""
        self._store.publish(name, data)
        self._notice(name)

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name."""
        self._store.create(name, data)
        self._notice(name)

    def _notice(self, name: str) -> None:
        with self._lock:
            self._noticed.setdefault(name)

    def stream(self, name: str) -> StreamedValue:
        """Begin a value."""
        return self._store.stream(name)

    def read(self, name: str) -> bytes:
        """Return a value."""
        return self._store.read(name)

    def size(self, name: str) -> int:
        """Return the size of a value."""
        return self._store.size(name)

    def exists(self, name: str) -> bool:
        """Return whether a value has this name now."""
        return self._store.exists(name)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a value."""
        return self._store.read_range(name, start, length)

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Return the end of a value and its size."""
        return self._store.read_tail(name, length)

    def delete(self, name: str) -> None:
        """Remove a value; no listing shows it any more."""
        self._store.delete(name)

    def sync_dir(self, name: str = "") -> None:
        """Do what the store below does."""
        self._store.sync_dir(name)

    def sweep_temporary(self, older_than_s: float) -> Sequence[str]:
        """Remove what killed writers left."""
        return self._store.sweep_temporary(older_than_s)

    def close(self) -> None:
        """Give up connections."""
        self._store.close()
