"""Requests and answers on their whole way between two dialects."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion.bridge import Bridge
from gym_ray.dialects.conversion.preparation import prepare
from gym_ray.errors import UnsupportedRequestError

BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}
SOUND = {"type": "output_audio", "data": "x"}
USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


def bridge(client: str, engine: str, **members: Any) -> Bridge:
    return Bridge.of(client, engine, prepare(client, {**BODIES[client], **members}), default_max_tokens=9)


def responses_answer(*items: Any) -> dict[str, Any]:
    return {"id": "resp_1", "status": "completed", "model": "m", "output": list(items)}


def message_item(content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": content}


@pytest.mark.parametrize("client", [RESPONSES, CHAT])
def test_blocks_that_the_hub_cannot_say_reach_the_client_aside(client: str) -> None:
    answer = {"type": "message", "role": "assistant", "content": [USE, {"type": "text", "text": "a"}]}
    assert bridge(client, MESSAGES).answer(answer)["gym_ray"] == {"unconverted": [USE]}


@pytest.mark.parametrize("client", [RESPONSES, MESSAGES])
def test_parts_of_a_chat_message_that_are_no_text_reach_the_client_aside(client: str) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    message = {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}
    answer = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert bridge(client, CHAT).answer(answer)["gym_ray"] == {"unconverted": [thought]}


@pytest.mark.parametrize("client", [CHAT, MESSAGES])
def test_parts_of_a_responses_message_that_are_no_text_reach_the_client_aside(client: str) -> None:
    answer = responses_answer(message_item([SOUND, {"type": "output_text", "text": "a"}]))
    assert bridge(client, RESPONSES).answer(answer)["gym_ray"] == {"unconverted": [SOUND]}


def test_the_content_of_a_message_is_never_lost_without_a_word() -> None:
    told = bridge(MESSAGES, RESPONSES)
    assert told.answer(responses_answer(message_item("x")))["content"] == [{"type": "text", "text": "x"}]
    for content in (5, {"type": "output_text", "text": "x"}):
        item = message_item(content)
        assert told.answer(responses_answer(item))["gym_ray"] == {"unconverted": [item]}
    for part in (None, "x", {"type": "output_text", "text": 5}):
        assert told.answer(responses_answer(message_item([part])))["gym_ray"] == {"unconverted": [part]}


@pytest.mark.parametrize("usage", [{"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, None])
def test_a_strict_responses_client_can_read_usage_without_details(usage: dict[str, int] | None) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    answer = bridge(RESPONSES, CHAT).answer({"id": "c", "model": "m", "choices": [choice], "usage": usage})
    read = Response.model_validate(answer)
    assert (read.usage is None) is (usage is None)
    if read.usage is not None:
        assert (read.usage.input_tokens, read.usage.output_tokens, read.usage.total_tokens) == (3, 2, 5)
        assert read.usage.output_tokens_details.reasoning_tokens == 0


def test_a_refusal_says_whose_names_it_uses() -> None:
    with pytest.raises(UnsupportedRequestError, match=r"^in terms of Responses, text\.format\.type") as caught:
        bridge(CHAT, MESSAGES, response_format={"type": "json_object"})
    assert caught.value.status == 400
    with pytest.raises(UnsupportedRequestError, match=r"^text\.format\.type"):
        bridge(RESPONSES, MESSAGES, text={"format": {"type": "json_object"}})
