"""Counts what happens in each turn of an event loop, for tests of code that spreads work over turns."""

from __future__ import annotations

import asyncio
from collections import Counter

__all__ = ["LoopTurns"]


class LoopTurns:
    """Numbers the turns of the running loop for a block, and keeps that loop busy.

    What is noted under one number happened within two turns that follow each other: the number changes somewhere in
    the middle of a turn.
    """

    def __init__(self) -> None:
        self._number = 0
        self._noted: dict[str, Counter[int]] = {}
        self._next: asyncio.Handle | None = None

    def __enter__(self) -> LoopTurns:
        self._count()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._next is not None
        self._next.cancel()

    def note(self, what: str) -> None:
        """Note that something happened now; call on the loop."""
        self._noted.setdefault(what, Counter())[self._number] += 1

    def total(self, what: str) -> int:
        """How often it happened."""
        return self._noted.get(what, Counter()).total()

    def most(self, what: str) -> int:
        """How often it happened in the fullest turn."""
        return max(self._noted.get(what, Counter()).values(), default=0)

    def _count(self) -> None:
        self._number += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)
