"""Keeps one turn of an event loop short when many tasks become ready at the same moment (D159).

An event loop runs everything that is ready before it looks at a timer or a socket again. Five hundred rollouts or model
calls that end together are five hundred small steps, and a long pause for everybody else. Here they queue, and a few
pass each turn.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Pace"]


class Pace:
    """Lets a few tasks pass in each turn of the event loop, in the order in which they came.

    Args:
        a_turn: Tasks that pass in one turn; at least 1.
    """

    def __init__(self, a_turn: int = 16) -> None:
        if a_turn < 1:
            raise ValueError(f"a_turn: {a_turn}; give a whole number from 1 up")
        self._a_turn = self._left = a_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counting = False

    async def turn(self) -> None:
        """Return when the caller may take its next step: at once, or in a later turn when this one is full."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next_turn)
        if self._left and not self._waiting:
            self._left -= 1
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        await future

    def _next_turn(self) -> None:
        self._left = self._a_turn
        while self._waiting and self._left:
            future = self._waiting.popleft()
            if not future.done():  # one that was cancelled takes nobody's place
                future.set_result(None)
                self._left -= 1
        self._counting = self._left < self._a_turn
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next_turn)
