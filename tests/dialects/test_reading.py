from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects import reading


def chat(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message}]}


@pytest.mark.parametrize(
    ("content", "reasoning"),
    [
        ("<think>why</think>answer", "why"),
        ("\n<think>a</think>\n<think>b</think>answer", "a\nb"),
        ("<think>cut in the mid", "cut in the mid"),
        ("<think></think>answer", None),
        ("The tag <think>x</think> is old", None),
        ("answer", None),
        (None, None),
        ([{"type": "text", "text": "<think>x</think>"}], None),
    ],
)
def test_tags_at_the_start_are_reasoning(content: Any, reasoning: str | None) -> None:
    response = chat(content=content)
    assert reading.reasoning(response) == reasoning
    assert response == chat(content=content), "a view changes nothing"


def test_an_own_field_beats_the_tags() -> None:
    assert reading.reasoning(chat(content="<think>x</think>", reasoning="y")) == "y"
    assert reading.reasoning(chat(reasoning_content="a", reasoning="b")) == "a"


def test_the_first_shape_that_fits_is_read() -> None:
    both = {"output": [{"type": "function_call", "id": "i", "name": "f", "arguments": "{}"}], **chat(reasoning="r")}
    assert reading.tool_calls(both) == [{"call_id": "i", "name": "f", "arguments": {}}]
    assert reading.reasoning(both) is None
    assert reading.tool_calls({"output": None, "choices": 5, "content": "text"}) == []
    assert reading.reasoning({}) is None


def test_custom_hosted_and_legacy_calls_are_calls_too() -> None:
    output = [
        {"type": "custom_tool_call", "call_id": "c", "name": "shell", "input": "ls -l"},
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "x"}},
        {"type": "mcp_call", "id": "m", "name": "find", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "no call"},
    ]
    listed = [tuple(call.values()) for call in reading.tool_calls({"output": output})]
    hosted = ("w", "web_search", {"type": "search", "query": "x"})
    assert listed == [("c", "shell", {"_raw": "ls -l"}), hosted, ("m", "find", {"a": 1})]
    custom = {"id": "t", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    message = chat(tool_calls=[custom], function_call={"name": "old", "arguments": "{}"})
    listed = [tuple(call.values()) for call in reading.tool_calls(message)]
    assert listed == [("t", "shell", {"_raw": "ls"}), (None, "old", {})]


def test_finish_reasons() -> None:
    assert reading.finish_reason({"choices": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}) == "length"
    assert reading.finish_reason({"incomplete_details": {"reason": "max_output_tokens"}}) == "max_output_tokens"
    assert reading.finish_reason({"stop_reason": 1, "choices": [], "incomplete_details": None}) is None


def test_names_and_ids_of_the_wrong_type_are_unknown() -> None:
    content = [{"type": "tool_use", "id": 5, "name": None, "input": None}, {"type": "server_tool_use", "id": "s"}, None]
    assert reading.tool_calls({"content": content}) == [{"call_id": None, "name": None, "arguments": {}}]
