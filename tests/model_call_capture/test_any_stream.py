"""Any stream, cut anywhere, leaves the same record; any bytes reach the client as they are, and nothing raises."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import DIALECT_BY_PATH, terminal
from gym_ray.model_call_capture.exchanges.exchange import Exchange, build_exchange_record
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter

RECORDINGS = Path(__file__).parents[1] / "recordings"
PATHS = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}


class KeepingWriter:
    """Stands where the capture writer stands and keeps what it is given."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def begin(self, rollout_id: str, dialect: str, client_session_id: str | None = None) -> Exchange:
        return Exchange("0" * 32, rollout_id, dialect, "s", 1.0)

    async def submit(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)


async def serve(dialect: str, chunks: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """Send a stream through the capture layer; its record without its times, and what the client received."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    received: list[bytes] = []

    async def send(message: Any) -> None:
        received.append(message.get("body", b""))

    writer = KeepingWriter()
    middleware = CaptureMiddleware(app, cast("CaptureWriter", writer))
    scope = {"type": "http", "path": f"/ng-rollout/0-0{PATHS[dialect]}", "headers": [], "state": {}}
    await middleware(scope, receive, send)
    (exchange,) = writer.exchanges
    record = build_exchange_record(exchange)
    times = ("started_at", "completed_at", "latency_ms", "latency_ttft_ms")
    return {key: value for key, value in record.items() if key not in times}, b"".join(received)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted(at), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(borders)]


def check(dialect: str, body: bytes, at: list[int]) -> None:
    async def both() -> None:
        whole, received = await serve(dialect, [body])
        assert received == body
        assert await serve(dialect, cut(body, at)) == (whole, body)
        if len(body) <= 2000:
            assert await serve(dialect, cut(body, list(range(1, len(body))))) == (whole, body)

    asyncio.run(both())


def cuts(body: bytes) -> st.SearchStrategy[list[int]]:
    """Places to cut at: anywhere, and often beside the end of a line, where most depends on the next byte."""
    beside_line_ends = [found.start() + after for found in re.finditer(rb"[\r\n]", body) for after in (0, 1)]
    return st.lists(st.integers(0, len(body)) | st.sampled_from([0, *beside_line_ends]), max_size=12)


def recorded_streams() -> list[tuple[str, bytes]]:
    loaded = [json.loads(path.read_text("utf-8")) for path in sorted(RECORDINGS.glob("*/*.json"))]
    return [
        (DIALECT_BY_PATH[recording["path"]], recording["body"].encode())
        for recording in loaded
        if recording["path"] in DIALECT_BY_PATH and recording["headers"]["content-type"].startswith("text/event-stream")
    ]


STREAMS = recorded_streams()

texts = st.sampled_from(
    [
        "",
        "a",
        "na\u00efve \u65e5\u672c \U0001f600",
        "\u2028",
        "\ud83d",
        "[DONE]",
        "error",
        'event: error "error"',
        "\n\n\r",
    ]
)
index = st.sampled_from([0, 0, 1, None, "x"])
usage = st.fixed_dictionaries({"usage": st.sampled_from([None, {}, {"input_tokens": 3, "output_tokens": 2**70}])})
chat_chunks = st.builds(
    lambda i, delta, finish, more: {
        "id": "c",
        "choices": [{"index": i, "delta": delta, "finish_reason": finish}],
        **more,
    },
    index,
    st.fixed_dictionaries(
        {},
        optional={
            "content": texts,
            "reasoning": texts,
            "reasoning_details": st.just([{"data": "E"}]),
            "tool_calls": st.lists(
                st.builds(lambda i, n, a: {"index": i, "id": n, "function": {"arguments": a}}, index, texts, texts),
                max_size=2,
            ),
        },
    ),
    st.sampled_from([None, "stop", "error"]),
    usage,
)
messages_events = st.one_of(
    st.just({"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 1}}}),
    st.builds(lambda i: {"type": "content_block_start", "index": i, "content_block": {"type": "text"}}, index),
    st.builds(
        lambda i, kind, text: {
            "type": "content_block_delta",
            "index": i,
            "delta": {"type": f"{kind}_delta", kind: text, "partial_json": text},
        },
        index,
        st.sampled_from(["text", "thinking", "input_json", "future"]),
        texts,
    ),
    st.builds(lambda more: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, **more}, usage),
    st.sampled_from([{"type": "message_stop"}, {"type": "message_stop", "padding": "x" * 50}]),
)
responses_events = st.one_of(
    st.just({"type": "response.created", "response": {"id": "r", "output": []}}),
    st.builds(
        lambda kind, i, text: {"type": f"response.{kind}", "output_index": i, "delta": text, "text": text},
        st.sampled_from(["output_text.delta", "output_text.done", "function_call_arguments.delta", "odd.delta"]),
        index,
        texts,
    ),
    st.builds(
        lambda kind, output: {"type": f"response.{kind}", "response": {"id": "r", "status": kind, "output": output}},
        st.sampled_from(["completed", "incomplete", "failed"]),
        st.sampled_from([[], [{"type": "message", "content": []}]]),
    ),
)
errors = st.sampled_from(
    [
        {"error": "x"},
        {"error": "x", "padding": "x" * 50},
        {"error": None},
        [{"error": {"code": 1}}],
        {"type": "error"},
        {"object": "error"},
    ]
)
EVENTS = {"chat": chat_chunks, "messages": messages_events, "responses": responses_events}


@st.composite
def written_streams(draw: st.DrawFn) -> tuple[str, bytes]:
    """A stream of a dialect's events, written down in any of the legal ways, and sometimes damaged."""
    dialect = draw(st.sampled_from(sorted(EVENTS)))
    line_end = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
    ascii_only, named = draw(st.booleans()), draw(st.booleans())
    pieces = [draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b": hello\n\n"]))]
    for event in draw(st.lists(EVENTS[dialect] | EVENTS[dialect] | errors, max_size=6)):
        text = json.dumps(event, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        if named and "type" in event:
            pieces.append(b"event: " + event["type"].encode() + b"\n")
        pieces.append(draw(st.sampled_from([b"data: ", b"data:", b"id: 3\ndata: "])) + text)
        pieces.append(draw(st.sampled_from([b"\n\n", b"\n\n", b"\n\n\n", b"\n", b" \n\n"])))
    pieces.append(draw(st.sampled_from([b"", b"data: [DONE]\n\n", b"data: [DONE]", b"data: {\xff\n\n"])))
    return dialect, b"".join(pieces).replace(b"\n", line_end)


@given(stream=written_streams() | st.sampled_from(STREAMS), data=st.data())
@settings(max_examples=250, deadline=None)
def test_any_stream_cut_anywhere_leaves_the_same_record(stream: tuple[str, bytes], data: st.DataObject) -> None:
    dialect, body = stream
    check(dialect, body, data.draw(cuts(body)))


@given(stream=written_streams(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_large_event_is_judged_the_same_however_it_is_cut(stream: tuple[str, bytes], data: st.DataObject) -> None:
    """The sizes from which an event is not put together are made so small that every event is large."""
    dialect, body = stream
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_LARGE", 48), ("_HEAD_BYTES", 24), ("_END_BYTES", 24)):
            patch.setattr(terminal, name, size)
        check(dialect, body, data.draw(cuts(body)))


@given(dialect=st.sampled_from(sorted(EVENTS)), chunks=st.lists(st.binary(max_size=60), max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_bytes_pass_unchanged(dialect: str, chunks: list[bytes]) -> None:
    _, received = asyncio.run(serve(dialect, chunks))
    assert received == b"".join(chunks)
