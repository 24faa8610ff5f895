"""How long an event loop stands still: a control loop that wants to run often notes how late it was."""

from __future__ import annotations

import asyncio
import time


class Stalls:
    """Watches the running loop for a block.

    Args:
        period_s: How often the control loop wants to run. Each time costs the process some 20 microseconds.

    Attributes:
        longest_ms: The longest time by which the control loop came too late, whatever the loop waited for: its own
            work, another thread of the process, or a processor that others were using.
        busiest_ms: The most processor time that the loop's thread used between two looks: its own work alone.
    """

    def __init__(self, period_s: float = 0.001) -> None:
        self.longest_ms = self.busiest_ms = 0.0
        self._period_s = period_s

    async def __aenter__(self) -> Stalls:
        self._watch = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            begun, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(self._period_s)
            late_s = time.perf_counter() - begun - self._period_s
            self.longest_ms = max(self.longest_ms, late_s * 1000)
            self.busiest_ms = max(self.busiest_ms, (time.thread_time() - used) * 1000)
