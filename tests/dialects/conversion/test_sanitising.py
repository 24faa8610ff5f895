from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.sanitising import hoisted, sanitised
from gym_ray.dialects.conversion.schema import SCHEMAS
from gym_ray.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
LOGGER = "gym_ray.dialects.conversion.sanitising"


def clean(dialect: str, body: dict[str, Any], extensions: frozenset[str] = frozenset()) -> dict[str, Any]:
    before = copy.deepcopy(body)
    try:
        return sanitised(SCHEMAS[dialect], body, extensions)
    finally:
        assert body == before


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger=LOGGER)
    return caplog


def test_unknown_fields_go_at_the_top_and_inside(told: pytest.LogCaptureFixture) -> None:
    part = {"type": "input_text", "text": "a", "newer": 1}
    body = {
        "stream": True,
        "stream_options": {"x": 1},
        "newest": {},
        "input": [{"role": "user", "content": [part, part], "newer": 1}, USER],
        "tools": [{"type": "function", "name": "f", "newer": 1}],
        "text": {"format": {"type": "text", "newer": 1}, "verbosity": "low"},
    }
    made = clean(RESPONSES, body)
    assert made == {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 2}, USER],
        "tools": [{"type": "function", "name": "f"}],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    assert made["input"][1] is USER, "what is whole is not copied"
    assert [record.levelname for record in told.records] == ["INFO"]
    assert "input[0].content[1].newer" in told.text
    assert "newest" in told.text


def test_chat_messages_are_pruned_too() -> None:
    body = {"stream": True, "messages": [{**USER, "newer": 1}], "response_format": {"type": "text", "newer": 1}}
    assert clean(CHAT, body) == {"messages": [USER], "response_format": {"type": "text"}}


def test_items_that_break_the_schema_are_dropped_and_named(told: pytest.LogCaptureFixture) -> None:
    items = [USER, {"role": "user", "content": [{"type": "input_text", "text": 5}]}, {"type": "made_up"}, 7]
    assert clean(RESPONSES, {"input": items})["input"] == [USER]
    [record] = told.records
    assert record.levelname == "WARNING"
    assert "input[1].content[0].text: Input should be a valid string" in record.message
    assert "input[3]: Input should be a valid dictionary" in record.message


def test_an_item_with_half_its_tokens_is_dropped(told: pytest.LogCaptureFixture) -> None:
    item = {"role": "assistant", "content": "x", "prompt_token_ids": [1]}
    assert clean(RESPONSES, {"input": [USER, item]})["input"] == [USER]
    assert "input[1].generation_token_ids: Field required" in told.text


def test_tools_that_break_the_schema_are_dropped_and_named(told: pytest.LogCaptureFixture) -> None:
    good = {"type": "function", "name": "get"}
    tools = [
        {"type": "function"},
        good,
        {"type": "namespace", "name": "n", "tools": [good, {"type": "function"}, "junk"]},
    ]
    made = clean(RESPONSES, {"input": "x", "tools": tools})
    assert made["tools"] == [good, {"type": "namespace", "name": "n", "tools": [good]}]
    for path in ("tools[0].name: Field required", "tools[2].tools[1].name", "tools[2].tools[2]: Input should"):
        assert path in told.text


def test_a_carrier_keeps_its_function_tools(told: pytest.LogCaptureFixture) -> None:
    good, custom = {"type": "function", "name": "get"}, {"type": "custom", "name": "exec"}
    carrier = {
        "type": "additional_tools",
        "tools": [custom, good, {"type": "mcp"}, {"type": "namespace", "name": "n", "tools": [custom, good]}],
    }
    [made] = clean(RESPONSES, {"input": [carrier]})["input"]
    assert made["tools"] == [good, {"type": "namespace", "name": "n", "tools": [good]}]
    assert "input[0].tools: a 'custom' tool in an 'additional_tools' item" in told.text
    assert "input[0].tools[2].server_label: Field required" in told.text


def test_a_wrong_chat_message_is_an_error_and_names_its_place() -> None:
    body = {"messages": [USER, {"role": "user", "newer": 1}, {"role": "robot"}], "tools": [{"type": "function"}]}
    with pytest.raises(InvalidRequestError) as caught:
        clean(CHAT, body)
    assert [(one["type"], one["loc"]) for one in caught.value.problems] == [
        ("missing", ["body", "messages", 1, "content"]),
        ("union_tag_invalid", ["body", "messages", 2]),
        ("missing", ["body", "tools", 0, "function"]),
    ]


def test_provider_fields_of_chat_are_named_when_they_go(told: pytest.LogCaptureFixture) -> None:
    body = {"messages": [], "chat_template_kwargs": {"enable_thinking": False}, "thinking": {}, "output_config": {}}
    assert clean(CHAT, body) == {"messages": []}
    [record] = told.records
    assert record.levelname == "WARNING"
    assert "chat_template_kwargs" in record.message


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "input"]),
        ({"input": [], "temperature": "hot"}, ["body", "temperature"]),
        ({"input": [], "reasoning": {"newer": 1, "effort": 5}}, ["body", "reasoning", "effort"]),
        ({"input": [], "tools": {}}, ["body", "tools"]),
    ],
)
def test_every_other_error_stays_one(body: dict[str, Any], loc: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        clean(RESPONSES, body)
    assert [one["loc"] for one in caught.value.problems] == [loc]


def test_an_extension_survives_and_is_checked() -> None:
    name = frozenset({"required_prefix_token_ids"})
    assert clean(RESPONSES, {"input": "x", "required_prefix_token_ids": [1]}, name) == {
        "input": "x",
        "required_prefix_token_ids": [1],
    }
    with pytest.raises(InvalidRequestError):
        clean(RESPONSES, {"input": "x", "required_prefix_token_ids": "1"}, name)


def test_more_unknown_parts_than_one_look_shows_all_go() -> None:
    part = {"type": "input_text", "text": "a"}
    [made] = clean(RESPONSES, {"input": [{"role": "user", "content": [{**part, "newer": 1}] * 1500}]})["input"]
    assert made["content"] == [part] * 1500


def test_a_conversation_that_would_lose_everything_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"body\.input\.1000: Input should be a valid dictionary"):
        clean(RESPONSES, {"input": [0] * 5000})


def test_the_log_line_is_bounded(told: pytest.LogCaptureFixture) -> None:
    clean(RESPONSES, {"input": [0] * 500})
    assert told.messages[0].endswith("; and 492 more")


def test_a_long_name_is_cut_in_the_log(told: pytest.LogCaptureFixture) -> None:
    clean(RESPONSES, {"input": "x", "n" * 10_000: 1})
    assert len(told.messages[0]) < 400


IMAGE = {"type": "input_image", "image_url": "data:,", "detail": "auto"}


@pytest.mark.parametrize(
    ("items", "instructions", "left", "expected"),
    [
        ([{"role": "system", "content": "a"}, USER], None, 1, "a"),
        ([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}], "base", 0, "base\n\na\n\nb"),
        ([{"role": "developer", "content": [{"type": "input_text", "text": "a"}] * 2}], "", 0, "aa"),
        ([{"role": "system", "content": ""}], "base", 0, "base"),
        ([{"role": "developer", "content": [IMAGE]}, USER], None, 2, None),
        ([{"role": "system", "content": "a"}, {"role": "developer", "content": [IMAGE]}], None, 1, "a"),
        ([USER, {"role": "system", "content": "late"}], None, 2, None),
        ([{"type": "reasoning", "summary": []}, {"role": "system", "content": "late"}], None, 2, None),
    ],
)
def test_the_leading_run_moves_into_the_instructions(
    items: list[Any], instructions: str | None, left: int, expected: str | None
) -> None:
    body = {"input": items, "instructions": instructions}
    made = hoisted(copy.deepcopy(body))
    assert made["instructions"] == expected
    assert made["input"] == items[len(items) - left :]


def test_a_text_input_is_left_alone() -> None:
    assert hoisted({"input": "system: x"}) == {"input": "system: x"}
