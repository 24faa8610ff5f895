"""Clients whose dialect the engine does not speak: several turns, slow engines, failures late in the day."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_server.app import AppOptions
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import EngineRequest
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
KEEP_ALIVE = b": keep-alive\n\n"
QUESTION = {"role": "user", "content": "who?"}
TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": False}
TOOLS = [{"type": "namespace", "name": "crm", "description": "Customers.", "tools": [TOOL]}]


def calling(request: EngineRequest) -> ScriptedAnswer:
    """Call the one tool that was offered, by the name it was offered by; with its result, answer."""
    tool = request.body["tools"][0]
    name = tool["function"]["name"] if request.dialect == CHAT else tool["name"]
    ended = "found" in json.dumps(request.body["messages"])
    if request.dialect == CHAT:
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        message = {"role": "assistant", "content": "Ann" if ended else None, "tool_calls": [] if ended else [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if ended else "tool_calls"}
        return ScriptedAnswer([json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()])
    use = {"type": "tool_use", "id": "call_1", "name": name, "input": {}}
    content = [{"type": "text", "text": "Ann"}] if ended else [use]
    answer = {"id": "a", "type": "message", "role": "assistant", "model": "m", "content": content}
    return ScriptedAnswer([json.dumps({**answer, "stop_reason": "end_turn" if ended else "tool_use"}).encode()])


def items_of(stream: bytes) -> list[dict[str, Any]]:
    events = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("spoken", [CHAT, MESSAGES])
async def test_a_streamed_output_is_taken_back_as_the_next_turns_input(
    tmp_path: Path, spoken: str, stream: bool
) -> None:
    engine = FakeEngine(script=calling, dialects=(spoken,))
    async with (
        captured_model(tmp_path, engine) as model,
        httpx.AsyncClient(base_url=f"{model.url}/ng-rollout/0-0", trust_env=False) as http,
    ):
        first = await http.post("/v1/responses", json={"input": [QUESTION], "tools": TOOLS, "stream": True})
        items = items_of(first.content)
        (call,) = [item for item in items if item["type"] == "function_call"]
        assert (call["namespace"], call["name"]) == ("crm", "find")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
        body = {"input": [QUESTION, *items, result], "tools": TOOLS, "stream": stream}
        second = await http.post("/v1/responses", json=body)
        assert second.status_code == 200
        assert "Ann" in second.text
        said, replayed = model.records("0-0")
    assert said["response"]["output"] == items
    assert replayed["request"] == body
    history = engine.requests[1].body["messages"][1]
    made = history["tool_calls"][0]["function"] if spoken == CHAT else history["content"][0]
    assert made["name"] == "crm__find"


async def test_comments_come_first_and_a_late_failure_is_one_error_event(tmp_path: Path) -> None:
    gate = asyncio.Event()
    refusal = ScriptedAnswer([b'{"error":{"message":"slow down","type":"x"}}'], 429, start_gate=gate)
    engine = FakeEngine(script=lambda request: refusal, dialects=(RESPONSES,))
    options = AppOptions(bridge=BridgeOptions(keep_alive_s=0.02))
    body = {"messages": [QUESTION], "stream": True}
    async with (
        captured_model(tmp_path, engine, options=options) as model,
        httpx.AsyncClient(base_url=f"{model.url}/ng-rollout/0-0", trust_env=False) as http,
        http.stream("POST", PATH_OF[CHAT], json=body) as response,
    ):
        received = b""
        async for chunk in response.aiter_raw():
            received += chunk
            if received.count(KEEP_ALIVE) == 2:
                gate.set()
        (record,) = model.records("0-0")
    comments, _, error = received.rpartition(KEEP_ALIVE)
    assert (comments + KEEP_ALIVE).replace(KEEP_ALIVE, b"") == b""
    name, data = error.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["code"] == 429
    assert (record["error_category"], record["response_raw"]) == ("upstream_error", received.decode())


async def test_a_client_that_leaves_between_comments_ends_the_engines_work(tmp_path: Path) -> None:
    waiting = ScriptedAnswer([b"{}"], gates={0: asyncio.Event()})
    engine = FakeEngine(script=lambda request: waiting, dialects=(RESPONSES,))
    options = AppOptions(bridge=BridgeOptions(keep_alive_s=0.02))
    body = {"messages": [QUESTION], "stream": True}
    async with captured_model(tmp_path, engine, options=options) as model:
        async with (
            httpx.AsyncClient(base_url=f"{model.url}/ng-rollout/0-0", trust_env=False) as http,
            http.stream("POST", PATH_OF[CHAT], json=body) as response,
        ):
            assert await anext(response.aiter_raw()) == KEEP_ALIVE
            assert engine.open_answers == 1
        async with asyncio.timeout(20):
            while engine.open_answers or not model.records("0-0"):  # noqa: ASYNC110 - a server and a disk
                await asyncio.sleep(0.005)
        (record,) = model.records("0-0")
    assert engine.closed_early == 1
    assert (record["error_category"], record["response"]) == ("cancelled", None)
