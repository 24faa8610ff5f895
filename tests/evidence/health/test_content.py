"""What counts as something said, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.evidence.health.content import response_says_anything, says_anything

THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


@pytest.mark.parametrize(
    "value",
    [
        "a",
        0,
        False,
        {"type": "message", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        [THOUGHT, {"type": "function_call", "name": "f"}],
        [{"type": "tool_use", "name": "f"}],
        {"type": "output_image"},
        {"boxed": {"value": 42}},
    ],
)
def test_something_is_said(value: Any) -> None:
    assert says_anything(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " \n\t",
        [],
        {},
        [None, [""]],
        {"type": "message", "content": [{"type": "output_text", "text": " "}]},
        {"type": "message", "content": []},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
        [THOUGHT],
        {"type": "redacted_thinking", "data": "x"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ],
)
def test_nothing_is_said(value: Any) -> None:
    assert not says_anything(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([THOUGHT], True),
        ({"type": "thinking", "thinking": "hm"}, True),
        ({"type": "redacted_thinking", "data": "x"}, True),
        ({"role": "assistant", "content": "", "reasoning_content": "hm"}, True),
        ({"type": "reasoning", "summary": [], "content": None}, False),
    ],
)
def test_reasoning_counts_where_it_is_asked_for(value: Any, says: bool) -> None:
    assert says_anything(value, reasoning=True) is says


@pytest.mark.parametrize(
    ("response", "says"),
    [
        ({"output": [THOUGHT]}, False),
        ({"output": [THOUGHT, {"type": "function_call"}]}, True),
        ({"choices": [{"message": {"content": None, "reasoning": "hm"}}]}, False),
        ({"choices": [{"message": {"content": ""}}, {"message": {"content": "a"}}]}, True),
        ({"choices": [{"text": "a"}]}, True),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, False),
        ({"content": [{"type": "text", "text": "a"}]}, True),
        ({"error": "no"}, None),
        ("data: {}", None),
        (None, None),
    ],
)
def test_whole_answers_of_every_dialect(response: Any, says: bool | None) -> None:
    assert response_says_anything(response) is says
