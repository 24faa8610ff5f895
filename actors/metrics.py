"""Publish what servers and runs count through Ray's own metrics, where Prometheus finds it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from ray.util.metrics import Counter, Gauge, Histogram

from gym_ray.model_call_capture.exchanges.telemetry import (
    LAG_BOUNDS_S,
    LATENCY_BOUNDS_S,
    CaptureTelemetry,
    TelemetryBatch,
)
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.capturing.capture_health import CaptureCounts
from gym_ray.token_id_capture.external_staging import StagedCallCounts

__all__ = ["MetricsPublisher", "Publisher", "StagingMetricsPublisher", "TokenMetricsPublisher", "add"]

_log = logging.getLogger(__name__)
_Batch = TypeVar("_Batch")
_INTERVAL_S = 5.0


class Publisher(ABC, Generic[_Batch]):
    """Drains the counts of one server or run every ``interval_s``, and once more when it is closed.

    Every metric has the tag ``tag`` with the value ``name``.
    """

    def __init__(self, name: str, interval_s: float = _INTERVAL_S, *, tag: str = "server") -> None:
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

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...], *tags: str) -> Histogram:
        histogram = Histogram(f"gym_ray_{name}", description, list(bounds), (self._tag, *tags))
        histogram.set_default_tags({self._tag: self._name})
        return histogram

    def gauge(self, name: str, description: str) -> Gauge:
        """Make a gauge with the one tag that every metric has."""
        gauge = Gauge(f"gym_ray_{name}", description, (self._tag,))
        gauge.set_default_tags({self._tag: self._name})
        return gauge


class MetricsPublisher(Publisher[TelemetryBatch]):
    """Publishes what the capture of model calls counts.

    Ray's histograms take single values only, so they see at most as many between two drains as the telemetry keeps;
    ``gym_ray_model_capture_values_dropped_total`` says how many they did not see. Counters are exact.

    Args:
        telemetry: What to drain; nobody else may.
        server_name: The tag ``server`` of every metric.
        interval_s: Seconds between two drains.
    """

    def __init__(self, telemetry: CaptureTelemetry, server_name: str, *, interval_s: float = _INTERVAL_S) -> None:
        super().__init__(server_name, interval_s)
        self._telemetry = telemetry
        self._calls = self.counter("model_calls", "Model calls that ended.", "dialect", "status", "category")
        self._tokens = self.counter("model_call_tokens", "Tokens as reported.", "dialect", "direction")
        self._latency = self._histogram(
            "model_call_latency_seconds", "From a call to the end of its answer.", LATENCY_BOUNDS_S, "dialect"
        )
        self._lag = self._histogram(
            "model_capture_lag_seconds", "From the end of an answer to its durable record.", LAG_BOUNDS_S
        )
        self._bytes = self.counter("model_capture_bytes", "Bytes of durable records.")
        self._lost = self.counter(
            "model_capture_lost",
            "Calls without a record (failed, refused, withdrawn), and answers that did not wait for it (timed_out).",
            "reason",
        )
        self._dropped = self.counter("model_capture_values_dropped", "Values that the histograms did not see.")

    def take(self) -> TelemetryBatch:
        """Return what happened since the last batch."""
        return self._telemetry.drain()

    def publish(self, batch: TelemetryBatch) -> None:
        """Publish one batch; blocks for as long as its single values take, some microseconds each."""
        for (dialect, status, category), count in batch.calls.items():
            self._calls.inc(count, {"dialect": dialect, "status": status, "category": category})
        for (dialect, direction), count in batch.tokens.items():
            self._tokens.inc(count, {"dialect": dialect, "direction": direction})
        for dialect, seconds in batch.latency_values:
            self._latency.observe(seconds, {"dialect": dialect})
        for seconds in batch.lag_values:
            self._lag.observe(seconds)
        for reason in ("failed", "timed_out", "refused", "withdrawn"):
            if count := getattr(batch, reason):
                self._lost.inc(count, {"reason": reason})
        if batch.bytes_written:
            self._bytes.inc(batch.bytes_written)
        if batch.dropped_values:
            self._dropped.inc(batch.dropped_values)


class TokenMetricsPublisher(Publisher[CaptureCounts]):
    """Publishes what the capture of training tokens counts, and how many rollouts wait for their mark to be durable.

    Args:
        tokens: What to read.
        server_name: The tag ``server`` of every metric.
        interval_s: Seconds between two looks.
    """

    def __init__(self, tokens: TokenCapture, server_name: str, *, interval_s: float = _INTERVAL_S) -> None:
        super().__init__(server_name, interval_s)
        self._capture, self._published = tokens, tokens.health.counts()
        self._resolutions = self.counter("token_resolutions", "Calls by what was decided about their parent.", "status")
        self._failures = self.counter("token_capture_failures", "Calls whose tokens were lost to a fault in capture.")
        self._untrainable = self.counter("token_untrainable_calls", "Calls answered without usable tokens.", "reason")
        self._prefix = self.counter(
            "token_prefix_calls",
            "Calls looked at (total), with a known parent (eligible), whose engine used its tokens (supplied).",
            "stage",
        )
        self._pending = self.gauge("token_marks_pending", "Rollouts that lost tokens and are not marked yet.")

    def take(self) -> CaptureCounts:
        """Return the counts, and set the number of marks that wait."""
        self._pending.set(len(self._capture.unmarked()))
        return self._capture.health.counts()

    def publish(self, batch: CaptureCounts) -> None:
        """Publish what was added since the last batch."""
        before, self._published = self._published, batch
        for status, count in batch.resolutions.items():
            add(self._resolutions, count - before.resolutions.get(status, 0), {"status": status})
        add(self._failures, batch.failures - before.failures, {})
        for reason, count in batch.untrainable.items():
            add(self._untrainable, count - before.untrainable.get(reason, 0), {"reason": reason})
        for stage in ("total", "eligible", "supplied"):
            add(self._prefix, getattr(batch.prefix, stage) - getattr(before.prefix, stage), {"stage": stage})


class StagingMetricsPublisher(Publisher[Mapping[tuple[str, str], int]]):
    """Publishes how the calls of a server ended whose tokens the workers keep (C348)."""

    def __init__(self, counts: StagedCallCounts, server_name: str, *, interval_s: float = _INTERVAL_S) -> None:
        super().__init__(server_name, interval_s)
        self._counts, self._published = counts, counts.counts()
        self._calls = self.counter("staged_calls", "Captured calls, by what became of their tokens.", "mode", "outcome")

    def take(self) -> Mapping[tuple[str, str], int]:
        """Return the counts."""
        return self._counts.counts()

    def publish(self, batch: Mapping[tuple[str, str], int]) -> None:
        """Publish what was added since the last batch."""
        before, self._published = self._published, batch
        for (mode, outcome), count in batch.items():
            add(self._calls, count - before.get((mode, outcome), 0), {"mode": mode, "outcome": outcome})


def add(counter: Counter, count: int, tags: dict[str, str]) -> None:
    """Add to a counter, if there is anything to add."""
    if count > 0:
        counter.inc(count, tags)
