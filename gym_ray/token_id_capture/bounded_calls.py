"""Awaits foreign code (a sink, a source or a resolver) for a bounded time, so that it cannot hold up anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["BoundedCalls"]

_T = TypeVar("_T")


class BoundedCalls:
    """Awaits foreign coroutines for a bounded time; one that does not end in time is cancelled, and kept until it ends.

    Args:
        timeout_s: Longest wait for each; None waits without bound.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, call: Coroutine[Any, Any, _T], what: str) -> _T:
        """Return what ``call`` returns.

        Raises:
            TimeoutError: It took too long; it was cancelled, and may go on nevertheless.
            Exception: What ``call`` raises.
        """
        if self._timeout_s is None:
            return await call
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(f"{what} did not end within {self._timeout_s:g} s")
        return task.result()

    async def aclose(self, timeout_s: float) -> None:
        """Wait for calls that did not end in time, ``timeout_s`` at most."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has seen it, or was told that the call took too long
