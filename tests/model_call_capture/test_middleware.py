from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from gym_ray.correlation import current_rollout_id
from gym_ray.model_call_capture.exchanges.exchange import (
    Exchange,
    ExecutionFacts,
    publish_execution_facts,
    publish_usage,
)
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.storage_faults import FaultyCalls, RecordingCalls
from gym_ray.testing.waiting import until

CHAT_PATH = "/ng-rollout/0-0/v1/chat/completions"
ANSWER = b'{"id":"c1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
DELTA = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
JSON_TYPE, SSE_TYPE = [(b"content-type", b"application/json")], [(b"content-type", b"Text/Event-Stream; charset=utf-8")]
CONTRACT_ORDER = [
    "model_call_id",
    "dialect",
    "model_ref",
    "started_at",
    "completed_at",
    "latency_ms",
    "latency_ttft_ms",
    "status_code",
    "error_category",
    "request",
    "response",
]

App = Callable[[Any, Any, Any], Any]


@dataclass
class Client:
    """One call's client: feeds the request, keeps what it was sent, in one log with the disk when it has one."""

    body: bytes = b'{"model":"m"}'
    path: str = CHAT_PATH
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    asked: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.log.append(("send", message.get("body", b"").decode() or message["type"]))

    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"q=1",
            "headers": [(b"host", b"testserver"), *self.headers],
        }

    async def call(self, app: App, writer: CaptureWriter | None) -> None:
        await CaptureMiddleware(app, writer)(self.scope(), self.receive, self.send)

    @property
    def answer(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def answering(*chunks: bytes, status: int = 200, headers: Any = JSON_TYPE, end: bytes = b"") -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": end, "more_body": False})

    return app


def records(writer: CaptureWriter, rollout_id: str = "0-0") -> list[dict[str, Any]]:
    return writer.store.read(rollout_id)


async def test_record_has_the_contracts_shape(writer: CaptureWriter) -> None:
    client = Client(headers=[(b"X-Session-Id", b"s1"), (b"x-session-id", b""), (b"x-session-id", b"s1")])
    await client.call(answering(ANSWER), writer)
    assert client.answer == ANSWER
    (record,) = records(writer)
    assert list(record) == [*CONTRACT_ORDER, "client_session_id"]
    assert re.fullmatch("[0-9a-f]{32}", record["model_call_id"])
    assert record["model_ref"] == {"type": "responses_api_models", "name": "policy_model"}
    assert record["dialect"] == "chat"
    assert record["status_code"] == 200
    assert record["error_category"] is None
    assert record["latency_ttft_ms"] is None
    assert record["started_at"] <= record["completed_at"]
    assert record["request"] == {"model": "m"}
    assert record["response"] == json.loads(ANSWER)
    assert record["client_session_id"] == "s1"


async def test_all_optional_fields_come_in_order(writer: CaptureWriter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        publish_execution_facts(scope, ExecutionFacts(True, "local", 400, "context_length_exceeded"))
        await answering(b"[1]")(scope, receive, send)

    client = Client(body=b"[2]", headers=[(b"x-session-id", b"s")])
    await client.call(app, writer)
    (record,) = records(writer)
    facts = ["upstream_attempted", "response_source", "upstream_status_code", "local_response_reason"]
    assert list(record) == [*CONTRACT_ORDER, "client_session_id", *facts, "request_raw", "response_raw"]
    assert [record[name] for name in facts] == [True, "local", 400, "context_length_exceeded"]
    assert record["error_category"] == "context_length_exceeded"
    assert (record["request"], record["request_raw"]) == (None, "[2]")
    assert (record["response"], record["response_raw"]) == (None, "[1]")


@pytest.mark.parametrize("usage", [{"prompt_tokens": 7}, None])
async def test_usage_that_the_handler_knows_is_recorded(writer: CaptureWriter, usage: dict[str, Any] | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        publish_usage(scope, {"prompt_tokens": 1})
        publish_usage(scope, usage)
        await answering(DELTA, b"data: [DONE]\n\n", headers=SSE_TYPE)(scope, receive, send)

    await Client().call(app, writer)
    (record,) = records(writer)
    assert list(record) == [*CONTRACT_ORDER, "usage", "response_raw"]
    assert record["usage"] == usage


async def test_json_is_sent_after_write_and_sync(tmp_path: Path) -> None:
    calls = RecordingCalls()
    writer = CaptureWriter(tmp_path, server_name=None, calls=calls)
    writer.start()
    calls.log.clear()
    client = Client(log=calls.log)
    await client.call(answering(ANSWER[:20], ANSWER[20:]), writer)
    writer.close()
    name = "0-0.capture.jsonl"
    steps = [step for step in calls.log if step[0] == "send" or step[1] == name]
    assert steps == [
        ("send", "http.response.start"),
        ("lock", name),
        ("write", name),
        ("sync_data", name),
        ("unlock", name),
        ("send", ANSWER[:20].decode()),
        ("send", ANSWER[20:].decode()),
        ("send", "http.response.body"),
    ]


async def test_begin_is_noted_before_the_handler_runs(writer: CaptureWriter) -> None:
    (log,) = (writer.store.root / ".open").iterdir()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert re.fullmatch(r"B [0-9a-f]{32} 0-0\n\0+", log.read_text())
        await answering(ANSWER)(scope, receive, send)

    await Client().call(app, writer)
    await until(lambda: "\nE " in log.read_text())


@pytest.mark.parametrize("ends_itself", [True, False])
async def test_stream_flows_and_its_end_waits(writer: CaptureWriter, calls: FaultyCalls, ends_itself: bool) -> None:
    calls.sync_gate = threading.Event()
    tail = b"data: [DONE]\n\n" if ends_itself else b""
    client = Client()
    call = asyncio.create_task(client.call(answering(DELTA, DELTA, tail, headers=SSE_TYPE), writer))
    await until(calls.syncs_waiting.is_set)
    flowed = [m["body"] for m in client.sent if m["type"] == "http.response.body"]
    assert flowed == ([DELTA, DELTA] if ends_itself else [DELTA, DELTA, b""])
    assert not call.done()
    calls.sync_gate.set()
    await call
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert client.answer == DELTA * 2 + tail
    (record,) = records(writer)
    assert record["error_category"] == (None if ends_itself else "stream_truncated")
    assert record["latency_ttft_ms"] is not None
    assert record["response"]["choices"][0]["message"]["content"] == "hihi"
    assert record["response_raw"] == (DELTA * 2 + tail).decode()


async def test_everything_behind_the_terminal_event_waits_too(writer: CaptureWriter, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    client = Client()
    app = answering(DELTA, b"data: [DO", b"NE]\n\n", b": bye\n\n", headers=SSE_TYPE)
    call = asyncio.create_task(client.call(app, writer))
    await until(calls.syncs_waiting.is_set)
    assert client.answer == DELTA + b"data: [DO"
    calls.sync_gate.set()
    await call
    assert client.answer == DELTA + b"data: [DONE]\n\n: bye\n\n"


async def test_trailers_do_not_overtake_a_held_body(writer: CaptureWriter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(ANSWER)(scope, receive, send)
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": False})

    client = Client()
    await client.call(app, writer)
    assert [message["type"] for message in client.sent][-1] == "http.response.trailers"
    assert client.answer == ANSWER
    assert len(records(writer)) == 1


async def test_keep_alive_is_no_first_token(writer: CaptureWriter) -> None:
    await Client().call(answering(b": keep-alive\n\n", headers=SSE_TYPE), writer)
    assert records(writer)[0]["latency_ttft_ms"] is None


async def test_a_raising_handler_is_recorded_before_its_exception(writer: CaptureWriter) -> None:
    class UpstreamError(Exception):
        status = 403
        response_content = b'{"error":{"message":"denied"}}'

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise UpstreamError

    with pytest.raises(UpstreamError):
        await Client().call(app, writer)
    (record,) = records(writer)
    assert (record["status_code"], record["error_category"]) == (403, "auth")
    assert (record["response"], record["response_raw"]) == (None, '{"error":{"message":"denied"}}')


async def test_a_raise_after_the_terminal_event_still_releases_it(writer: CaptureWriter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE_TYPE})
        for chunk in (DELTA, b"data: [DONE]\n\n"):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        raise RuntimeError("late")

    client = Client()
    with pytest.raises(RuntimeError, match="late"):
        await client.call(app, writer)
    assert client.answer == DELTA + b"data: [DONE]\n\n"
    (record,) = records(writer)
    assert record["error_category"] == "exception"
    assert record["response"]["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_cancellation_keeps_the_record_while_the_pool_is_saturated(
    writer: CaptureWriter, calls: FaultyCalls, how: str
) -> None:
    loop = asyncio.get_running_loop()
    free = threading.Event()
    busy = [loop.run_in_executor(None, free.wait) for _ in range(64)]
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE_TYPE})
        await send({"type": "http.response.body", "body": DELTA, "more_body": True})
        begun.set()
        await asyncio.Event().wait()

    try:
        if how == "task":
            call = asyncio.create_task(Client().call(app, writer))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        else:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(Client().call, app, writer)
                    await begun.wait()
                    scope.cancel()
        (record,) = records(writer)
    finally:
        free.set()
        await asyncio.gather(*busy)
    assert record["error_category"] == "cancelled"
    assert record["response"]["choices"][0]["message"]["content"] == "hi"


async def test_a_cancelled_wait_loses_nothing(writer: CaptureWriter, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    call = asyncio.create_task(Client().call(answering(ANSWER), writer))
    await until(calls.syncs_waiting.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    calls.sync_gate.set()
    await until(lambda: writer.counts.recorded == 1)
    assert records(writer)[0]["status_code"] == 200


async def test_a_client_that_leaves_is_recorded_as_cancelled(writer: CaptureWriter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE_TYPE})
        await send({"type": "http.response.body", "body": DELTA, "more_body": True})
        await receive()

    client = Client()
    client.disconnected.set()
    await client.call(app, writer)
    assert records(writer)[0]["error_category"] == "cancelled"


async def test_a_handler_that_answers_nothing_is_no_success(writer: CaptureWriter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        return None

    await Client().call(app, writer)
    (record,) = records(writer)
    assert (record["status_code"], record["error_category"], record["request"]) == (None, "exception", None)


async def test_a_full_disk_marks_and_releases(writer: CaptureWriter, calls: FaultyCalls, caplog: Any) -> None:
    calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "no space left"), 5
    marked_when_sent: list[bool] = []
    client = Client()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            marked_when_sent.append(writer.store.is_incomplete("0-0"))
        await Client.send(client, message)

    await CaptureMiddleware(answering(ANSWER), writer)(client.scope(), client.receive, send)
    assert client.answer == ANSWER
    assert all(marked_when_sent)
    assert records(writer) == []
    assert writer.counts.failed == 1
    assert "0-0.capture.jsonl" in caplog.text
    assert "no space left" in caplog.text
    calls.write_error = None
    await Client().call(answering(ANSWER), writer)
    assert len(records(writer)) == 1
    assert writer.store.is_incomplete("0-0")


async def test_a_hung_sync_releases_the_answer_and_marks(tmp_path: Path, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    writer = CaptureWriter(tmp_path, server_name="s", calls=calls, capture_timeout_s=0.1)
    writer.start()
    client = Client()
    await client.call(answering(ANSWER), writer)
    assert client.answer == ANSWER
    assert writer.counts.timed_out == 1
    await until(lambda: writer.store.is_incomplete("0-0"))
    other = Client(path="/ng-rollout/0-1/v1/chat/completions")
    calls.sync_gate.set()
    await other.call(answering(ANSWER), writer)
    await until(lambda: writer.counts.recorded == 2)
    await until(lambda: writer.store.is_incomplete("0-1") is (writer.counts.timed_out == 2))  # a slow disk is no fault
    writer.close()
    assert len(records(writer)) == len(records(writer, "0-1")) == 1


async def test_an_id_that_cannot_be_a_file_name_is_served(writer: CaptureWriter, caplog: Any) -> None:
    client = Client(path="/ng-rollout/a b/v1/chat/completions")
    with caplog.at_level(logging.WARNING):
        await client.call(answering(ANSWER), writer)
    assert client.answer == ANSWER
    assert "'a b'" in caplog.text
    assert writer.counts.refused == 1
    assert [path.name for path in writer.store.root.iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize("path", ["/ng-rollout/0-0/v1/models", "/ng-rollout/0-0/v1/responses/", "/v1/responses"])
async def test_other_paths_are_forwarded_and_not_recorded(writer: CaptureWriter, path: str) -> None:
    client = Client(path=path)
    await client.call(answering(ANSWER), writer)
    assert client.answer == ANSWER
    assert records(writer) == []


async def test_the_prefix_is_removed_with_capture_off() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"], current_rollout_id.get()))
        await answering(ANSWER)(scope, receive, send)

    client = Client()
    scope = client.scope()
    await CaptureMiddleware(app, None)(scope, client.receive, client.send)
    assert seen == [("/v1/chat/completions", b"/v1/chat/completions", b"q=1", "0-0")]
    assert scope["path"] == CHAT_PATH
    assert current_rollout_id.get() is None
    assert client.answer == ANSWER


@pytest.mark.parametrize("path", ["/ng-rollout/0-0/v1/responses/", "/ng-rollout/0-0/v1/responses"])
async def test_redirects_keep_the_prefix(writer: CaptureWriter, path: str) -> None:
    headers = [(b"Location", b"http://testserver/v1/responses?x=1"), (b"location", b"https://elsewhere/v1")]
    client = Client(path=path)
    await client.call(answering(status=307, headers=headers), writer)
    assert client.sent[0]["headers"] == [
        (b"Location", b"http://testserver/ng-rollout/0-0/v1/responses?x=1"),
        (b"location", b"https://elsewhere/v1"),
    ]


async def test_other_scopes_pass_untouched(writer: CaptureWriter) -> None:
    scope = {"type": "lifespan"}
    seen: list[Any] = []

    async def app(*arguments: Any) -> None:
        seen.extend(arguments)

    await CaptureMiddleware(app, writer)(scope, None, None)  # type: ignore[arg-type]
    assert seen[0] is scope


@pytest.mark.parametrize(("chunk_bytes", "count"), [(20, 10_000), (100, 2000), (4096, 600), (70_000, 300)])
async def test_an_open_stream_takes_little_more_memory_than_its_bytes(
    writer: CaptureWriter, chunk_bytes: int, count: int
) -> None:
    kept: list[list[bytes]] = []
    begin = writer.begin

    def noting(*args: Any) -> Exchange | None:
        exchange = begin(*args)
        assert exchange is not None
        kept.append(exchange.response)
        return exchange

    writer.begin = noting  # type: ignore[method-assign]
    chunks = [b": %0*d\n" % (chunk_bytes - 3, number) for number in range(count)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE_TYPE})
        for number, chunk in enumerate(chunks, start=1):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if number >= count // 2:
                pieces = kept[0]
                assert sum(map(sys.getsizeof, pieces)) + sys.getsizeof(pieces) <= 1.25 * chunk_bytes * number
        assert b"".join(kept[0]) == b"".join(chunks)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    client = Client()
    await client.call(app, writer)
    assert client.answer == b"".join(chunks)
    (record,) = records(writer)
    assert record["response_raw"].encode() == client.answer
    assert kept == [[]]  # the record has the bytes now
