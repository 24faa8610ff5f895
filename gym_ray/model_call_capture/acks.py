"""Brings outcomes from the commit threads to the tasks that wait for them, and ends waits that last too long.

One wake-up of the event loop serves a batch of outcomes, and one timer serves all waits: for each task its own would
cost the loop more than the rest of a call's bookkeeping. A large batch is spread over turns of the loop: the tasks that
a turn wakes all run in the next one, before anything else can.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["Deadlines", "LoopAcks"]

_log = logging.getLogger(__name__)
KeyT = TypeVar("KeyT")

_A_TURN = 16
"""Waits that end in one turn of a loop."""


class Deadlines(Generic[KeyT]):
    """What should happen on one event loop within a fixed time. Call everything on the loop.

    Keys that expire together are told a few in each turn of the loop.

    Args:
        loop: The loop.
        timeout_s: How long each has.
        on_expired: Told about a key that was not dropped in time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, on_expired: Callable[[KeyT], None]) -> None:
        self._loop, self._timeout_s, self._on_expired = loop, timeout_s, on_expired
        self._deadlines: dict[KeyT, float] = {}  # oldest first: all have equally long
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: KeyT) -> None:
        """Let the time of a key begin."""
        self._deadlines[key] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._expire)

    def drop(self, key: KeyT) -> None:
        """Forget a key; unknown ones are fine."""
        self._deadlines.pop(key, None)

    def _expire(self) -> None:
        self._timer = None
        now, left = self._loop.time(), _A_TURN
        while self._deadlines:
            key, deadline = next(iter(self._deadlines.items()))
            if deadline > now or not left:
                self._timer = self._loop.call_at(deadline, self._expire)  # one that is over is for the next turn
                return
            del self._deadlines[key]
            left -= 1
            self._on_expired(key)


class LoopAcks(Generic[KeyT]):
    """The waiting tasks of one event loop.

    Args:
        loop: Their loop.
        timeout_s: How long a task waits at most.
        on_timeout: Told, on the loop, about a key whose task stopped waiting because of that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, on_timeout: Callable[[KeyT], None]) -> None:
        self._loop, self._on_timeout = loop, on_timeout
        self._waiting: dict[KeyT, asyncio.Future[None]] = {}
        self._deadlines: Deadlines[KeyT] = Deadlines(loop, timeout_s, self._give_up)
        self._done: deque[KeyT] = deque()
        self._wake_up_scheduled = False

    def expect(self, key: KeyT) -> asyncio.Future[None]:
        """Return a future that ends with :meth:`deliver`, or after the timeout. Call on the loop, before submitting."""
        future = self._waiting[key] = self._loop.create_future()
        self._deadlines.set(key)
        return future

    def deliver(self, keys: Iterable[KeyT]) -> None:
        """End the wait for these keys, a few in each turn of the loop; from any thread."""
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
        for _ in range(min(len(self._done), _A_TURN)):
            key = self._done.popleft()
            self._deadlines.drop(key)
            self._end_wait(key)
        if self._done and not self._wake_up_scheduled:
            self._wake_up_scheduled = True
            self._loop.call_soon(self._release)

    def _give_up(self, key: KeyT) -> None:
        self._on_timeout(key)
        self._end_wait(key)

    def _end_wait(self, key: KeyT) -> None:
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)
