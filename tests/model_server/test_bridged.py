"""Converted calls: what goes wrong on the way, keep-alives, and clients that leave."""

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

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import EngineTimeoutError
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.waiting import until

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}
PAIRS = [(client, engine) for client in BODIES for engine in BODIES if client != engine]


@dataclass
class Served:
    """A model server whose engine speaks one dialect."""

    http: httpx.AsyncClient
    engine: FakeEngine
    directory: Path

    async def ask(self, client: str, *, stream: bool = False, **members: Any) -> httpx.Response:
        body = {**BODIES[client], **({"stream": True} if stream else {}), **members}
        return await self.http.post(f"/ng-rollout/0-0{PATH_OF[client]}", json=body)

    def record(self) -> dict[str, Any]:
        (line,) = (self.directory / "0-0.capture.jsonl").read_text().splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def served(
    directory: Path,
    spoken: str,
    script: Callable[[EngineRequest], ScriptedAnswer] | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    engine = FakeEngine(script=script, dialects=(spoken,))
    writer = CaptureWriter(directory, server_name="policy_model")
    await asyncio.to_thread(writer.start)
    bridge = BridgeOptions(**{"keep_alive_s": 0.05, **options})
    server = AppServer(build_app(engine, server_name="m", capture=writer, options=AppOptions(bridge=bridge)))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as http:
            yield Served(http, engine, directory)
    finally:
        await server.stop(grace_s=5)
        await asyncio.to_thread(writer.close)


def answers(body: bytes, status: int = 200) -> Callable[[EngineRequest], ScriptedAnswer]:
    return lambda request: ScriptedAnswer([body], status)


def raises(error: Exception) -> Callable[[EngineRequest], ScriptedAnswer]:
    def script(request: EngineRequest) -> ScriptedAnswer:
        raise error

    return script


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("client", "spoken"), PAIRS)
@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        (answers(b"<html>"), 502, "no JSON object"),
        (answers(b"[]"), 502, "no JSON object"),
        (answers(b'{"error":{"message":"no credit"}}'), 502, "no credit"),
        (answers(b"busy", 503), 503, "busy"),
        (raises(EngineTimeoutError("nothing came")), 504, "nothing came"),
        (raises(KeyError("a text that no client may see")), 500, "KeyError"),
    ],
    ids=["html", "array", "error in a 200", "plain refusal", "timeout", "crash"],
)
async def test_a_call_without_an_answer_fails_in_the_clients_dialect(
    tmp_path: Path, client: str, spoken: str, stream: bool, script: Any, status: int, text: str
) -> None:
    async with served(tmp_path, spoken, script, keep_alive_s=20) as link:
        response = await link.ask(client, stream=stream)
        record = link.record()
    assert text in response.text
    assert "no client may see" not in response.text
    if client == RESPONSES and stream:
        assert response.status_code == 200
        assert b"event: response.failed" in response.content
        assert record["error_category"] == "upstream_error"
    else:
        assert response.status_code == record["status_code"] == status
        assert record["error_category"] is not None
    assert record["response"] is not None or record["response_raw"] is not None


@pytest.mark.parametrize(("client", "spoken"), PAIRS)
async def test_comments_bridge_the_wait_and_the_answer_follows(tmp_path: Path, client: str, spoken: str) -> None:
    gate = asyncio.Event()
    whole = FakeEngine(dialects=(spoken,))

    def script(request: EngineRequest) -> ScriptedAnswer:
        return ScriptedAnswer(whole._whole[spoken].chunks, start_gate=gate)

    async with served(tmp_path, spoken, script) as link:
        body = {**BODIES[client], "stream": True}
        async with link.http.stream("POST", f"/ng-rollout/0-0{PATH_OF[client]}", json=body) as response:
            received = b""
            async for chunk in response.aiter_bytes():
                received += chunk
                if received.count(b": keep-alive\n\n") >= 2:
                    gate.set()
        record = link.record()
    assert response.headers["x-accel-buffering"] == "no"
    assert b"hello there" in received
    assert record["error_category"] is None
    assert record["latency_ttft_ms"] is None  # W17: nothing is known of the first token


@pytest.mark.parametrize(("client", "spoken"), PAIRS)
async def test_a_failure_after_the_status_is_an_error_event(tmp_path: Path, client: str, spoken: str) -> None:
    gate = asyncio.Event()
    refusal = ScriptedAnswer([b'{"error":{"message":"slow down","type":"x"}}'], 429, start_gate=gate)
    async with served(tmp_path, spoken, lambda request: refusal) as link:
        body = {**BODIES[client], "stream": True}
        async with link.http.stream("POST", f"/ng-rollout/0-0{PATH_OF[client]}", json=body) as response:
            received = b""
            async for chunk in response.aiter_bytes():
                received += chunk
                gate.set()
        record = link.record()
    assert response.status_code == 200
    assert b"slow down" in received
    assert b"[DONE]" not in received
    assert record["error_category"] == "upstream_error"
    assert record["upstream_status_code"] == 429


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_ends_the_engines_work(tmp_path: Path, stream: bool) -> None:
    gate = asyncio.Event()
    waiting = ScriptedAnswer([b"{}"], gates={0: gate})
    file = tmp_path / "0-0.capture.jsonl"
    async with served(tmp_path, CHAT, lambda request: waiting) as link:
        call = asyncio.create_task(link.ask(MESSAGES, stream=stream))
        await until(lambda: link.engine.open_answers == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: link.engine.open_answers == 0 and file.exists() and file.read_bytes().endswith(b"\n"))
        record = link.record()
    assert link.engine.closed_early == 1
    assert record["error_category"] == "cancelled"


@pytest.mark.parametrize(("client", "spoken"), PAIRS)
async def test_a_body_of_a_megabyte_is_converted_too(tmp_path: Path, client: str, spoken: str) -> None:
    text = "x" * 1_000_000
    members = {"input": text} if client == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    async with served(tmp_path, spoken) as link:
        response = await link.ask(client, **members)
    assert response.status_code == 200
    assert text in json.dumps(link.engine.requests[0].body)


async def test_headers_of_one_dialect_do_not_reach_an_engine_of_another(tmp_path: Path) -> None:
    async with served(tmp_path, CHAT) as link:
        headers = {"anthropic-version": "1", "x-request-id": "7", "authorization": "Bearer t"}
        await link.http.post("/v1/messages", json=BODIES[MESSAGES], headers=headers)
    sent = link.engine.requests[0].headers
    assert sent["x-request-id"] == "7"
    assert not {"anthropic-version", "authorization"} & set(sent)


async def test_the_replay_of_an_incomplete_answer_can_be_told_to_say_completed(tmp_path: Path) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "cut"}, "finish_reason": "length"}
    body = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
    for told, event in ((True, b"response.incomplete"), (False, b"response.completed")):
        async with served(tmp_path / str(told), CHAT, answers(body), incomplete_event=told) as link:
            response = await link.ask(RESPONSES, stream=True)
        assert response.content.count(b"event: " + event) == 1


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("levels", [400, 600, 900])
@pytest.mark.parametrize(("client", "spoken"), PAIRS)
async def test_a_request_that_nests_deeply_is_converted_or_refused(
    tmp_path: Path, client: str, spoken: str, levels: int, stream: bool
) -> None:
    tools = {
        RESPONSES: '{"type":"function","name":"f","strict":false,"parameters":%s}',
        CHAT: '{"type":"function","function":{"name":"f","parameters":%s}}',
        MESSAGES: '{"name":"f","input_schema":%s}',
    }
    for name, value in (("tools", f"[{tools[client] % nested(levels)}]"), ("metadata", nested(levels))):
        given = json.dumps({**BODIES[client], **({"stream": True} if stream else {})})[:-1]
        async with served(tmp_path / name, spoken) as link:
            body = f'{given},"{name}":{value}}}'.encode()
            response = await link.http.post(f"/ng-rollout/0-0{PATH_OF[client]}", content=body)
        line = (tmp_path / name / "0-0.capture.jsonl").read_text()
        assert response.status_code in (200, 400, 422)
        category = json.loads(line)["error_category"]
        # An answer that repeats settings of more levels than a record may have is kept as text (A73).
        assert category in ((None, "capture_parse_error") if response.status_code == 200 else ("client_error",))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("levels", [200, 600, 900])
@pytest.mark.parametrize(("client", "spoken"), PAIRS)
async def test_an_answer_that_nests_deeply_is_converted_or_a_named_failure(
    tmp_path: Path, client: str, spoken: str, levels: int, stream: bool
) -> None:
    whole = FakeEngine(dialects=(spoken,))._whole[spoken].body.decode()
    odd = {
        RESPONSES: ('"output":[', f'"output":[{{"type":"web_search_call","action":{nested(levels)}}},'),
        CHAT: ('"content":"hello there"', f'"content":"hello there","reasoning_details":[{nested(levels)}]'),
        MESSAGES: ('"content":[', f'"content":[{{"type":"server_tool_use","input":{nested(levels)}}},'),
    }[spoken]
    body = whole.replace(*odd).encode()
    assert body != whole.encode()
    async with served(tmp_path, spoken, answers(body)) as link:
        response = await link.ask(client, stream=stream)
        record = link.record()
    assert response.status_code in (200, 502)
    assert "ValueError" not in response.text
    told = response.status_code == 200 and b"response.failed" not in response.content
    assert record["error_category"] in ((None, "capture_parse_error") if told else ("upstream_error",))


async def test_a_refusal_with_odd_members_keeps_its_status(tmp_path: Path) -> None:
    body = b'{"type":"error","error":{"message":"no","type":"t","code":%s,"param":[]}}' % nested(700).encode()
    async with served(tmp_path, RESPONSES, answers(body, 418)) as link:
        response = await link.ask(CHAT)
    assert response.status_code == 418
    assert response.json()["error"] == {"message": "no", "type": "t", "param": None, "code": 418}
