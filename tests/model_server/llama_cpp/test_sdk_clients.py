"""The official SDKs talk to a running model server with the real model behind it, streamed and not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from gym_ray.model_server.app import build_app
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.serving import AppServer

pytestmark = pytest.mark.model

PARAMETERS = {
    "type": "object",
    "properties": {"order_id": {"type": "string", "maxLength": 8}},
    "required": ["order_id"],
    "additionalProperties": False,
}
COUNT = [
    {"role": "user", "content": "Count."},
    {"role": "assistant", "content": "one two three four"},
    {"role": "user", "content": "Count."},
]
GREEDY = {"temperature": 0}  # the SDK has no such argument, the dialect has the field
COUNTED = "one two three four"


@pytest.fixture
async def url(engine: LlamaCppEngine) -> AsyncIterator[str]:
    server = AppServer(build_app(engine, server_name="policy_model", capture=None))
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop(grace_s=2)


@pytest.fixture
async def openai_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
async def anthropic_client(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_responses(openai_client: openai.AsyncOpenAI) -> None:
    history: Any = COUNT
    whole = await openai_client.responses.create(model="m", input=history, temperature=0, max_output_tokens=12)
    assert whole.output_text == COUNTED
    assert whole.usage is not None
    assert whole.usage.output_tokens > 0

    async with openai_client.responses.stream(model="m", input=history, temperature=0, max_output_tokens=12) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == COUNTED
    assert len(deltas) > 1
    assert final.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_responses_with_a_tool(openai_client: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": True}
    async with openai_client.responses.stream(
        model="m", input="Order 12?", tools=[tool], tool_choice="required", temperature=0
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"order_id"}
    assert "response.function_call_arguments.done" in kinds


async def test_chat(openai_client: openai.AsyncOpenAI) -> None:
    messages: Any = COUNT
    whole = await openai_client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=12)
    assert whole.choices[0].message.content == COUNTED
    assert whole.choices[0].finish_reason == "stop"
    async with openai_client.chat.completions.stream(
        model="m", messages=messages, temperature=0, max_tokens=12, stream_options={"include_usage": True}
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == COUNTED
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens


async def test_chat_with_a_tool(openai_client: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS, "strict": True}}
    async with openai_client.chat.completions.stream(
        model="m",
        messages=[{"role": "user", "content": "Order 12?"}],
        tools=[tool],
        tool_choice="required",
        temperature=0,
    ) as stream:
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    assert set(json.loads(call.function.arguments)) == {"order_id"}
    assert final.choices[0].finish_reason == "tool_calls"


async def test_messages(anthropic_client: anthropic.AsyncAnthropic) -> None:
    messages: Any = COUNT
    whole = await anthropic_client.messages.create(model="m", messages=messages, max_tokens=12, extra_body=GREEDY)
    assert [block.text for block in whole.content if block.type == "text"] == [COUNTED]
    assert whole.stop_reason == "end_turn"
    async with anthropic_client.messages.stream(
        model="m", messages=messages, max_tokens=12, extra_body=GREEDY
    ) as stream:
        deltas = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(deltas) == COUNTED
    assert len(deltas) > 1
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert (final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


async def test_messages_with_a_tool(anthropic_client: anthropic.AsyncAnthropic) -> None:
    tool: Any = {"name": "look_up", "input_schema": PARAMETERS}
    async with anthropic_client.messages.stream(
        model="m",
        messages=[{"role": "user", "content": "Order 12?"}],
        tools=[tool],
        tool_choice={"type": "any"},
        max_tokens=80,
        extra_body=GREEDY,
    ) as stream:
        final = await stream.get_final_message()
    (block,) = final.content
    assert block.type == "tool_use"
    assert set(block.input) == {"order_id"}  # type: ignore[arg-type]
    assert final.stop_reason == "tool_use"


async def test_bad_requests_reach_the_sdks_as_their_own_errors(
    openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    long: Any = [{"role": "user", "content": "fox " * 3000}]
    with pytest.raises(openai.BadRequestError, match="context length is 2048 tokens"):
        await openai_client.responses.create(model="m", input=long)
    with pytest.raises(openai.BadRequestError, match="context length is 2048 tokens"):
        await openai_client.chat.completions.create(model="m", messages=long, stream=True)
    with pytest.raises(anthropic.BadRequestError, match="context length is 2048 tokens"):
        await anthropic_client.messages.create(model="m", messages=long, max_tokens=5)
    with pytest.raises(openai.BadRequestError, match="n: is not supported"):
        await openai_client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], n=2)
