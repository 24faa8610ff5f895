"""Whatever a handler and its client say to each other, capture changes and raises nothing, and records it."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.records import build_record
from gym_ray.model_call_capture.writer import CaptureWriter

PIECES = [
    b"",
    b"{}",
    b'{"choices":[{"index":0,"message":{"content":"hi"}}]}',
    b'{"error":{"message":"no"}}',
    b'{"output":[],"status":"failed"}',
    b'{"n":18446744073709551617,"m":-9223372036854775809}',
    b'{"n":18446744073709551617,"s":"\\ud83d","x":NaN,"k":{"\\ud83d":1e999}}',
    b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    b"[" * 20_000,
    b"\xff\xfe\x00{",
    b"data: ",
    b"\n\n",
    b"\r\n\r\n",
    b": keep-alive\n\n",
    b"event: error\ndata: gone\n\n",
    b'data: {"choices":[{"index":0,"delta":{"content":"a","tool_calls":[{"index":"x"},null,7]}}]}\n\n',
    b'data: {"type":"message_start","message":{"id":1,"usage":[]}}\n\n',
    b'data: {"type":"content_block_delta","index":-1,"delta":{"type":"text_delta","text":5}}\n\n',
    b'data: {"type":"response.output_text.delta","output_index":1e99,"delta":"a"}\n\n',
    b'data: {"type":"response.completed","response":{"output":{"a":1}}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
    b"data: [DONE]\n\n",
    gzip.compress(b'{"choices":[]}', mtime=0),
]
EVENTS = [piece for piece in PIECES if piece.endswith(b"\n\n")]
chunks = st.lists(st.sampled_from(PIECES) | st.binary(max_size=40), max_size=5)
streams = st.lists(st.sampled_from(EVENTS), max_size=5)
content_types = st.sampled_from(
    [
        b"application/json",
        b"text/event-stream",
        b" Text/Event-Stream;charset=utf-8",
        b"text/event-stream+x",
        b"",
        b"\xff\x00",
        b"text/plain",
    ]
) | st.binary(max_size=20)
locations = st.sampled_from(
    [b"/v1/responses?a=1#b", b"http://model/v1", b"http://[", b"//x", b"http://model:99999999/", b"\xff\xfe"]
)
headers = st.lists(
    st.tuples(st.sampled_from([b"content-type", b"Content-Type"]), content_types)
    | st.tuples(st.sampled_from([b"location", b"LOCATION"]), locations | st.binary(max_size=20))
    | st.tuples(st.binary(min_size=1, max_size=5), st.binary(max_size=10)),
    max_size=4,
)
statuses = st.sampled_from([200, 200, 200, 201, 204, 206, 302, 307, 399, 400, 413, 429, 500, 599, 101, 999])


class OddError(Exception):
    """Answers every question about itself with another one."""

    @property
    def response(self) -> Any:
        raise RuntimeError

    status_code = "403"
    response_content = ("no", "bytes")


errors = st.sampled_from([OddError, KeyError, ConnectionResetError, TimeoutError, asyncio.CancelledError, SystemError])


@dataclass(frozen=True)
class Talk:
    """One exchange: what the client says, and what the handler does; a number of receives, then its messages."""

    dialect_path: str
    request_headers: list[tuple[bytes, bytes]]
    request: list[dict[str, Any]]
    receives: int
    answer: list[dict[str, Any]]
    error: type[BaseException] | None


def body_message(kind: str, body: bytes, *, last: bool, spare: bool) -> dict[str, Any]:
    """Return a body message; members that have defaults may be left out."""
    message: dict[str, Any] = {"type": kind}
    if body or not spare:
        message["body"] = body
    if not last or not spare:
        message["more_body"] = not last
    return message


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    spare = draw(st.booleans())
    asked = draw(chunks)
    request = [body_message("http.request", piece, last=False, spare=spare) for piece in asked]
    if draw(st.booleans()):
        request.append(body_message("http.request", b"", last=True, spare=spare))
    answer: list[dict[str, Any]] = []
    if draw(st.booleans()) and spare:
        answer.append({"type": "http.response.debug", "info": {"template": "t"}})
    if draw(st.integers(0, 9)):
        named = [(b"Content-Type", draw(content_types))] * draw(st.booleans())
        answer.append({"type": "http.response.start", "status": draw(statuses), "headers": [*named, *draw(headers)]})
        told = b"".join(draw(chunks | streams))
        borders = sorted(draw(st.lists(st.integers(0, len(told)), max_size=6)))
        pieces = [told[start:end] for start, end in itertools.pairwise([0, *borders, len(told)])]
        answer += [body_message("http.response.body", piece, last=False, spare=spare) for piece in pieces]
        if draw(st.integers(0, 3)):
            end = draw(st.sampled_from(PIECES))
            answer.append(body_message("http.response.body", end, last=True, spare=spare))
    return Talk(
        draw(st.sampled_from(sorted(DIALECT_BY_PATH))),
        draw(st.lists(st.tuples(st.sampled_from([b"host", b"X-Session-Id"]), st.binary(max_size=6)), max_size=3)),
        request,
        draw(st.integers(0, len(request) + 2)),
        answer,
        draw(st.none() | errors),
    )


class Heard:
    """What both sides of an exchange saw."""

    def __init__(self) -> None:
        self.by_handler: list[Any] = []
        self.by_client: list[Any] = []
        self.raised: BaseException | None = None


async def hold(talk: Talk, writer: CaptureWriter | None, rollout_id: str) -> Heard:
    heard, waiting = Heard(), list(talk.request)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.by_handler.append((scope["path"], scope["raw_path"], scope["headers"]))
        for _ in range(talk.receives):
            heard.by_handler.append(await receive())
        for message in talk.answer:
            await send(message)
        if talk.error is not None:
            raise talk.error

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        heard.by_client.append(message)

    path = f"/ng-rollout/{rollout_id}{talk.dialect_path}"
    scope = {"type": "http", "path": path, "raw_path": path.encode(), "headers": talk.request_headers}
    try:
        await CaptureMiddleware(app, writer)(scope, receive, send)
    except BaseException as error:  # noqa: BLE001 - whatever comes out is what is compared
        heard.raised = error
    return heard


@pytest.fixture(scope="module")
def real_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaptureWriter]:
    writer = CaptureWriter(tmp_path_factory.mktemp("any") / "captures", server_name="policy_model")
    writer.start()
    yield writer
    writer.close()
    assert writer.counts.failed == writer.counts.timed_out == 0


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


NUMBERS = itertools.count()


@given(talk=talks())
@settings(max_examples=400, deadline=None)
def test_capture_changes_nothing_raises_nothing_and_loses_nothing(
    talk: Talk, real_writer: CaptureWriter, runner: asyncio.Runner
) -> None:
    rollout_id = f"{next(NUMBERS)}-0"
    plain = runner.run(hold(talk, None, rollout_id))
    heard = runner.run(hold(talk, real_writer, rollout_id))
    assert heard.by_client == plain.by_client
    assert heard.by_handler == plain.by_handler
    assert type(heard.raised) is type(plain.raised) is (talk.error or type(None))
    ((_, record),), invalid = real_writer.store.read_available(rollout_id)
    assert invalid == 0
    assert not real_writer.store.is_incomplete(rollout_id)
    check(talk, plain, record)


def finite(text: str) -> float | None:
    return float(text) if math.isfinite(float(text)) else None


def check(talk: Talk, plain: Heard, record: dict[str, Any]) -> None:
    """Check that a record holds every byte that was read and sent, and calls nothing a success that was none."""
    build_record(record, 0)
    read = [message for message in plain.by_handler[1:] if message["type"] == "http.request"]
    asked = b"".join(message.get("body", b"") for message in read)
    told = b"".join(message.get("body", b"") for message in plain.by_client)
    started = [message for message in plain.by_client if message["type"] == "http.response.start"]
    assert record["status_code"] == (started[0]["status"] if started else None)
    for name, sent in (("request", asked), ("response", told)):
        raw, parsed = record.get(f"{name}_raw"), record[name]
        if raw is not None:
            assert raw == sent.decode("utf-8", "replace")
        elif parsed is not None:
            assert parsed == json.loads(sent, parse_constant=lambda name: None, parse_float=finite)
        else:
            assert sent == b"" or (name == "request" and record["status_code"] == 413)
    if record["error_category"] is None:
        assert talk.error is None
        assert started
        assert started[0]["status"] < 400
        types = [value for name, value in started[0]["headers"] if name.lower() == b"content-type"]
        if types and types[0].strip().lower().startswith(b"text/event-stream"):
            assert any(end in told for end in (b"[DONE]", b"message_stop", b"response.completed"))
        elif started[0]["status"] in (200, 201):  # W21
            assert told not in (b'{"error":{"message":"no"}}', b'{"output":[],"status":"failed"}', b"{}")
