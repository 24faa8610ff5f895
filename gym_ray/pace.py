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

    async def turn(self) -> None:
        """Return when the caller may take its next step: at once, or in a later turn when this one is full."""
        if self._left:
            self._spend()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _spend(self) -> None:
        """Let one pass. Only the last place calls for a next turn: a loop with little to do is not kept awake."""
        self._left -= 1
        if not self._left:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left = self._a_turn
        while self._waiting and self._left:
            future = self._waiting.popleft()
            if not future.done():  # one that was cancelled takes nobody's place
                future.set_result(None)
                self._spend()
