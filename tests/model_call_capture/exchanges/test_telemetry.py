"""What is counted of every call, and that a drain takes each call exactly once."""

from __future__ import annotations

import asyncio
import errno
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture.exchanges.exchange import PublishedUsage
from gym_ray.model_call_capture.exchanges.telemetry import (
    LATENCY_BOUNDS_S,
    CallOutcome,
    CaptureTelemetry,
    Histogram,
    TelemetryBatch,
    outcome_of,
)
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.testing.waiting import until

CALL = CallOutcome("chat", "2xx", "ok", 5, 3, 0.25, 0.0)


def record(**members: Any) -> dict[str, Any]:
    whole = {
        "dialect": "chat",
        "status_code": 200,
        "error_category": None,
        "response": {"usage": {"prompt_tokens": 5, "completion_tokens": 3}},
        "latency_ms": 250.0,
        "completed_at": 7.5,
    }
    return whole | members


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        ({}, ("chat", "2xx", "ok", 5, 3, 0.25, 7.5)),
        ({"status_code": 429, "error_category": "rate_limit"}, ("chat", "4xx", "rate_limit", 5, 3, 0.25, 7.5)),
        ({"status_code": None, "error_category": "cancelled"}, ("chat", "none", "cancelled", 5, 3, 0.25, 7.5)),
        ({"status_code": 999}, ("chat", "other", "ok", 5, 3, 0.25, 7.5)),
        ({"response": None}, ("chat", "2xx", "ok", None, None, 0.25, 7.5)),
        ({"usage": {"input_tokens": 9}}, ("chat", "2xx", "ok", 9, None, 0.25, 7.5)),
        ({"usage": None}, ("chat", "2xx", "ok", None, None, 0.25, 7.5)),
    ],
)
def test_what_is_counted_of_a_record(members: dict[str, Any], outcome: tuple[Any, ...]) -> None:
    assert outcome_of(record(**members)) == outcome


def test_a_histogram_counts_a_bound_into_its_own_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 7.5)


def test_a_drain_takes_everything_once() -> None:
    telemetry = CaptureTelemetry()
    now = time.time()
    failed = CallOutcome("messages", "5xx", "upstream_error", None, 0, 700.0, now)
    telemetry.record([(CALL._replace(completed_at=now + 3600), 100), (failed, 0), (None, 0)], failed=2, withdrawn=1)
    telemetry.count(refused=3)
    telemetry.count(timed_out=1)
    batch = pickle.loads(pickle.dumps(telemetry.drain()))
    assert batch.calls == {("chat", "2xx", "ok"): 1, ("messages", "5xx", "upstream_error"): 1}
    assert batch.tokens == {("chat", "in"): 5, ("chat", "out"): 3}
    assert batch.latency["chat"].counts[LATENCY_BOUNDS_S.index(0.25)] == 1
    assert batch.latency["messages"].counts[-1] == 1
    assert batch.latency_values == [("chat", 0.25), ("messages", 700.0)]
    assert (sum(batch.lag.counts), batch.lag_values) == (1, [0.0])  # a clock that was set back makes no negative lag
    assert (batch.bytes_written, batch.failed, batch.withdrawn, batch.refused, batch.timed_out) == (100, 2, 1, 3, 1)
    assert telemetry.drain() == TelemetryBatch()


def test_single_values_are_bounded_and_the_dropped_ones_counted() -> None:
    telemetry = CaptureTelemetry(max_values=2)
    telemetry.record([(CALL, 1)] * 5)
    batch = telemetry.drain()
    assert (len(batch.latency_values), len(batch.lag_values), batch.dropped_values) == (2, 2, 6)
    assert sum(batch.latency["chat"].counts) == sum(batch.lag.counts) == 5
    assert telemetry.drain().dropped_values == 0


def test_no_call_is_lost_between_threads_that_count_and_one_that_drains() -> None:
    telemetry = CaptureTelemetry()
    threads = [threading.Thread(target=lambda: [telemetry.record([(CALL, 1)]) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seen += sum(telemetry.drain().calls.values())
    assert seen + sum(telemetry.drain().calls.values()) == 2000


async def one_call(writer: CaptureWriter, rollout_id: str = "0-0") -> None:
    exchange = writer.begin(rollout_id, "chat")
    assert exchange is not None
    exchange.status, exchange.complete, exchange.completed_at = 200, True, time.time()
    exchange.response = [b'{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}']
    exchange.usage = PublishedUsage({"prompt_tokens": 4, "completion_tokens": 2})
    await writer.commit(exchange)


async def test_the_writer_tells_what_it_did(writer: CaptureWriter, calls: FaultyCalls) -> None:
    total = TelemetryBatch()

    def drained() -> bool:
        batch = writer.telemetry.drain()
        for key, count in batch.calls.items():
            total.calls[key] = total.calls.get(key, 0) + count
        for name, count in batch.tokens.items():
            total.tokens[name] = total.tokens.get(name, 0) + count
        total.bytes_written += batch.bytes_written
        total.failed += batch.failed
        total.refused += batch.refused
        total.lag_values += batch.lag_values
        return sum(total.calls.values()) == 2

    await one_call(writer)
    calls.write_error = OSError(errno.ENOSPC, "no space left on device")
    await one_call(writer)
    assert writer.begin("no/id", "chat") is None
    await until(drained)
    assert total.calls == {("chat", "2xx", "ok"): 2}
    assert total.tokens == {("chat", "in"): 8, ("chat", "out"): 4}
    assert total.bytes_written == writer.store.path_for("0-0").stat().st_size
    assert (total.failed, total.refused, len(total.lag_values)) == (1, 1, 1)


async def test_an_answer_that_did_not_wait_is_counted(tmp_path: Path, calls: FaultyCalls) -> None:
    writer = CaptureWriter(tmp_path / "c", server_name="s", calls=calls, capture_timeout_s=0.05)
    writer.start()
    calls.sync_gate = threading.Event()
    await one_call(writer)
    calls.sync_gate.set()
    await asyncio.to_thread(writer.close)
    assert writer.telemetry.drain().timed_out == 1
