"""Waiting in a test for what has no event: on another thread, in another process, on disk, or in a counter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], bool], *, timeout_s: float = 30.0, pause_s: float = 0.005) -> None:
    """Return once ``condition`` holds; other tasks run meanwhile.

    Args:
        condition: Asked again and again.
        timeout_s: How long it may take.
        pause_s: Pause between two questions; 0 only lets other tasks run.

    Raises:
        TimeoutError: It did not come to hold in time.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(pause_s)
