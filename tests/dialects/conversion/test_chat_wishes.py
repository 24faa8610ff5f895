"""What a Chat engine is asked although Chat has no word for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gym_ray.dialects.conversion.chat_wishes import heard_in_chat
from gym_ray.dialects.conversion.responses_to_chat import request_to_chat
from gym_ray.errors import UnsupportedRequestError

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}


def asked(**members: Any) -> dict[str, Any]:
    hub = {"input": "hi", **members}
    before = copy.deepcopy(hub)
    found = request_to_chat(heard_in_chat(hub))
    assert hub == before
    return found


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def result(call_id: str, *parts: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": list(parts)}


def test_reasoning_that_comes_anyway_may_be_asked_for() -> None:
    found = asked(include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"})
    assert found == {"messages": asked()["messages"], "reasoning_effort": "low"}
    assert "reasoning_effort" not in asked(reasoning={"summary": "detailed"})


@pytest.mark.parametrize(
    "members",
    [
        {"include": ["message.output_text.logprobs"]},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"reasoning": {"summary": "odd"}},
        {"reasoning": {"context": "all"}},
        {"reasoning": {"summary": ["auto"]}},
        {"include": {}},
        {"reasoning": 1},
    ],
)
def test_other_wishes_are_refused_as_ever(members: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError):
        asked(**members)


def test_images_of_results_follow_all_results_of_the_turn() -> None:
    text = {"type": "input_text", "text": "a chart"}
    user = {"role": "user", "content": "go on"}
    found = asked(input=[call("1"), call("2"), result("1", text, IMAGE), result("2", IMAGE), user, result("1", text)])
    assert [message["role"] for message in found["messages"]] == ["assistant", "tool", "tool", "user", "user", "tool"]
    assert found["messages"][1:4] == [
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a chart"}]},
        {"role": "tool", "tool_call_id": "2", "content": ""},
        {"role": "user", "content": [SHOWN, SHOWN]},
    ]


def test_an_image_at_the_end_is_shown_too() -> None:
    assert asked(input=[call("1"), result("1", IMAGE)])["messages"][-1] == {"role": "user", "content": [SHOWN]}


@pytest.mark.parametrize("output", [[{"type": "input_file", "file_id": "f"}], [1], 1, None])
def test_other_results_are_read_as_ever(output: Any) -> None:
    with pytest.raises(UnsupportedRequestError):
        asked(input=[{"type": "function_call_output", "call_id": "1", "output": output}])
