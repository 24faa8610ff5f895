"""What all publishers of metrics share: they drain counts into Ray's own metrics, where Prometheus finds them."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ray.util.metrics import Counter, Gauge, Histogram

__all__ = ["INTERVAL_S", "Publisher", "add"]

_log = logging.getLogger(__name__)
_Batch = TypeVar("_Batch")
INTERVAL_S = 5.0
"""Between two drains."""


class Publisher(ABC, Generic[_Batch]):
    """Drains the counts of one server or run every ``interval_s``, and once more when it is closed.

    Every metric has the tag ``tag`` with the value ``name``.
    """

    def __init__(self, name: str, interval_s: float = INTERVAL_S, *, tag: str = "server") -> None:
        self._name, self._tag, self._interval_s = name, tag, interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Publish what is left and stop; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            await self._drain()

    @abstractmethod
    def take(self) -> _Batch:
        """Return what is to be published; on the loop of what is counted, at once."""

    @abstractmethod
    def publish(self, batch: _Batch) -> None:
        """Publish one batch; on a thread."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._drain()

    async def _drain(self) -> None:
        try:
            await asyncio.to_thread(self.publish, self.take())
        except Exception:  # noqa: BLE001 - boundary: metrics that cannot be published must not end what they are of
            _log.exception("%s: what was counted could not be published", self._name)

    def counter(self, name: str, description: str, *tags: str) -> Counter:
        """Make a counter with these tags beside the one that every metric has."""
        counter = Counter(f"gym_ray_{name}_total", description, (self._tag, *tags))
        counter.set_default_tags({self._tag: self._name})
        return counter

    def histogram(self, name: str, description: str, bounds: tuple[float, ...], *tags: str) -> Histogram:
        """Make a histogram with these tags beside the one that every metric has."""
        histogram = Histogram(f"gym_ray_{name}", description, list(bounds), (self._tag, *tags))
        histogram.set_default_tags({self._tag: self._name})
        return histogram

    def gauge(self, name: str, description: str) -> Gauge:
        """Make a gauge with the one tag that every metric has."""
        gauge = Gauge(f"gym_ray_{name}", description, (self._tag,))
        gauge.set_default_tags({self._tag: self._name})
        return gauge


def add(counter: Counter, count: int, tags: dict[str, str]) -> None:
    """Add to a counter, if there is anything to add."""
    if count > 0:
        counter.inc(count, tags)
