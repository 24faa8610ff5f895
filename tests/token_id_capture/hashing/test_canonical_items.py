from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.hashing.canonical_items import (
    canonical_json,
    canonicalize_tool_arguments,
    content_parts,
    is_model_authored,
    tool_calls,
    tool_results,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_two_spellings_of_arguments_agree(value: Any, indent: int | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert canonicalize_tool_arguments(text) == canonical_json(value)
    assert json.loads(canonical_json(value)) == value
    if not isinstance(value, str) and value is not None:
        assert canonicalize_tool_arguments(value) == canonical_json(value)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("  not json ", "not json"),
        ("   ", ""),
        ("[1,", "[1,"),
        ("NaN", "null"),
        ("[-Infinity]", "[null]"),
        (float("inf"), "null"),
        ("1E2", "100.0"),
        ("1", "1"),
        ("1.0", "1.0"),
        ('{"a":-9223372036854775808}', '{"a":-9223372036854775808}'),
        ('{"\\u00e9":"\\n"}', '{"é":"\\n"}'),
    ],
)
def test_arguments(value: Any, canonical: str) -> None:
    assert canonicalize_tool_arguments(value) == canonical


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        b"bytes",
        2**64,
        -(2**63) - 1,
        "[18446744073709551616]",
        "\ud800",
        {"a": "\udfff"},
        '{"a":"\\ud800"}',
        json.loads("[" * 300 + "]" * 300),
        "[" * 300 + "]" * 300,
    ],
)
def test_what_has_no_canonical_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - a lone surrogate in plain text is refused when it is encoded
        canonicalize_tool_arguments(value).encode()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, []),
        ("", []),
        ("a", [("text", "a")]),
        (["", "a", {"text": "b"}, {"type": "text", "text": ""}], [("text", "a"), ("text", "b")]),
        ([{"type": "input_text", "text": "a", "cache_control": {}}], [("text", "a")]),
        ([{"type": "tool_use", "id": "k"}, {"type": "tool_result", "text": "x"}], []),
        ([{"type": "output_text", "text": 5}], [("output_text", '{"text":5,"type":"output_text"}')]),
        ([{"type": "image", "b": 1, "a": 2}], [("image", '{"a":2,"b":1,"type":"image"}')]),
        (
            [{"type": "refusal", "refusal": "no", "text": "x"}],
            [("refusal", '{"refusal":"no","text":"x","type":"refusal"}')],
        ),
        ([{"type": ["odd"], "text": "x"}], [("['odd']", '{"text":"x","type":["odd"]}')]),
    ],
)
def test_content(content: Any, parts: list[tuple[str, str]]) -> None:
    assert content_parts({"content": content}) == parts


@pytest.mark.parametrize(
    "content", [5, {}, True, [None], [5], [{}], [{"type": None}], [{"text": 5}], [["a"]], [{"type": "x", 1: 2}]]
)
def test_content_that_cannot_be_hashed_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"content|canonical"):
        content_parts({"content": content})


@pytest.mark.parametrize(
    ("item", "calls"),
    [
        ({"type": "function_call", "name": "f"}, [("", "f", "")]),
        ({"type": "function_call", "call_id": "", "id": "i", "namespace": "n", "name": "f"}, [("i", "n__f", "")]),
        ({"type": "function_call", "call_id": 5, "name": None, "arguments": {}}, [("5", "", "{}")]),
        (
            {"content": [{"type": "tool_use", "id": "k", "name": "f", "input": {"b": 1, "a": 2}}]},
            [("k", "f", '{"a":2,"b":1}')],
        ),
        ({"tool_calls": [None, {"id": "k"}, {"function": None}]}, [("", "", ""), ("k", "", ""), ("", "", "")]),
        ({"tool_calls": [{"id": "k", "function": {"name": "f", "arguments": "{ }"}}]}, [("k", "f", "{}")]),
        ({"tool_calls": []}, []),
        ({"tool_calls": None, "content": "tool_use"}, []),
    ],
)
def test_calls(item: dict[str, Any], calls: list[tuple[str, str, str]]) -> None:
    assert tool_calls(item) == calls


@pytest.mark.parametrize("listed", [{"a": 1}, "x", ["x"], [5], [{"function": "f"}]])
def test_calls_that_are_no_objects_are_refused(listed: Any) -> None:
    with pytest.raises(ValueError, match="tool"):
        tool_calls({"tool_calls": listed})


@pytest.mark.parametrize(
    ("item", "results"),
    [
        ({"type": "function_call_output", "call_id": "k", "output": "x"}, [("k", "x")]),
        ({"type": "function_call_output", "id": "i", "output": [{"b": 1, "a": 2}]}, [("i", '[{"a":2,"b":1}]')]),
        ({"type": "function_call_output", "role": "tool", "content": "y"}, [("", "null")]),
        ({"role": "tool", "content": [{"type": "text", "text": "x"}]}, [("", '[{"text":"x","type":"text"}]')]),
        (
            {"content": [{"type": "tool_result", "id": "i", "content": "x"}, {"type": "tool_result"}]},
            [("i", "x"), ("", "null")],
        ),
        ({"role": "user", "content": "x"}, []),
    ],
)
def test_results(item: dict[str, Any], results: list[tuple[str, str]]) -> None:
    assert tool_results(item) == results


@pytest.mark.parametrize(
    ("item", "authored"),
    [
        ({"role": "assistant"}, True),
        ({"type": "function_call"}, True),
        ({"type": "function_call", "role": "user"}, True),
        ({"type": "reasoning"}, False),
        ({"type": "custom_tool_call"}, False),
        ({"role": "user"}, False),
        ("assistant", False),
        (None, False),
    ],
)
def test_what_the_model_wrote(item: object, authored: bool) -> None:
    assert is_model_authored(item) is authored
