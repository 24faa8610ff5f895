"""Values that JSON libraries stumble over, in requests and answers: every call leaves one readable record."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_call_capture import CaptureStore, ModelCallRecord, read_available_model_call_records
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.model_server.app import build_app
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Odd:
    """A JSON value as it is written, and what a record must show of it; ``text`` when it can only be kept as text."""

    written: bytes
    kept: Any = None
    text: bool = False


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


ODD = {
    "2 to the 64": Odd(b"18446744073709551616", 2**64),
    "below the smallest": Odd(b"-9223372036854775809", -(2**63) - 1),
    "beyond exact floats": Odd(b"9007199254740993", 9007199254740993),
    "4,000 digits": Odd(b"1" * 4000, int("1" * 4000)),
    "5,000 digits": Odd(b"1" * 5000, text=True),
    "half an emoji": Odd(b'"cut \\ud83d"', "cut \ud83d"),
    "halves in the wrong order": Odd(b'"\\ude00\\ud83d"', "\ude00\ud83d"),
    "an odd key": Odd(b'{"\\ud83d":1}', {"\ud83d": 1}),
    "not a number": Odd(b"NaN", None),
    "infinities": Odd(b"[Infinity,-Infinity,1e999]", [None, None, None]),
    "line separators": Odd('"a\u2028b\u2029c\u0085d"'.encode(), "a\u2028b\u2029c\u0085d"),
    "an escaped zero": Odd(b'"a\\u0000b"', "a\0b"),
    "200 levels": Odd(deep(200), json.loads(deep(200))),
    "300 levels": Odd(deep(300), text=True),
    "100,000 levels": Odd(deep(100_000), text=True),
    "bytes that are no text": Odd(b'"\xff\xc3"', text=True),
    "a character in six bytes": Odd(b'"\xed\xa0\xbd"', text=True),
}


class Servers:
    """The same engine behind a server that captures and one that does not."""

    def __init__(self, directory: Path, on: httpx.AsyncClient, off: httpx.AsyncClient) -> None:
        self.store = CaptureStore(directory)
        self._on, self._off, self._calls = on, off, 0

    async def ask(self, dialect: str, content: bytes) -> tuple[dict[str, Any], ModelCallRecord]:
        """Ask both; check that the client is told the same, and return the one record, raw and as it is read."""
        self._calls += 1
        rollout_id = f"{self._calls}-0"
        path, headers = PATH_OF[dialect], {"content-type": "application/json"}
        plain = await self._off.post(path, content=content, headers=headers)
        answer = await self._on.post(f"/ng-rollout/{rollout_id}{path}", content=content, headers=headers)
        assert answer.status_code == plain.status_code
        if b"resp_" not in plain.content:  # ids of answers that are converted are made anew
            assert answer.content == plain.content
            assert {**answer.headers, "date": ""} == {**plain.headers, "date": ""}
        ((_, record),), invalid = self.store.read_available(rollout_id)
        (call,), unbuildable = read_available_model_call_records(self.store, rollout_id)
        assert invalid == unbuildable == 0
        assert call.status_code == answer.status_code
        assert "gaps" not in build_attachment(rollout_id, self.store.snapshot(rollout_id), include_payloads=True)
        return record, call


@asynccontextmanager
async def serving(directory: Path, engine: FakeEngine) -> AsyncIterator[Servers]:
    bare = AppServer(build_app(engine, server_name="policy_model", capture=None))
    await bare.start()
    try:
        async with (
            captured_model(directory, engine) as model,
            httpx.AsyncClient(base_url=bare.url, trust_env=False, timeout=30) as off,
            httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=30) as on,
        ):
            yield Servers(directory, on, off)
    finally:
        await bare.stop(grace_s=5)


def check_body(record: dict[str, Any], name: str, sent: bytes, member: Any, odd: Odd) -> None:
    """Check that a record holds a body: as an object with the odd member exact, else as all of its text."""
    if odd.text:
        assert record[name] is None
        assert record[f"{name}_raw"] == sent.decode("utf-8", "replace")
    else:
        assert repr(member(record[name])) == repr(odd.kept)  # a float may equal an integer, and is none
        assert f"{name}_raw" not in record


EVERY = [(odd, stream) for odd in ODD.values() for stream in (False, True)]


def asking(dialect: str, odd: Odd, *, stream: bool) -> bytes:
    turns = b'"input":"hi"' if dialect == RESPONSES else b'"messages":[{"role":"user","content":"hi"}]'
    flag = b"true" if stream else b"false"
    return b'{"model":"m","max_tokens":5,"stream":%s,%s,"metadata":{"odd":%s}}' % (flag, turns, odd.written)


@pytest.mark.parametrize("spoken", [(RESPONSES, CHAT, MESSAGES), (CHAT,)], ids=["forwarded", "converted"])
async def test_no_request_is_lost(tmp_path: Path, spoken: tuple[str, ...]) -> None:
    async with serving(tmp_path, FakeEngine(dialects=spoken)) as servers:
        for dialect, (odd, stream) in itertools.product(PATH_OF, EVERY):
            sent = asking(dialect, odd, stream=stream)
            record, _ = await servers.ask(dialect, sent)  # also what the schema of a dialect refuses
            check_body(record, "request", sent, lambda body: body["metadata"]["odd"], odd)


async def test_no_answer_is_lost(tmp_path: Path) -> None:
    template = b'{"id":"c","model":"m","choices":[{"index":0,"%s":{"content":"a","odd":%s},"finish_reason":"stop"}]}'
    playing = [ScriptedAnswer([])]
    async with serving(tmp_path, FakeEngine(script=lambda request: playing[0])) as servers:
        for odd, stream in EVERY:
            body = template % (b"delta" if stream else b"message", odd.written)
            whole, streamed = (
                ScriptedAnswer([body]),
                ScriptedAnswer([b"data: " + body + b"\n\n", DONE], content_type=SSE),
            )
            playing[0] = streamed if stream else whole
            record, _ = await servers.ask(CHAT, asking(CHAT, Odd(b"0"), stream=stream))
            if not stream:
                check_body(record, "response", body, lambda found: found["choices"][0]["message"]["odd"], odd)
                assert record["error_category"] == ("capture_parse_error" if record["response"] is None else None)
                continue
            assert record["response_raw"] == streamed.body.decode("utf-8", "replace")
            if odd.text:  # what came is all in the text; the event counts if a replacement makes it readable
                assert record["error_category"] in (None, "capture_parse_error"), odd
            else:
                assert record["error_category"] is None
                assert repr(record["response"]["choices"][0]["message"]["odd"]) == repr(odd.kept)


def calling(odd: Odd) -> bytes:
    """A chat answer whose tool arguments, a JSON text of their own, hold the odd value."""
    encoding = "latin-1" if odd in (ODD["bytes that are no text"], ODD["a character in six bytes"]) else "utf-8"
    function = {"name": "f", "arguments": f'{{"odd":{odd.written.decode(encoding)}}}'}
    call = {"id": "t", "type": "function", "function": function}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    return json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()


@pytest.mark.parametrize("client", [RESPONSES, MESSAGES])
async def test_no_converted_answer_is_lost(tmp_path: Path, client: str) -> None:
    turns: dict[str, Any] = {"input": "hi"}
    if client == MESSAGES:
        turns = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    playing = [b""]
    engine = FakeEngine(script=lambda request: ScriptedAnswer(playing), dialects=(CHAT,))
    async with serving(tmp_path, engine) as servers:
        for odd, stream in EVERY:
            playing[0] = calling(odd)
            record, call = await servers.ask(client, json.dumps({"model": "m", "stream": stream, **turns}).encode())
            assert record["status_code"] == 200
            if record["response"] is None:  # arguments that are an object here, deeper than any record
                assert (client, odd) == (MESSAGES, ODD["300 levels"])
                assert record["error_category"] == "capture_parse_error"
                assert "[" * 300 in record["response_raw"]
                continue
            assert record["error_category"] is None
            (tool,) = call.tool_calls
            assert (tool.call_id, tool.name) == ("t", "f")
            if not odd.text:
                given = json.loads(odd.written) if client == RESPONSES else odd.kept  # a text stays as it was written
                assert repr(tool.arguments) == repr({"odd": given})
