"""Counts what a capture writer does, for whoever watches a run: calls, tokens, latency, lag, bytes, and what was lost.

Cheap enough for every call, on the commit threads, under one lock a batch. Labels are a few fixed words each (dialect,
status class, category): no id, no text of a client or an engine ever becomes one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gym_ray.dialects.usage import token_counts

__all__ = [
    "LAG_BOUNDS_S",
    "LATENCY_BOUNDS_S",
    "CallOutcome",
    "CaptureCounts",
    "CaptureTelemetry",
    "Histogram",
    "TelemetryBatch",
    "outcome_of",
]

LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 600.0)
LAG_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

_STATUS_CLASSES = ("other", "1xx", "2xx", "3xx", "4xx", "5xx")
_NO_STATUS = "none"
_SUCCESS = "ok"


@dataclass(slots=True)
class CaptureCounts:
    """What a writer did since it started.

    Attributes:
        recorded: Exchanges made durable.
        failed: Exchanges that could not be made durable.
        timed_out: Answers released because their record took longer than ``capture_timeout_s``.
        refused: Calls served but not captured, because their id cannot be a file name.
        withdrawn: Exchanges that ended after their rollout began anew, and were therefore not recorded.
    """

    recorded: int = 0
    failed: int = 0
    timed_out: int = 0
    refused: int = 0
    withdrawn: int = 0


class CallOutcome(NamedTuple):
    """What is counted of one call.

    Attributes:
        dialect: ``responses``, ``chat`` or ``messages``.
        status_class: ``2xx`` and so on; ``none`` when nothing was sent and the failure carried no status.
        category: ``error_category``; ``ok`` for success.
        tokens_in: Prompt tokens, None when unknown; so is ``tokens_out``.
        latency_s: Seconds the handler took.
        completed_at: When the answer was complete, UNIX seconds.
    """

    dialect: str
    status_class: str
    category: str
    tokens_in: int | None
    tokens_out: int | None
    latency_s: float
    completed_at: float


def outcome_of(record: Mapping[str, Any]) -> CallOutcome:
    """Return what is counted of a raw record; never raises for one that was built here."""
    status, response = record["status_code"], record["response"]
    published = record.get("usage", ...)
    counts = token_counts((response or {}).get("usage") if published is ... else published)
    return CallOutcome(
        record["dialect"],
        _NO_STATUS if status is None else _STATUS_CLASSES[status // 100 if 100 <= status < 600 else 0],
        record["error_category"] or _SUCCESS,
        counts.tokens_in,
        counts.tokens_out,
        record["latency_ms"] / 1000,
        record["completed_at"],
    )


@dataclass(slots=True)
class Histogram:
    """How often values fell where.

    Attributes:
        bounds: Upper bounds, ascending, each belonging to its own bucket.
        counts: One more than bounds: the last is of values above them all.
        total: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class TelemetryBatch:
    """What happened between two drains; plain data that pickles, owned by whoever drained it.

    Attributes:
        calls: Calls by (dialect, status class, category).
        tokens: Known tokens by (dialect, ``in`` or ``out``).
        latency: Seconds that handlers took, by dialect; every call is in it.
        lag: Seconds from a complete answer to its durable record.
        latency_values: The values of ``latency`` as (dialect, seconds), as many as were kept; so is ``lag_values``.
        dropped_values: Values that were not kept; the histograms have them.
        bytes_written: Bytes of durable records.
        failed: Calls without a durable record, whose rollouts were marked.
        timed_out: Answers released before their record was durable.
        refused: Calls served but not capturable (A16).
        withdrawn: Calls of attempts that were over.
    """

    calls: dict[tuple[str, str, str], int] = field(default_factory=dict)
    tokens: dict[tuple[str, str], int] = field(default_factory=dict)
    latency: dict[str, Histogram] = field(default_factory=dict)
    lag: Histogram = field(default_factory=lambda: Histogram(LAG_BOUNDS_S))
    latency_values: list[tuple[str, float]] = field(default_factory=list)
    lag_values: list[float] = field(default_factory=list)
    dropped_values: int = 0
    bytes_written: int = 0
    failed: int = 0
    timed_out: int = 0
    refused: int = 0
    withdrawn: int = 0


class CaptureTelemetry:
    """Counts for one writer; safe for any number of threads.

    Args:
        max_values: Single latencies, and single lags, kept between two drains.
    """

    def __init__(self, max_values: int = 10_000) -> None:
        self._max_values = max_values
        self._lock = threading.Lock()
        self._batch = TelemetryBatch()

    def record(self, calls: Iterable[tuple[CallOutcome | None, int]], *, failed: int = 0, withdrawn: int = 0) -> None:
        """Count calls that have their outcome.

        Args:
            calls: What is known of each call, None when it could not even be encoded, and the bytes of its durable
                record, 0 when there is none.
            failed: How many of them lost their record.
            withdrawn: How many of them belonged to an attempt that was over.
        """
        now = time.time()
        with self._lock:
            batch = self._batch
            batch.failed += failed
            batch.withdrawn += withdrawn
            for outcome, length in calls:
                if outcome is not None:
                    self._count(batch, outcome)
                    if length:
                        batch.bytes_written += length
                        self._count_lag(batch, max(0.0, now - outcome.completed_at))

    def count(self, *, refused: int = 0, timed_out: int = 0) -> None:
        """Count calls that were served without a record, and answers that did not wait for theirs."""
        with self._lock:
            self._batch.refused += refused
            self._batch.timed_out += timed_out

    def drain(self) -> TelemetryBatch:
        """Return what happened since the last drain, and begin anew."""
        fresh = TelemetryBatch()
        with self._lock:
            batch, self._batch = self._batch, fresh
        return batch

    def _count(self, batch: TelemetryBatch, outcome: CallOutcome) -> None:
        dialect, status_class, category, tokens_in, tokens_out, latency_s, _ = outcome
        key = (dialect, status_class, category)
        batch.calls[key] = batch.calls.get(key, 0) + 1
        tokens = batch.tokens
        if tokens_in:
            tokens[dialect, "in"] = tokens.get((dialect, "in"), 0) + tokens_in
        if tokens_out:
            tokens[dialect, "out"] = tokens.get((dialect, "out"), 0) + tokens_out
        histogram = batch.latency.get(dialect)
        if histogram is None:
            histogram = batch.latency[dialect] = Histogram(LATENCY_BOUNDS_S)
        histogram.add(latency_s)
        if len(batch.latency_values) < self._max_values:
            batch.latency_values.append((dialect, latency_s))
        else:
            batch.dropped_values += 1

    def _count_lag(self, batch: TelemetryBatch, lag_s: float) -> None:
        batch.lag.add(lag_s)
        if len(batch.lag_values) < self._max_values:
            batch.lag_values.append(lag_s)
        else:
            batch.dropped_values += 1
