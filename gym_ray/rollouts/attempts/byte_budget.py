"""Bounds the bytes of rows in hand, so that memory depends on a setting and not on how large the rows are (D40)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["ByteBudget"]


class ByteBudget:
    """Lets holders in, in the order in which they ask, while the bytes of all of them fit.

    One that is larger than everything is let in when it is alone.

    Args:
        max_bytes: Bytes of all holders together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held_bytes = 0

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Hold ``size`` bytes of the budget for the block."""
        if self._waiting or not self._fits(size):
            await self._turn(size)
        else:
            self.held_bytes += size
        try:
            yield
        finally:
            self._give_back(size)

    async def _turn(self, size: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, future)
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._admit()
            else:  # it was let in and cancelled at the same moment
                self._give_back(size)
            raise

    def _fits(self, size: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size <= self._max_bytes

    def _give_back(self, size: int) -> None:
        self.held_bytes -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, future = self._waiting.popleft()
            self.held_bytes += size
            if not future.done():
                future.set_result(None)
