"""The official SDKs as agents of a run whose workers stage the tokens: streams, tools, two turns, one chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gym_ray.testing.staged_site import StagedSite, staged_site
from gym_ray.testing.staging_worker import ScriptedWorker

QUESTION, RESULT = "How is the weather in Paris?", "sun, 21 degrees"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def looks_up(body: Mapping[str, Any]) -> dict[str, Any]:
    """Call the tool first, and answer from its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"It is {last['content']}."}
    function = {"name": "lookup", "arguments": '{"city": "Paris"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@asynccontextmanager
async def site_of(tmp_path: Path) -> AsyncIterator[tuple[StagedSite, str]]:
    async with staged_site(tmp_path, ScriptedWorker(looks_up)) as site:
        yield site, f"{site.url}/ng-rollout/r1/training-token-capture"


async def check(site: StagedSite, response_ids: list[str]) -> None:
    manifest = await site.manifest()
    assert manifest.failures == []
    assert [record.response_id for record in manifest.records] == response_ids
    assert [record.mode for record in manifest.records] == ["text", "token_in"]
    assert len(site.worker.staging) == 2


@pytest.fixture
def key() -> str:
    return "any"


async def test_chat_stream(tmp_path: Path, key: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    async with site_of(tmp_path) as (site, base), openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key) as client:
        async with client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
            first = await stream.get_final_completion()
        (call,) = first.choices[0].message.tool_calls or []
        function = {"name": call.function.name, "arguments": call.function.arguments}
        echo = {"id": call.id, "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [echo]},
            {"role": "tool", "tool_call_id": call.id, "content": RESULT},
        ]
        async with client.chat.completions.stream(
            model="m", messages=messages, tools=tools, stream_options={"include_usage": True}
        ) as stream:
            second = await stream.get_final_completion()
        assert second.choices[0].message.content == f"It is {RESULT}."
        assert second.usage is not None
        await check(site, [first.id, second.id])


async def test_responses_stream(tmp_path: Path, key: str) -> None:
    tools: Any = [{"type": "function", "name": "lookup", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    async with site_of(tmp_path) as (site, base), openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key) as client:
        async with client.responses.stream(model="m", input=items, tools=tools) as stream:
            first = await stream.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        items += [item.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
        async with client.responses.stream(model="m", input=items, tools=tools) as stream:
            second = await stream.get_final_response()
        assert second.output_text == f"It is {RESULT}."
        await check(site, [first.id, second.id])


async def test_messages_stream(tmp_path: Path, key: str) -> None:
    tools: Any = [{"name": "lookup", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    async with site_of(tmp_path) as (site, base), anthropic.AsyncAnthropic(base_url=base, api_key=key) as client:
        async with client.messages.stream(model="m", max_tokens=50, messages=messages, tools=tools) as stream:
            first = await stream.get_final_message()
        (use,) = [block for block in first.content if block.type == "tool_use"]
        assert use.input == json.loads('{"city": "Paris"}')
        result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        async with client.messages.stream(model="m", max_tokens=50, messages=messages, tools=tools) as stream:
            second = await stream.get_final_message()
        assert second.content[0].type == "text"
        assert second.content[0].text == f"It is {RESULT}."
        await check(site, [first.id, second.id])


async def test_a_failed_stream_is_an_error_to_every_sdk(tmp_path: Path, key: str) -> None:
    broken = ScriptedWorker(looks_up, changes=lambda answer: {**answer, "choices": []})
    async with staged_site(tmp_path, broken) as site:
        base = f"{site.url}/ng-rollout/r1/training-token-capture"
        async with (
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0) as ours,
            anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as theirs,
        ):
            turns: list[Any] = [{"role": "user", "content": QUESTION}]
            events = [event async for event in await ours.responses.create(model="m", input=turns, stream=True)]
            assert [event.type for event in events] == ["response.created", "response.failed"]
            with pytest.raises(anthropic.InternalServerError):
                await theirs.messages.create(model="m", max_tokens=5, messages=turns, stream=True)
        assert (await site.manifest()).records == []
        assert set(await site.reasons()) == {"request_finished_without_staged_coordinates"}
