"""Keeps marks of rollouts in memory until they are durable, and tries each again until it is.

An event loop cannot wait for the disk before it answers a call that may have lost tokens, and a full disk takes no
mark. Before a rollout is read, ask here whether all its marks are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

__all__ = ["LateMarks", "Mark"]

_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 30.0
_AT_ONCE = 16

Mark = tuple[str, str, str]
"""Rollout id, call id ("" for a rollout as a whole), reason ("" when there is none to tell)."""


class LateMarks:
    """Marks rollouts in the background. Belongs to one event loop: call everything from there.

    Args:
        mark: Makes one mark durable, or raises.
        retry_interval_s: Pause before marks that failed are tried again; it doubles, up to 30 s, while they fail.
    """

    def __init__(self, mark: Callable[[str, str, str], Awaitable[None]], *, retry_interval_s: float = 1.0) -> None:
        self._mark, self._retry_interval_s = mark, retry_interval_s
        self._pending: dict[Mark, None] = {}  # in the order they came
        self._untried: list[Mark] = []
        self._changed, self._progress = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, rollout_id: str, model_call_id: str = "", reason: str = "") -> None:
        """Accept a mark without waiting; a task of this object makes it durable.

        Raises:
            RuntimeError: No event loop runs here, or this is closed.
        """
        if self._closed:
            raise RuntimeError(f"{rollout_id}: a mark came after capture was closed")
        mark = (rollout_id, model_call_id, reason)
        if mark in self._pending:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="late-token-marks")
        self._pending[mark] = None
        self._untried.append(mark)
        self._changed.set()

    def drop(self, rollout_id: str) -> None:
        """Forget the marks of a rollout that begins anew; one that is being made may still appear."""
        for mark in [mark for mark in self._pending if mark[0] == rollout_id]:
            del self._pending[mark]
        self._untried = [mark for mark in self._untried if mark[0] != rollout_id]
        self._progress.set()

    def pending(self) -> frozenset[str]:
        """Return the rollouts with a mark that is not durable yet."""
        return frozenset(rollout_id for rollout_id, _, _ in self._pending)

    def of(self, rollout_id: str) -> list[Mark]:
        """Return the marks of a rollout that are not durable yet, in the order they came."""
        return [mark for mark in self._pending if mark[0] == rollout_id]

    async def settled(self, rollout_id: str, timeout_s: float) -> bool:
        """Wait until the rollout's marks are durable, ``timeout_s`` at most, and return whether they are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while rollout_id in self.pending():
                    self._progress.clear()
                    await self._progress.wait()
        return rollout_id not in self.pending()

    async def aclose(self, timeout_s: float) -> frozenset[str]:
        """Try every mark once more, ``timeout_s`` at most, and return the rollouts that are still not marked."""
        self._closed = True
        self._changed.set()
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._task, timeout_s)
        return self.pending()

    async def _run(self) -> None:
        """Try new marks at once and once; those that failed wait for the next round, however many new ones come."""
        now = asyncio.get_running_loop().time
        pause_s, round_at = self._retry_interval_s, 0.0
        while self._pending and not self._closed:
            untried, self._untried = self._untried, []
            await self._try(untried)
            if round_at == 0.0:
                round_at = now() + pause_s
            elif now() >= round_at:
                await self._try(list(self._pending))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                round_at = now() + pause_s
            if self._pending:
                await self._wait(round_at - now())
        await self._try(list(self._pending))

    async def _wait(self, timeout_s: float) -> None:
        if not self._untried and not self._closed:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(0.0, timeout_s))

    async def _try(self, marks: Iterable[Mark]) -> None:
        queue = list(marks)
        for start in range(0, len(queue), _AT_ONCE):
            await asyncio.gather(*map(self._try_one, queue[start : start + _AT_ONCE]))

    async def _try_one(self, mark: Mark) -> None:
        try:
            await self._mark(*mark)
        except Exception as error:  # noqa: BLE001 - boundary: a sink may raise anything, and the mark is tried again
            _log.warning("%s: token capture is not marked incomplete yet: %s", mark[0], error)
            return
        self._pending.pop(mark, None)
        self._progress.set()
