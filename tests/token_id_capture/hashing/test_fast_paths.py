from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.hashing.canonical_items import is_model_authored
from gym_ray.token_id_capture.hashing.fast_paths import fast_path
from gym_ray.token_id_capture.hashing.item_bytes import context_bytes, item_bytes, spine_bytes
from gym_ray.token_id_capture.hashing.strict_items import uncovered_json

CALL = {"id": "k", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
USUAL: list[dict[str, Any]] = [
    {"role": "user", "content": "é"},
    {"content": "", "role": "assistant"},
    {"role": "system", "content": [{"type": "text", "text": "a"}, {"text": "", "type": "input_text"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "assistant", "content": "a", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "k", "content": "x"},
    {"type": "message", "role": "developer", "content": "a"},
    {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": []},
    {"type": "function_call", "call_id": "k", "name": "f", "arguments": "", "id": "fc", "status": "completed"},
    {"type": "function_call", "call_id": "k", "name": "f", "arguments": "not json"},
    {"type": "function_call_output", "call_id": "k", "output": "x", "id": "o"},
]
ODD: list[dict[str, Any]] = [
    {},
    {"role": "user", "content": "a", "name": "n"},
    {"role": "user", "content": None},
    {"role": "narrator", "content": "a"},
    {"role": "tool", "content": "a"},
    {"role": "tool", "tool_call_id": None, "content": "a"},
    {"role": "tool", "tool_call_id": "k", "content": ""},
    {"role": "assistant", "content": [{"type": "text", "text": "a", "citations": [1]}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]},
    {"role": "assistant", "content": ["a"]},
    {"role": "assistant", "content": [], "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [CALL]},
    {"role": "assistant", "content": "a", "tool_calls": []},
    {"role": "assistant", "content": "a", "tool_calls": [None]},
    {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "type": "custom"}]},
    {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "extra": 1}]},
    {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "function": {"name": "f"}}]},
    {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]},
    {"role": "user", "content": "a", "tool_calls": [CALL]},
    {"type": "note", "role": "user", "content": "a"},
    {"type": "function_call", "call_id": "", "name": "f", "arguments": "", "id": "fc"},
    {"type": "function_call", "call_id": "k", "name": None, "arguments": ""},
    {"type": "custom_tool_call_output", "call_id": "k", "output": "x"},
    {"type": "function_call_output", "call_id": "", "output": "x", "id": "o"},
    {"type": "function_call_output", "call_id": "k", "output": [{"type": "input_text", "text": "x"}]},
]

labels = st.sampled_from(
    [
        None,
        "",
        "assistant",
        "user",
        "tool",
        "system",
        "function_call",
        "function_call_output",
        "message",
        "note",
        "reasoning",
        5,
        ["x"],
        "k",
        *("custom", "function", "text", "output_text", "thinking", "tool_use", "tool_result"),
    ]
)
texts = st.sampled_from(["", "a", "é", "{}", '{"b": 1, "a": [1.0]}', " 5 ", None, 5, "\ud800"])
blocks = st.one_of(
    texts,
    st.fixed_dictionaries({"type": labels, "text": texts}, optional={"annotations": texts, "citations": texts}),
    st.fixed_dictionaries(
        {"type": labels}, optional={"id": texts, "content": texts, "input": texts, "is_error": texts}
    ),
)
calls = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"id": texts, "type": labels, "function": st.fixed_dictionaries({"name": texts, "arguments": texts})},
        optional={"index": st.just(0), "custom": texts},
    ),
)
items = st.fixed_dictionaries(
    {},
    optional={
        "role": labels,
        "type": labels,
        "content": texts | st.lists(blocks, max_size=2),
        "tool_calls": st.none() | st.lists(calls, max_size=2),
        "tool_call_id": texts,
        "call_id": texts,
        "id": texts,
        "name": texts,
        "arguments": texts,
        "output": texts | st.lists(blocks, max_size=1),
        "status": texts,
    },
)
replacements = st.lists(
    st.tuples(
        st.sampled_from(["role", "type", "content", "tool_calls", "tool_call_id", "call_id", "name", "arguments"]),
        labels | texts | st.lists(blocks, max_size=2) | st.lists(calls, max_size=2),
    ),
    max_size=1,
)
nearly_usual = st.tuples(st.sampled_from(USUAL + ODD), replacements).map(lambda pair: {**pair[0], **dict(pair[1])})


def general_path(item: dict[str, Any]) -> tuple[bytes | None, bytes, bytes]:
    return spine_bytes(item) if is_model_authored(item) else None, context_bytes(item), uncovered_json(item)


@given(items | nearly_usual)
def test_both_paths_give_the_same_bytes(item: dict[str, Any]) -> None:
    try:
        expected = general_path(item)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - the reasons are those of the general path, tested there
            item_bytes(item)
        return
    assert item_bytes(item) == expected
    usual = fast_path(item)
    assert usual is None or (*usual, b"") == expected


@pytest.mark.parametrize("item", USUAL, ids=str)
def test_usual_items_have_a_fast_path(item: dict[str, Any]) -> None:
    usual = fast_path(item)
    assert usual is not None
    assert (*usual, b"") == general_path(item)


@pytest.mark.parametrize("item", ODD, ids=str)
def test_odd_items_have_no_fast_path(item: dict[str, Any]) -> None:
    assert fast_path(item) is None


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "\ud800"},
        {"role": "tool", "tool_call_id": "\ud800", "content": "x"},
        {"type": "function_call", "call_id": "k", "name": "f", "arguments": "[18446744073709551616]"},
    ],
    ids=ascii,
)
def test_a_fast_path_refuses_too(item: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"surrogates|canonical"):
        fast_path(item)
