from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from gym_ray.token_id_capture.request_items import (
    REQUEST_ENVELOPE_ROLE,
    RequestItems,
    is_text_turn,
    request_items,
    text_input_of,
    text_turn,
)


class Turn(BaseModel):
    role: str
    content: str


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("body", "items"),
    [
        (None, []),
        ({}, []),
        ({"messages": "text", "input": [USER]}, [USER]),
        ({"messages": None, "input": None}, []),
        ({"messages": [], "input": [USER]}, []),
        ({"input": [None, USER, Turn(role="user", content="b")]}, [USER, {"role": "user", "content": "b"}]),
        ({"messages": [Turn(role="user", content="b")]}, [{"role": "user", "content": "b"}]),
    ],
)
def test_turns(body: Any, items: list[Any]) -> None:
    assert request_items(body) == items


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"instructions": "é"}, '{"instructions": "\\u00e9", "tools": null}'),
        ({"tools": [{"b": 1, "a": [2]}]}, '{"instructions": null, "tools": [{"a": [2], "b": 1}]}'),
        ({"instructions": {1}, "tools": []}, '{"instructions": "{1}", "tools": []}'),
    ],
)
def test_the_envelope_stands_in_front(members: dict[str, Any], text: str) -> None:
    for body in ({"messages": [USER], **members}, {"input": [USER], **members}):
        assert request_items(body) == [{"role": REQUEST_ENVELOPE_ROLE, "content": text}, USER]
    assert request_items({"input": "text", **members}) == [{"role": REQUEST_ENVELOPE_ROLE, "content": text}]


def test_no_envelope_without_instructions_or_tools() -> None:
    assert request_items({"input": [USER], "instructions": "", "tools": []}) == [USER]


def test_the_bodys_list_is_left_alone() -> None:
    body = {"messages": [USER], "tools": [{}]}
    before = json.dumps(body)
    request_items(body).clear()
    assert json.dumps(body) == before


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "hello"}, "hello"),
        ({"input": "hello", "instructions": "Be brief.", "tools": [{}]}, "hello"),
        ({"input": ""}, ""),
        ({"input": "hello", "messages": None}, "hello"),
        ({"input": "hello", "messages": []}, None),
        ({"input": [USER]}, None),
        ({"input": 5}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_text_input_is_carried_beside_the_items(body: Any, text: str | None) -> None:
    items = request_items(body)
    assert text_input_of(items) == text
    assert text_input_of(RequestItems(items)) == text
    assert text_input_of(list(items)) is None


@pytest.mark.parametrize(
    "turn",
    [
        text_turn("hello"),
        {"type": "message", "role": "user", "content": "hello"},
        {"type": None, "role": "user", "content": "hello", "status": None},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "message", "id": "m", "role": "user", "content": [{"type": "text", "text": "hello"}]},
    ],
)
def test_spellings_of_a_text_turn(turn: object) -> None:
    assert is_text_turn(turn)


@pytest.mark.parametrize(
    "turn",
    [
        "hello",
        {"content": "hello"},
        {"type": "user", "content": "hello"},
        {"role": "developer", "content": "hello"},
        {"role": "user", "type": "reasoning", "content": "hello"},
        {"role": "user", "type": ["message"], "content": "hello"},
        {"role": "user"},
        {"role": "user", "content": []},
        {"role": "user", "content": ["hello"]},
        {"role": "user", "content": [{"text": "hello"}]},
        {"role": "user", "content": [{"type": "input_text", "text": None}]},
        {"role": "user", "content": [{"type": "input_image", "text": "hello"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]},
    ],
)
def test_anything_else_is_no_text_turn(turn: object) -> None:
    assert not is_text_turn(turn)
