"""With capture on: the record is there when the client has its last byte, whatever the call came to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.errors import EngineError, EngineUnavailableError
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.waiting import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 9}
TOKEN = "run-token-1"


@dataclass
class Captured:
    """A running server with capture on, and its directory."""

    http: httpx.AsyncClient
    directory: Path

    def records(self, rollout_id: str = "0-0") -> list[dict[str, Any]]:
        """Read what any other process would read."""
        path = self.directory / f"{rollout_id}.capture.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@asynccontextmanager
async def capturing(directory: Path, engine: FakeEngine, **options: Any) -> AsyncIterator[Captured]:
    writer = CaptureWriter(directory, server_name="policy_model", run_token=options.get("run_token"))
    await asyncio.to_thread(writer.start)
    server = AppServer(build_app(engine, server_name="policy_model", capture=writer, **options))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as http:
            yield Captured(http, directory)
    finally:
        await server.stop(grace_s=5)
        await asyncio.to_thread(writer.close)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_record_exists_when_the_client_has_its_last_byte(tmp_path: Path, stream: bool) -> None:
    async with capturing(tmp_path, FakeEngine("one two")) as captured:
        for number, (path, dialect) in enumerate(DIALECT_BY_PATH.items(), start=1):
            request = {**BODY, "stream": stream}
            async with captured.http.stream("POST", f"/ng-rollout/0-0{path}", json=request) as response:
                received = b""
                async for chunk in response.aiter_raw():
                    received += chunk
                    if ends(received, stream, path):
                        break  # not even the end of the body is waited for
                records = captured.records()
            assert len(records) == number
            record = records[-1]
            assert (record["dialect"], record["status_code"], record["error_category"]) == (dialect, 200, None)
            assert record["request"] == request
            assert "one two" in json.dumps(record["response"])
            assert record["model_ref"] == {"type": "responses_api_models", "name": "policy_model"}


def ends(received: bytes, stream: bool, path: str) -> bool:
    """Say whether a client that knows its dialect would stop reading here."""
    if not stream:
        return received.endswith(b"}") and received.count(b"{") == received.count(b"}")
    last = {"/v1/responses": b"response.completed", "/v1/chat/completions": b"[DONE]", "/v1/messages": b"message_stop"}
    return last[path] in received and received.endswith(b"\n\n")


async def test_an_unprefixed_call_is_not_recorded(tmp_path: Path) -> None:
    async with capturing(tmp_path, FakeEngine()) as captured:
        assert (await captured.http.post("/v1/responses", json=BODY)).status_code == 200
        assert (await captured.http.get("/ng-rollout/0-0/v1/models")).status_code == 200
        assert captured.records() == []


def _refuse(request: EngineRequest) -> ScriptedAnswer:
    raise EngineError("no", 503)


def _crash(request: EngineRequest) -> ScriptedAnswer:
    raise KeyError("unexpected")


@pytest.mark.parametrize(
    ("script", "content", "status", "recorded_status", "category"),
    [
        (None, b"[]", 422, 422, "client_error"),
        (None, b"x" * 2000, 413, 413, "client_error"),
        (lambda request: ScriptedAnswer([b'{"error":{}}'], 429), b"{}", 429, 429, "rate_limit"),
        (lambda request: ScriptedAnswer([b'{"error":{}}'], 401), b"{}", 401, 401, "auth"),
        (_refuse, b"{}", 503, 503, "upstream_error"),
        (_crash, b"{}", 500, None, "exception"),
    ],
    ids=["no object", "too large", "rate limit", "auth", "engine error", "crash"],
)
async def test_failures_are_recorded_as_the_caller_sees_them(
    tmp_path: Path,
    script: Callable[[EngineRequest], ScriptedAnswer] | None,
    content: bytes,
    status: int,
    recorded_status: int | None,
    category: str,
) -> None:
    async with capturing(tmp_path, FakeEngine(script=script), options=AppOptions(max_body_bytes=1000)) as captured:
        response = await captured.http.post("/ng-rollout/0-0/v1/responses", content=content)
        [record] = captured.records()
    assert response.status_code == status
    assert (record["status_code"], record["error_category"]) == (recorded_status, category)
    if recorded_status is not None:
        assert record["response"] == response.json()


async def test_a_call_of_an_engine_that_speaks_no_dialect_is_recorded(tmp_path: Path) -> None:
    async with capturing(tmp_path, FakeEngine(dialects=())) as captured:
        response = await captured.http.post("/ng-rollout/0-0/v1/messages", json=BODY)
        [record] = captured.records()
    assert (response.status_code, record["status_code"], record["error_category"]) == (501, 501, "upstream_error")


async def test_the_record_tells_whether_the_engine_was_asked_and_what_it_said(tmp_path: Path) -> None:
    asked: list[str] = []

    def script(request: EngineRequest) -> ScriptedAnswer:
        asked.append(request.dialect)
        if len(asked) == 1:
            return ScriptedAnswer([b'{"error":{"message":"busy"}}'], 503)
        raise EngineUnavailableError("no connection")

    names = ["upstream_attempted", "response_source", "upstream_status_code", "local_response_reason"]
    async with capturing(tmp_path, FakeEngine(script=script)) as captured:
        for content in (b"{}", b"{}", b"[]"):
            await captured.http.post("/ng-rollout/0-0/v1/responses", content=content)
        refused, unreachable, invalid = captured.records()
    assert [refused[name] for name in names] == [True, "upstream", 503, None]
    assert [unreachable[name] for name in names] == [True, None, None, None]
    assert [name for name in names if name in invalid] == []


async def test_an_engine_that_dies_in_mid_stream_leaves_a_record_and_no_clean_end(tmp_path: Path) -> None:
    answer = ScriptedAnswer([b'data: {"choices":[]}\n\n'], content_type=SSE, cut=True)
    async with capturing(tmp_path, FakeEngine(script=lambda request: answer)) as captured:
        with pytest.raises(httpx.RemoteProtocolError):
            await captured.http.post("/ng-rollout/0-0/v1/chat/completions", json=BODY)
        [record] = captured.records()
    assert record["status_code"] == 200
    assert record["error_category"] is not None
    assert record["response_raw"] == answer.body.decode()


async def test_a_client_that_leaves_is_recorded_as_cancelled_with_the_bytes_so_far(tmp_path: Path) -> None:
    answer = ScriptedAnswer([b'data: {"choices":[]}\n\n', b""], content_type=SSE, gates={1: asyncio.Event()})
    engine = FakeEngine(script=lambda request: answer)
    async with capturing(tmp_path, engine) as captured:
        path = "/ng-rollout/0-0/v1/chat/completions"
        async with captured.http.stream("POST", path, json=BODY) as response:
            assert await anext(response.aiter_raw()) == answer.body
        await until(lambda: len(captured.records()) == 1)
        [record] = captured.records()
    assert record["error_category"] == "cancelled"
    assert record["response_raw"] == answer.body.decode()
    assert engine.open_answers == 0


async def test_a_client_that_leaves_before_the_answer_is_recorded_as_cancelled(tmp_path: Path) -> None:
    engine = FakeEngine(script=lambda request: ScriptedAnswer([b"{}"], start_gate=asyncio.Event()))
    async with capturing(tmp_path, engine) as captured:
        request = asyncio.create_task(captured.http.post("/ng-rollout/0-0/v1/responses", json=BODY))
        await until(lambda: len(engine.requests) == 1)
        request.cancel()
        await until(lambda: len(captured.records()) == 1)
        [record] = captured.records()
    assert (record["status_code"], record["error_category"]) == (None, "cancelled")
    assert record["request"] == BODY


async def test_quiesce_lists_the_call_and_wants_the_token(tmp_path: Path) -> None:
    async with capturing(tmp_path, FakeEngine(), run_token=TOKEN) as captured:
        headers = {"authorization": f"Bearer {TOKEN}"}
        await captured.http.post("/ng-rollout/0-0/v1/responses", json=BODY, headers=headers)
        asked = {"rollout_ids": ["0-0"], "timeout_s": 5}
        refused = await captured.http.post("/ng-capture/quiesce", json=asked)
        answer = await captured.http.post("/ng-capture/quiesce", json=asked, headers=headers)
        [record] = captured.records()
    assert refused.status_code == 401
    assert answer.status_code == 200
    assert record["model_call_id"] in answer.text


async def test_capture_changes_no_byte(tmp_path: Path) -> None:
    async with capturing(tmp_path, FakeEngine("one two three")) as captured:
        for path in DIALECT_BY_PATH:
            for stream in (False, True):
                plain = await captured.http.post(path, json={**BODY, "stream": stream})
                prefixed = await captured.http.post(f"/ng-rollout/0-0{path}", json={**BODY, "stream": stream})
                assert plain.content == prefixed.content
                assert dict(plain.headers) | {"date": ""} == dict(prefixed.headers) | {"date": ""}
        assert len(captured.records()) == 6
