"""Publish what a capture writer counts through Ray's own metrics, where Prometheus finds it."""

from __future__ import annotations

import asyncio
import logging

from ray.util.metrics import Counter, Histogram

from gym_ray.model_call_capture.telemetry import LAG_BOUNDS_S, LATENCY_BOUNDS_S, CaptureTelemetry, TelemetryBatch

__all__ = ["MetricsPublisher"]

_log = logging.getLogger(__name__)


class MetricsPublisher:
    """Drains one model server's telemetry every few seconds, and once more when it is closed.

    Ray's histograms take single values only, so they see at most as many between two drains as the telemetry keeps;
    ``gym_ray_model_capture_values_dropped_total`` says how many they did not see. Counters are exact.

    Args:
        telemetry: What to drain; nobody else may.
        server_name: The tag ``server`` of every metric.
        interval_s: Seconds between two drains.
    """

    def __init__(self, telemetry: CaptureTelemetry, server_name: str, *, interval_s: float = 5.0) -> None:
        self._telemetry, self._server, self._interval_s = telemetry, server_name, interval_s
        self._task: asyncio.Task[None] | None = None
        self._calls = self._counter("model_calls", "Model calls that ended.", "dialect", "status", "category")
        self._tokens = self._counter("model_call_tokens", "Tokens as reported.", "dialect", "direction")
        self._latency = self._histogram(
            "model_call_latency_seconds", "From a call to the end of its answer.", LATENCY_BOUNDS_S, "dialect"
        )
        self._lag = self._histogram(
            "model_capture_lag_seconds", "From the end of an answer to its durable record.", LAG_BOUNDS_S
        )
        self._bytes = self._counter("model_capture_bytes", "Bytes of durable records.")
        self._lost = self._counter(
            "model_capture_lost",
            "Calls without a record (failed, refused, withdrawn), and answers that did not wait for it (timed_out).",
            "reason",
        )
        self._dropped = self._counter("model_capture_values_dropped", "Values that the histograms did not see.")

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

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._drain()

    async def _drain(self) -> None:
        try:
            await asyncio.to_thread(self.publish, self._telemetry.drain())
        except Exception:  # noqa: BLE001 - boundary: metrics that cannot be published must not end a server
            _log.exception("%s: what was counted could not be published", self._server)

    def _counter(self, name: str, description: str, *tags: str) -> Counter:
        counter = Counter(f"gym_ray_{name}_total", description, ("server", *tags))
        counter.set_default_tags({"server": self._server})
        return counter

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...], *tags: str) -> Histogram:
        histogram = Histogram(f"gym_ray_{name}", description, list(bounds), ("server", *tags))
        histogram.set_default_tags({"server": self._server})
        return histogram
