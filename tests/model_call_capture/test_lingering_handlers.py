"""Handlers that go on after their answer is complete: the client is served, the record is made, both once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture.exchanges.exchange import ExecutionFacts, publish_execution_facts
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.storage_faults import FaultyCalls

DELTA = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE, BYE = b"data: [DONE]\n\n", b": bye\n\n"
ANSWER = b'{"id":"c1","choices":[{"index":0,"message":{"content":"hi"}}]}'


class Call:
    """One call to an app that sends ``first``, waits until told, sends ``then``, and ends as ``after`` ends."""

    def __init__(
        self, writer: CaptureWriter | None, sse: bool, first: list[tuple[bytes, bool]], then: list[tuple[bytes, bool]]
    ) -> None:
        self.sent: list[Any] = []
        self.go_on = asyncio.Event()
        self.after: Callable[[], None] = lambda: None
        self._type = b"text/event-stream" if sse else b"application/json"
        self._first, self._then = first, then
        path = "/ng-rollout/0-0/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        self.task = asyncio.create_task(CaptureMiddleware(self._app, writer)(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        publish_execution_facts(scope, ExecutionFacts(True, "upstream", 200))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._type)]})
        for body, more in self._first:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self.answered_at = time.time()
        await self.go_on.wait()
        for body, more in self._then:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self.after()

    async def _receive(self) -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def _send(self, message: Any) -> None:
        self.sent.append((message.get("body"), message.get("more_body")))

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.sent) < count:  # noqa: ASYNC110 - the disk tells nobody
                await asyncio.sleep(0.005)


def stream(writer: CaptureWriter) -> Call:
    return Call(writer, True, [(DELTA, True), (DONE, True)], [(BYE, True), (b"", False)])


async def test_the_end_of_a_stream_does_not_wait_for_its_handler(writer: CaptureWriter) -> None:
    call = stream(writer)
    await call.until_sent(3)
    assert call.sent == [(None, None), (DELTA, True), (DONE, True)]
    assert not call.task.done()
    (record,) = writer.store.read("0-0")
    assert record["error_category"] is None
    assert record["response_raw"] == (DELTA + DONE).decode()
    assert record["upstream_attempted"] is True
    call.go_on.set()
    await call.task
    assert call.sent[3:] == [(BYE, True), (b"", False)]
    assert writer.store.read("0-0") == [record]
    assert (writer.counts.recorded, writer.counts.failed) == (1, 0)


async def test_the_latency_of_a_lingering_handler_is_that_of_its_answer(writer: CaptureWriter) -> None:
    call = stream(writer)
    await call.until_sent(3)
    (record,) = writer.store.read("0-0")
    assert record["completed_at"] <= call.answered_at
    assert record["latency_ttft_ms"] <= record["latency_ms"]
    call.go_on.set()
    await call.task


async def test_a_whole_json_answer_does_not_wait_for_work_in_the_background(writer: CaptureWriter) -> None:
    call = Call(writer, False, [(ANSWER[:9], True), (ANSWER[9:], False)], [])
    await call.until_sent(3)
    assert call.sent[1:] == [(ANSWER[:9], True), (ANSWER[9:], False)]
    assert [record["error_category"] for record in writer.store.read("0-0")] == [None]
    call.go_on.set()
    await call.task
    assert len(writer.store.read("0-0")) == 1


async def test_an_unfinished_json_answer_waits_for_its_handler(writer: CaptureWriter) -> None:
    call = Call(writer, False, [(ANSWER, True)], [(b"", False)])
    await asyncio.sleep(0.1)  # twice what a complete answer waits
    assert call.sent == [(None, None)]
    call.go_on.set()
    await call.task
    assert call.sent[1:] == [(ANSWER, True), (b"", False)]


async def test_what_follows_waits_for_the_record_and_keeps_its_order(writer: CaptureWriter, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    call = stream(writer)
    await asyncio.to_thread(calls.syncs_waiting.wait, 20)
    call.go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert call.sent == [(None, None), (DELTA, True)]
    calls.sync_gate.set()
    await call.task
    assert call.sent[2:] == [(DONE, True), (BYE, True), (b"", False)]
    assert len(writer.store.read("0-0")) == 1


async def test_a_hung_disk_holds_the_client_no_longer_than_the_capture_timeout(
    tmp_path: Path, calls: FaultyCalls
) -> None:
    calls.sync_gate = threading.Event()
    writer = CaptureWriter(tmp_path, server_name="s", calls=calls, capture_timeout_s=0.1)
    writer.start()
    call = stream(writer)
    await call.until_sent(3)
    assert writer.counts.timed_out == 1
    assert not call.task.done()
    call.go_on.set()
    await call.task
    calls.sync_gate.set()
    await asyncio.to_thread(writer.close)
    assert writer.store.is_incomplete("0-0")


async def test_a_late_exception_follows_the_answer_and_changes_no_record(writer: CaptureWriter) -> None:
    def fail() -> None:
        raise RuntimeError("late")

    call = stream(writer)
    call.after = fail
    await call.until_sent(3)
    call.go_on.set()
    with pytest.raises(RuntimeError, match="late"):
        await call.task
    (record,) = writer.store.read("0-0")
    assert record["error_category"] is None


async def test_cancelling_a_lingering_handler_loses_neither_record_nor_answer(
    writer: CaptureWriter, calls: FaultyCalls
) -> None:
    calls.sync_gate = threading.Event()
    call = stream(writer)
    await asyncio.to_thread(calls.syncs_waiting.wait, 20)
    call.task.cancel()
    await asyncio.sleep(0)
    assert not call.task.done()
    calls.sync_gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert call.sent == [(None, None), (DELTA, True), (DONE, True)]
    (record,) = writer.store.read("0-0")
    assert record["error_category"] is None
