"""Publish what a model server counts: its calls, the tokens it captured, and what became of those of workers."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ray.actors.publisher import INTERVAL_S, Publisher, add
from gym_ray.model_call_capture.exchanges.telemetry import (
    LAG_BOUNDS_S,
    LATENCY_BOUNDS_S,
    CaptureTelemetry,
    TelemetryBatch,
)
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.capturing.capture_health import CaptureCounts
from gym_ray.token_id_capture.external_staging import StagedCallCounts

__all__ = ["MetricsPublisher", "StagingMetricsPublisher", "TokenMetricsPublisher"]


class MetricsPublisher(Publisher[TelemetryBatch]):
    """Publishes what the capture of model calls counts.

    Ray's histograms take single values only, so they see at most as many between two drains as the telemetry keeps;
    ``gym_ray_model_capture_values_dropped_total`` says how many they did not see. Counters are exact.

    Args:
        telemetry: What to drain; nobody else may.
        server_name: The tag ``server`` of every metric.
        interval_s: Seconds between two drains.
    """

    def __init__(self, telemetry: CaptureTelemetry, server_name: str, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(server_name, interval_s)
        self._telemetry = telemetry
        self._calls = self.counter("model_calls", "Model calls that ended.", "dialect", "status", "category")
        self._tokens = self.counter("model_call_tokens", "Tokens as reported.", "dialect", "direction")
        self._latency = self.histogram(
            "model_call_latency_seconds", "From a call to the end of its answer.", LATENCY_BOUNDS_S, "dialect"
        )
        self._lag = self.histogram(
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

    def __init__(self, tokens: TokenCapture, server_name: str, *, interval_s: float = INTERVAL_S) -> None:
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

    def __init__(self, counts: StagedCallCounts, server_name: str, *, interval_s: float = INTERVAL_S) -> None:
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
