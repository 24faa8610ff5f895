"""Tasks that wait for something to do, and may be woken from plain functions of the same event loop.

A condition variable would need its lock, and so a task, to wake anybody; those who pause and resume a run have neither.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Waiters"]


class Waiters:
    """Whoever waits, in the order in which they came. Being woken says only: look again."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when woken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # woken and cancelled at the same moment: the call is for somebody else now
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake the one who has waited longest."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everybody who waits now."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
