from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.response_shapes import (
    TOKEN_FIELDS,
    extract_token_fields,
    response_to_output_items,
    strip_token_fields,
)

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}

leaves = st.sampled_from([None, "", "x", 5, [], {}, "message", "assistant", "thinking", "redacted_thinking", [1]])
members = st.sampled_from(
    ["output", "choices", "message", "type", "role", "content", "thinking", "data", "text", *TOKEN_FIELDS]
)
payloads = st.dictionaries(
    members,
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=5), max_leaves=12
    ),
    max_size=5,
)


@given(payloads)
def test_no_shape_is_too_odd(payload: dict[str, Any]) -> None:
    before = copy.deepcopy(payload)
    items = response_to_output_items(payload)
    assert all(isinstance(item, dict) for item in items)
    try:
        fields = extract_token_fields(payload)
    except ValueError:
        fields = None
    assert fields is None or (
        tuple(fields) == TOKEN_FIELDS and all(fields[name] is not None for name in TOKEN_FIELDS[:3])
    )
    try:
        stripped, carrier = strip_token_fields(items)
    except ValueError:
        assert sum(item.get("generation_token_ids") is not None for item in items) > 1
    else:
        assert [item.keys() for item in stripped] == [item.keys() - set(TOKEN_FIELDS) for item in items]
        assert carrier is None or items[carrier]["generation_token_ids"] is not None
    assert payload == before


def test_the_missing_fields_of_a_carrier_are_named_in_order() -> None:
    with pytest.raises(ValueError, match=r"lacks prompt_token_ids, generation_log_probs$"):
        extract_token_fields({"output": [{"generation_token_ids": []}]})
    with pytest.raises(ValueError, match=r"lacks generation_token_ids, generation_log_probs$"):
        extract_token_fields({"choices": [{"message": {"prompt_token_ids": np.array([1])}}]})


def test_several_carriers_are_refused_even_if_only_one_is_whole() -> None:
    with pytest.raises(ValueError, match="2 items of the response carry token fields"):
        extract_token_fields({"output": [TOKENS], "choices": [{"message": {"prompt_token_ids": [1]}}]})
    with pytest.raises(ValueError, match="output items 0 and 2 both carry"):
        strip_token_fields([TOKENS, {}, TOKENS])


def test_routed_experts_alone_carry_nothing_but_go_along() -> None:
    assert extract_token_fields({"output": [{"routed_experts": [1]}, {**TOKENS, "routed_experts": [2]}]}) == {
        **TOKENS,
        "routed_experts": [2],
    }
    assert extract_token_fields({"output": [{"routed_experts": [1]}]}) is None


@pytest.mark.parametrize(
    ("content", "items"),
    [
        (None, []),
        ("", []),
        ("hey", [{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hey"}]}]),
        ([{"type": "thinking", "thinking": 5}], [{"type": "reasoning", "summary": []}]),
        ([{"type": "redacted_thinking", "data": ""}], [{"type": "reasoning", "summary": [], "encrypted_content": ""}]),
        ({"type": "text"}, []),
    ],
)
def test_an_anthropic_message(content: Any, items: list[Any]) -> None:
    assert response_to_output_items({"type": "message", "role": "assistant", "content": content}) == items


def test_nested_content_is_shared_and_messages_are_copied() -> None:
    message = {"content": [{"text": "a"}]}
    [item] = response_to_output_items({"choices": [{"message": message}]})
    assert item == {"type": "message", "role": "assistant", **message}
    assert item["content"] is message["content"]
    assert "type" not in message
    [stripped], _ = strip_token_fields([item])
    assert stripped is not item
    assert stripped["content"] is item["content"]


def test_an_output_list_counts_even_if_nothing_in_it_is_an_item() -> None:
    choices = [{"message": {"content": "A"}}]
    assert response_to_output_items({"output": ["x"], "choices": choices}) == []
    for nothing in ([], None, "x"):
        assert [item["content"] for item in response_to_output_items({"output": nothing, "choices": choices})] == ["A"]
