"""A store whose listings are behind: what one host cannot show of network file systems and of some object stores."""

from __future__ import annotations

import threading

from gym_ray.storage.store import SegmentStore
from gym_ray.testing.watched_store import WatchedStore

__all__ = ["LaggingStore"]


class LaggingStore(WatchedStore):
    """A :class:`gym_ray.storage.store.SegmentStore` over another one, whose listings leave out the newest names.

    Everything else is as it is now: a name that is not listed can be read, and cannot be created again.

    Args:
        store: Where the values are.
        lag: How many of the newest names no listing shows.

    Attributes:
        lag: The same; 0 lets listings catch up.
    """

    def __init__(self, store: SegmentStore, lag: int = 1) -> None:
        super().__init__(store)
        self._noticing = threading.Lock()
        self._noticed: dict[str, None] = {}
        self.lag = lag

    def list(self, prefix: str = "") -> list[str]:
        """Return names without the newest ones; of those met together, the last in the alphabet are the newest."""
        with self._noticing:
            there = super().list()
            names = set(there)
            self._noticed = {name: None for name in (*self._noticed, *there) if name in names}
            shown = [*self._noticed][: max(0, len(self._noticed) - self.lag)]
        return sorted(name for name in shown if name.startswith(prefix))

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value."""
        super().publish(name, data)
        self._notice(name)

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name."""
        super().create(name, data)
        self._notice(name)

    def _notice(self, name: str) -> None:
        with self._noticing:
            self._noticed.setdefault(name)
