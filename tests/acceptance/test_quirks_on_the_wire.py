"""Oddities of upstreams and clients that can only be met on a whole server: codings, sizes, a 200 that is no answer."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_server.app import AppOptions
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.testing.captured_model import CapturedModel, captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.fake_upstream import FakeUpstream, gzipped
from gym_ray.testing.script import SSE, ScriptedAnswer

DIALECTS = (RESPONSES, CHAT, MESSAGES)
PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
TURNS: list[Any] = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "m", "input": "hi"},
    CHAT: {"model": "m", "messages": TURNS},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": TURNS},
}
LARGEST_BODY = AppOptions().max_body_bytes
STREAM = (
    'data: {"id":"q7","model":"m","choices":[{"index":0,"delta":{"content":"na\u00efve"},"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
).encode()
WHOLE = (
    '{"id":"q7","model":"m","choices":[{"index":0,"message":{"content":"na\u00efve"},"finish_reason":"stop"}]}'.encode()
)


@asynccontextmanager
async def in_front_of(directory: Path, answer: ScriptedAnswer) -> AsyncIterator[tuple[FakeUpstream, CapturedModel]]:
    fake = FakeUpstream(lambda request: answer)
    upstream = AppServer(fake)
    await upstream.start()
    engine = UpstreamEngine(f"{upstream.url}/v1", api_key="sk-1", dialects=DIALECTS)
    await engine.start()
    try:
        async with captured_model(directory, engine) as model:
            yield fake, model
    finally:
        await engine.aclose()
        await upstream.stop(grace_s=5)


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["streamed", "whole"])
async def test_b11_an_answer_that_was_compressed_against_our_wish_is_recorded_readable(
    tmp_path: Path, body: bytes
) -> None:
    answer = gzipped(ScriptedAnswer([body], content_type=SSE if body is STREAM else "application/json"))
    async with in_front_of(tmp_path, answer) as (fake, model):
        async with httpx.AsyncClient(base_url=model.url, trust_env=False) as http:
            headers = {"accept-encoding": "gzip, br, zstd"}
            response = await http.post(f"/ng-rollout/0-0{PATH_OF[CHAT]}", json=ASKED[CHAT], headers=headers)
        (record,) = model.records("0-0")
    assert fake.requests[0].headers["accept-encoding"] == "identity"
    assert gzip.decompress(answer.body) == response.content == body
    assert record["error_category"] is None
    (choice,) = record["response"]["choices"]
    assert choice["message"]["content"] == "na\u00efve"
    assert record.get("response_raw") == (STREAM.decode() if body is STREAM else None)


async def test_b12_twelve_mib_are_recorded_whole_and_one_byte_above_the_cap_is_told(tmp_path: Path) -> None:
    body = {**ASKED[CHAT], "messages": [{"role": "user", "content": "x" * 12_000_000}]}
    above = LARGEST_BODY + 1
    async with (
        captured_model(tmp_path, FakeEngine()) as model,
        httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=30) as http,
    ):
        assert (await http.post(f"/ng-rollout/0-0{PATH_OF[CHAT]}", json=body)).status_code == 200
        refused = await http.post(f"/ng-rollout/0-1{PATH_OF[CHAT]}", content=bytes(above))
        (large,), (too_large,) = model.records("0-0"), model.records("0-1")
    assert LARGEST_BODY >= 64 * 1024**2
    assert large["request"] == body
    assert refused.status_code == 413
    assert str(LARGEST_BODY) in refused.text
    assert (too_large["status_code"], too_large["error_category"]) == (413, "client_error")
    assert (too_large["request"], "request_raw" in too_large) == (None, False)


NO_ANSWERS = {
    "error object": b'{"error":{"message":"no credit"}}',
    "error text": b'{"error":"no credit"}',
    "empty object": b"{}",
    "nothing": b"",
    "no choices": b'{"choices":[]}',
    "null choices": b'{"choices":null}',
    "array": b"[]",
    "array of errors": b'[{"error":{"code":503,"status":"UNAVAILABLE","message":"busy"}}]',
    "vLLM error": b'{"object":"error","message":"m","code":400}',
    "Anthropic error": b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    "choice error": b'{"id":"x","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":""},'
    b'"finish_reason":"error","error":{"code":502,"message":"up"}}]}',
    "failed response": b'{"id":"r","object":"response","status":"failed","output":[]}',
}


@pytest.mark.parametrize("spoken", DIALECTS)
async def test_b23_a_200_that_is_no_answer_is_a_success_for_nobody(tmp_path: Path, spoken: str) -> None:
    playing = [b""]
    engine = FakeEngine(script=lambda request: ScriptedAnswer(playing), dialects=(spoken,))
    async with (
        captured_model(tmp_path, engine) as model,
        httpx.AsyncClient(base_url=model.url, trust_env=False) as http,
    ):
        asked = itertools.product(NO_ANSWERS.items(), DIALECTS, (False, True))
        for number, ((name, body), client, stream) in enumerate(asked):
            playing[0] = body
            request = {**ASKED[client], "stream": stream}
            response = await http.post(f"/ng-rollout/{number}-0{PATH_OF[client]}", json=request)
            (record,) = model.records(f"{number}-0")
            which = f"{name}, asked by a {client} client, streamed {stream}"
            assert record["error_category"] is not None, which
            assert record["status_code"] == response.status_code, which
            if client == spoken:
                assert (response.status_code, response.content) == (200, body), which
            else:
                assert response.status_code >= 500 or b"response.failed" in response.content, which


BROKEN_STREAMS = {
    "B08 half": (CHAT, b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n', "stream_truncated"),
    "B21 object": (CHAT, b'data: {"error":{"code":503,"message":"gone"}}\n\n', "upstream_error"),
    "B21 array": (CHAT, b'data: [{"error":{"code":503,"message":"busy"}}]\n\n', "upstream_error"),
    "B21 in a choice": (
        CHAT,
        b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","error":{"code":502}}]}\n\n'
        b"data: [DONE]\n\n",
        "upstream_error",
    ),
    "B22": (CHAT, b"data: [DONE]\n\n", "capture_parse_error"),
    "B29": (
        MESSAGES,
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        "upstream_error",
    ),
    "nothing": (RESPONSES, b"", "stream_truncated"),
}


@pytest.mark.parametrize(("dialect", "body", "category"), BROKEN_STREAMS.values(), ids=BROKEN_STREAMS)
async def test_a_broken_stream_with_status_200_is_passed_on_and_no_success(
    tmp_path: Path, dialect: str, body: bytes, category: str
) -> None:
    engine = FakeEngine(script=lambda request: ScriptedAnswer([body], content_type=SSE))
    async with (
        captured_model(tmp_path, engine) as model,
        httpx.AsyncClient(base_url=model.url, trust_env=False) as http,
    ):
        response = await http.post(f"/ng-rollout/0-0{PATH_OF[dialect]}", json={**ASKED[dialect], "stream": True})
        (record,) = model.records("0-0")
    assert (response.status_code, response.content) == (200, body)
    assert record["error_category"] == category
    assert json.dumps(record.get("response_raw", "")) == json.dumps(body.decode())
