"""Work on large bodies beside the event loop: others are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["aside"]

_T = TypeVar("_T")
_OFF_LOOP_BYTES: Final = 128 * 1024


async def aside(size_bytes: int, work: Callable[[], _T]) -> _T:
    """Return what ``work`` returns, done on a thread where the bytes that it goes through are many."""
    return work() if size_bytes <= _OFF_LOOP_BYTES else await asyncio.to_thread(work)
