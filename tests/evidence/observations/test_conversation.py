"""Items of a conversation: what each kind is given, what it keeps, what is refused and where."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from pydantic import TypeAdapter, ValidationError

from gym_ray.evidence.observations import AgentInvocation, validated_conversation
from gym_ray.evidence.observations.conversation import KINDS

ANSWER = {
    "type": "message",
    "role": "assistant",
    "id": "m",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi", "annotations": []}],
}
REASONING = {"type": "reasoning", "id": "z", "summary": []}


def one(item: dict[str, Any]) -> dict[str, Any]:
    [checked] = validated_conversation([item])
    return checked


@pytest.mark.parametrize(
    ("item", "whole"),
    [
        ({"role": "user", "content": "go"}, {"content": "go", "role": "user", "type": "message", "phase": None}),
        (
            ANSWER,
            {
                "id": "m",
                "content": [{"annotations": [], "text": "hi", "type": "output_text", "logprobs": None}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
                "phase": None,
            },
        ),
        (
            REASONING,
            {"id": "z", "summary": [], "type": "reasoning", "encrypted_content": None, "content": None},
        ),
    ],
)
def test_an_item_is_given_what_a_reader_expects(item: dict[str, Any], whole: dict[str, Any]) -> None:
    assert one(item) == whole
    assert list(one(item)) == list(whole)
    assert one(whole) == whole, "a whole item stays as it is"


@pytest.mark.parametrize(
    "item",
    [
        ANSWER | {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]},
        REASONING | {"status": "completed", "made_up": {"by": "an engine"}},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{not json", "caller": {"type": "direct"}},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:,"}]},
        {"role": "assistant", "content": "as a client wrote it"},
        {"role": "developer", "content": [{"type": "input_text", "text": "\ud800", "extra": 1}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "input_text", "text": "t"}]},
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
        {"type": "function_call_output", "name": "a tool that is called by name", "output": "o"},
        {"id": "a reference without a type"},
    ],
)
def test_whatever_an_item_brought_stays(item: dict[str, Any]) -> None:
    before = copy.deepcopy(item)
    checked = one(item)
    assert item == before
    assert {key: checked[key] for key in item if key != "content"} == {k: v for k, v in item.items() if k != "content"}
    content = item.get("content")
    if isinstance(content, list):
        pairs = zip(content, checked["content"], strict=True)
        assert all(given.items() <= kept.items() for given, kept in pairs)
    else:
        assert checked.get("content") == content


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"type": "nonsense"}, (1,)),
        ({"content": "neither type nor role"}, (1,)),
        ({"role": "tool", "content": "a chat role"}, (1,)),
        ("text", (1,)),
        ({"type": "message", "content": "c"}, (1, "message")),
        ({"type": "message", "role": "user"}, (1, "message", "user", "content")),
        ({"role": "user", "content": [{"type": "input_text"}]}, (1, "message", "user", "content")),
        ({"type": None, "role": "user", "content": "c"}, (1,)),
        ({"type": 5}, (1,)),
        ({"type": ["message"]}, (1,)),
        (None, (1,)),
        ({"type": "function_call", "call_id": 5, "name": "n", "arguments": ""}, (1, "function_call", "call_id")),
        ({"type": "function_call", "call_id": "c", "name": "n", "arguments": {}}, (1, "function_call", "arguments")),
        ({"type": "function_call_output", "call_id": "c", "output": 42}, (1, "function_call_output", "output")),
        ({"type": "function_call_output", "call_id": "c"}, (1, "function_call_output", "output")),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(item: Any, place: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        validated_conversation([{"role": "user", "content": "fine"}, item])
    assert all(error["loc"][: len(place)] == place for error in refused.value.errors())


def test_every_kind_of_the_official_sdk_is_known() -> None:
    """Read from the SDK's own types, so that a kind which a new version brings is noticed."""
    schema = TypeAdapter(ResponseInputItemParam).json_schema()
    kinds = {
        member["const"]
        for definition in schema["$defs"].values()
        if (member := definition.get("properties", {}).get("type", {})).get("const") in _item_kinds(schema)
    }
    assert len(kinds) > 20
    assert kinds <= set(KINDS)


def _item_kinds(schema: dict[str, Any]) -> set[str]:
    definitions = [schema["$defs"][option["$ref"].rsplit("/", 1)[1]] for option in schema["anyOf"]]
    return {d["properties"]["type"]["const"] for d in definitions if "const" in d["properties"].get("type", {})}


def test_what_an_item_only_carries_is_neither_walked_nor_copied() -> None:
    action: dict[str, Any] = {}
    item = {"type": "web_search_call", "id": "w", "action": action}
    action["loop"] = action  # walking it would never end
    checked = one(item)
    assert checked is not item
    assert checked["action"] is action


def test_setting_a_conversation_checks_it() -> None:
    invocation = AgentInvocation(invocation_id="i")
    invocation.conversation = [{"role": "user", "content": "go"}]
    assert invocation.conversation == [{"content": "go", "role": "user", "type": "message", "phase": None}]
    with pytest.raises(ValidationError):
        invocation.conversation = [{"type": "nonsense"}]
