from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from gym_ray.token_id_capture.request_items import REQUEST_ENVELOPE_ROLE, request_items


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
