"""The actors of the benchmark ``scale``: the product's own, with an engine that answers at once, and watched."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.capture_cost_server import OneAnswerEngine
from benchmarks.measuring import memory_bytes
from benchmarks.stalls import Stalls
from gym_ray.actors.collector import CollectorHost
from gym_ray.actors.model_server import ModelServerHost
from gym_ray.model_server.engine import Engine

_EARLY = 1000
_LOOK_S = 0.010
"""Rare enough not to be counted among what the collector costs."""


class InstantModelServer(ModelServerHost):
    """A model server whose engine is in its own process and answers at once."""

    def _build_engine(self) -> Engine:
        return OneAnswerEngine()


class Nothing:
    """What a call costs that does nothing."""

    async def nothing(self) -> None:
        """Do nothing."""


class MeasuredCollector(CollectorHost):
    """A collector that says what its process used while it collected."""

    async def collect(self) -> dict[str, float]:
        """Run to the end, and return what that took."""
        early, finished = 0, 0
        cpu, begun = time.process_time(), time.monotonic()
        async with Stalls(_LOOK_S) as stalls:
            while await self.next_finished() is not None:
                finished += 1
                if finished == _EARLY:
                    early = memory_bytes("VmRSS")
        return {
            "finished": finished,
            "seconds": time.monotonic() - begun,
            "cpu_s": time.process_time() - cpu,
            "rss_early": early,
            "rss_late": memory_bytes("VmRSS"),
            "stall_ms": stalls.longest_ms,
            "busy_ms": stalls.busiest_ms,
        }

    async def idle(self, seconds: float) -> dict[str, float]:
        """Return what this process uses while it does nothing."""
        cpu = time.process_time()
        async with Stalls() as stalls:
            await asyncio.sleep(seconds)
        return {"cpu_s": time.process_time() - cpu, "stall_ms": stalls.longest_ms}

    async def call_nothing(self, actor: Any, count: int, at_once: int) -> float:
        """Return the processor seconds of one call of an actor that does nothing, of many under way at once."""
        left = iter(range(count))

        async def lane() -> None:
            for _ in left:
                await actor.nothing.remote()

        cpu = time.process_time()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        return (time.process_time() - cpu) / count
