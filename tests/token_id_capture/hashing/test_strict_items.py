from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.fingerprint import ConversationHasher, conversation_digest
from gym_ray.token_id_capture.hashing.strict_items import uncovered_json

CALL = {"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"type": "tool_result", "tool_use_id": "k", "content": "x"}
TEXT = {"type": "text", "text": "a"}


def strict(item: dict[str, Any]) -> str:
    hasher = ConversationHasher()
    hasher.feed([item])
    return hasher.strict_digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"type": "custom_tool_call", "call_id": "k", "name": "n", "input": "1"},
            {"type": "custom_tool_call", "call_id": "k", "name": "n", "input": "2"},
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "k", "output": "1"},
            {"type": "custom_tool_call_output", "call_id": "k", "output": "2"},
        ),
        ({"type": "reasoning", "summary": [{"text": "a"}]}, {"type": "reasoning", "summary": [{"text": "b"}]}),
        ({"type": "reasoning", "summary": []}, {"type": "reasoning", "summary": [], "encrypted_content": "E"}),
        ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
        ({"role": "user", "content": [RESULT]}, {"role": "user", "content": [{**RESULT, "is_error": True}]}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "n"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": None, "refusal": "no"}),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [{**CALL, "custom": {"input": "x"}}]},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [{**CALL, "function": {**CALL["function"], "parsed": 1}}]},
        ),  # type: ignore[dict-item]
        ({"role": "assistant", "content": [TEXT]}, {"role": "assistant", "content": [{**TEXT, "citations": ["c"]}]}),
        ({"role": "user", "type": "message"}, {"role": "user", "type": "note"}),
        (
            {"type": "function_call_output", "call_id": "k", "output": "x"},
            {"type": "function_call_output", "call_id": "k", "output": "x", "is_error": True},
        ),
        (
            {"role": "tool", "tool_call_id": "k", "content": "x"},
            {"role": "tool", "tool_call_id": "k", "content": "x", "name": "n"},
        ),
        ({"type": "odd", "n": 1}, {"type": "odd", "n": 2**70}),
        ({"type": "odd", "n": 2**70}, {"type": "odd", "n": 2**70 + 1}),
        ({"type": "odd", "n": "\ud800"}, {"type": "odd", "n": "\ud801"}),
    ],
    ids=lambda item: ascii(item)[:60],
)
def test_what_the_digest_leaves_out_is_told_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert conversation_digest([one]) == conversation_digest([other])
    assert strict(one) != strict(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "a"}, {"content": "a", "role": "user", "name": None}),
        (
            {"role": "assistant", "content": "a"},
            {"type": "message", "role": "assistant", "content": "a", "id": "m", "status": "completed"},
        ),
        (
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "a", "prompt_token_ids": [1], "generation_token_ids": [2]},
        ),
        (
            {"role": "assistant", "content": [TEXT]},
            {"role": "assistant", "content": [{**TEXT, "annotations": [1], "cache_control": {}, "logprobs": []}]},
        ),
        (
            {"role": "user", "content": [RESULT]},
            {"role": "user", "content": [{**RESULT, "cache_control": {"type": "ephemeral"}}]},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [{**CALL, "index": 0}], "content": ""},
        ),
        (
            {"type": "function_call", "call_id": "k", "name": "n__f", "arguments": '{"a":1}'},
            {
                "type": "function_call",
                "call_id": "k",
                "id": "fc",
                "name": "f",
                "namespace": "n",
                "arguments": '{ "a": 1 }',
            },
        ),
        ({"type": "reasoning", "summary": [1]}, {"type": "reasoning", "summary": [1], "id": "rs", "status": None}),
        (
            {"type": "custom_tool_call", "call_id": "k", "input": "1"},
            {"type": "custom_tool_call", "call_id": "k", "input": "1", "id": "ct"},
        ),
    ],
    ids=lambda item: ascii(item)[:60],
)
def test_what_never_reaches_the_model_makes_no_difference(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert strict(one) == strict(other)


def test_the_base_digest_is_part_of_the_strict_one() -> None:
    assert strict({"role": "user", "content": "a"}) != strict({"role": "user", "content": "b"})
    assert uncovered_json({"role": "user", "content": "a"}) == b""


def test_keys_are_in_one_order_whatever_the_way() -> None:
    for value in (1, 2**70):
        assert strict({"type": "odd", "a": value, "b": 1}) == strict({"b": 1, "a": value, "type": "odd"})


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON form"):
        uncovered_json({"type": "odd", "n": {1: 2, "a": 3}})
