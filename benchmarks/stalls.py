"""How long an event loop stands still: a control loop that wants to run every millisecond notes how late it was."""

from __future__ import annotations

import asyncio
import time

_PERIOD_S = 0.001


class Stalls:
    """Watches the running loop for a block.

    Attributes:
        longest_ms: The longest time by which the control loop came too late.
    """

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def __aenter__(self) -> Stalls:
        self._watch = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(_PERIOD_S)
            late_s = time.perf_counter() - begun - _PERIOD_S
            self.longest_ms = max(self.longest_ms, late_s * 1000)
