"""Keeps the work on large bodies off the event loop, so that other requests are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["off_loop"]

_T = TypeVar("_T")
_OFF_LOOP_BYTES: Final = 128 * 1024


async def off_loop(size_bytes: int, work: Callable[[], _T]) -> _T:
    """Return what ``work`` returns; it runs on a thread if it has many bytes to go through, else right here."""
    return work() if size_bytes <= _OFF_LOOP_BYTES else await asyncio.to_thread(work)
