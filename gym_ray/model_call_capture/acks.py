"""Brings outcomes from the commit threads to the tasks that wait for them, one wake-up of the event loop a batch."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["LoopAcks"]

_log = logging.getLogger(__name__)
KeyT = TypeVar("KeyT")


class LoopAcks(Generic[KeyT]):
    """The waiting tasks of one event loop.

    Args:
        loop: Their loop.
        timeout_s: How long a task waits at most.
        on_timeout: Told, on the loop, about a key whose task stopped waiting because of that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, on_timeout: Callable[[KeyT], None]) -> None:
        self._loop, self._timeout_s, self._on_timeout = loop, timeout_s, on_timeout
        self._waiting: dict[KeyT, tuple[asyncio.Future[None], float]] = {}  # oldest first: all wait equally long
        self._done: deque[KeyT] = deque()
        self._wake_up_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, key: KeyT) -> asyncio.Future[None]:
        """Return a future that ends with :meth:`deliver`, or after the timeout. Call on the loop, before submitting."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[key] = (future, self._loop.time() + self._timeout_s)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._expire)
        return future

    def drop(self, key: KeyT) -> None:
        """End the wait for a key without telling anybody. Call on the loop."""
        self._waiting.pop(key, None)

    def deliver(self, keys: Iterable[KeyT]) -> None:
        """End the wait for these keys; from any thread."""
        self._done.extend(keys)
        if self._wake_up_scheduled:
            return
        self._wake_up_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._release)
        except RuntimeError:
            _log.debug("the event loop has ended; nobody waits for these records any more")

    def _release(self) -> None:
        # The flag goes first: whoever appends after this line schedules a wake-up of its own.
        self._wake_up_scheduled = False
        while self._done:
            future, _ = self._waiting.pop(self._done.popleft(), (None, 0.0))
            if future is not None and not future.done():
                future.set_result(None)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting:
            key, (future, deadline) = next(iter(self._waiting.items()))
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._expire)
                return
            del self._waiting[key]
            self._on_timeout(key)
            if not future.done():
                future.set_result(None)
