from __future__ import annotations

import pickle
from typing import Any

import pytest

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.schema import SCHEMAS, body_problems, invalid, problem

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def found(dialect: str, body: dict[str, Any], extensions: frozenset[str] = frozenset()) -> list[tuple[Any, ...]]:
    wrong = body_problems(SCHEMAS[dialect].whole, body, extensions)
    return [(one["type"], one["loc"], one["msg"]) for one in wrong]


RESPONSES_CASES: list[tuple[dict[str, Any], str, tuple[int | str, ...], str]] = [
    ({}, "missing", ("input",), "Field required"),
    ({"input": "hi", "client_metadata": 1}, "extra_forbidden", ("client_metadata",), "Extra inputs are not permitted"),
    ({"input": "hi", "top_k": 1}, "extra_forbidden", ("top_k",), "Extra inputs are not permitted"),
    ({"input": "", "temperature": "hot"}, "float_type", ("temperature",), "Input should be a valid number"),
    ({"input": "", "temperature": True}, "float_type", ("temperature",), "Input should be a valid number"),
    ({"input": "", "temperature": float("nan")}, "finite_number", ("temperature",), "Input should be a finite number"),
    ({"input": "", "max_output_tokens": "1"}, "int_type", ("max_output_tokens",), "Input should be a valid integer"),
    ({"input": "", "max_output_tokens": 1.0}, "int_type", ("max_output_tokens",), "Input should be a valid integer"),
    ({"input": "", "store": 1}, "bool_type", ("store",), "Input should be a valid boolean"),
    ({"input": "", "model": 1}, "string_type", ("model",), "Input should be a valid string"),
    ({"input": "", "metadata": {"a": 1}}, "string_type", ("metadata", "a"), "Input should be a valid string"),
    ({"input": "", "reasoning": {"new": 1}}, "extra_forbidden", ("reasoning", "new"), "Extra inputs are not permitted"),
    ({"input": "", "truncation": "x"}, "literal_error", ("truncation",), "Input should be 'auto' or 'disabled'"),
    ({"input": [5]}, "dict_type", ("input", 0), "Input should be a valid dictionary"),
    ({"input": [USER, {"role": "user"}]}, "missing", ("input", 1, "content"), "Field required"),
    ({"input": [{**CALL, "name": 1}]}, "string_type", ("input", 0, "name"), "Input should be a valid string"),
    ({"input": [{**CALL, "new": 1}]}, "extra_forbidden", ("input", 0, "new"), "Extra inputs are not permitted"),
    ({"input": "", "tools": [{"type": "function"}]}, "missing", ("tools", 0, "name"), "Field required"),
    ({"input": "", "tool_choice": {"type": "function"}}, "missing", ("tool_choice", "name"), "Field required"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
        "string_type",
        ("input", 0, "content", 0, "text"),
        "Input should be a valid string",
    ),
    (
        {"input": "", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": 1}]}]},
        "string_type",
        ("tools", 0, "tools", 0, "name"),
        "Input should be a valid string",
    ),
    (
        {"input": [{"content": "x"}]},
        "union_tag_not_found",
        ("input", 0),
        "Unable to extract tag using discriminator 'type'",
    ),
]


@pytest.mark.parametrize(("body", "kind", "loc", "msg"), RESPONSES_CASES)
def test_one_problem_names_the_field_that_was_meant(
    body: dict[str, Any], kind: str, loc: tuple[int | str, ...], msg: str
) -> None:
    assert found(RESPONSES, body) == [(kind, loc, msg)]


CHAT_CASES: list[tuple[dict[str, Any], str, tuple[int | str, ...], str]] = [
    ({"model": "x"}, "missing", ("messages",), "Field required"),
    ({"messages": {}}, "list_type", ("messages",), "Input should be a valid list"),
    ({"messages": [], "seed": 1.5}, "int_type", ("seed",), "Input should be a valid integer"),
    ({"messages": [], "stop": 5}, "string_type", ("stop",), "Input should be a valid string"),
    ({"messages": [], "min_p": 0.1}, "extra_forbidden", ("min_p",), "Extra inputs are not permitted"),
    ({"messages": [], "thinking": 1}, "dict_type", ("thinking",), "Input should be a valid dictionary"),
    (
        {"messages": [{"content": "x"}]},
        "union_tag_not_found",
        ("messages", 0),
        "Unable to extract tag using discriminator 'role'",
    ),
    ({"messages": [{"role": "tool", "content": ""}]}, "missing", ("messages", 0, "tool_call_id"), "Field required"),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f"}}]}
            ]
        },
        "missing",
        ("messages", 0, "tool_calls", 0, "function", "arguments"),
        "Field required",
    ),
]


@pytest.mark.parametrize(("body", "kind", "loc", "msg"), CHAT_CASES)
def test_chat_problems(body: dict[str, Any], kind: str, loc: tuple[int | str, ...], msg: str) -> None:
    assert found(CHAT, body)[0] == (kind, loc, msg)


def test_a_value_of_no_offered_type_says_all_that_were_offered() -> None:
    assert found(RESPONSES, {"input": 5}) == [
        ("string_type", ("input",), "Input should be a valid string"),
        ("list_type", ("input",), "Input should be a valid list"),
    ]


def test_an_unknown_kind_is_named_with_the_kinds_there_are() -> None:
    [(kind, loc, msg)] = found(RESPONSES, {"input": [{"type": "made_\ud83dup"}]})
    assert (kind, loc) == ("union_tag_invalid", ("input", 0))
    assert msg.startswith(
        "Input tag 'made_\\ud83dup' found using 'type' does not match any of the expected tags: 'mess"
    )


def test_an_unknown_role_is_named_with_the_roles_there_are() -> None:
    [(kind, loc, msg)] = found(RESPONSES, {"input": [{"role": "tool", "content": "x"}]})
    assert (kind, loc) == ("union_tag_invalid", ("input", 0))
    assert msg.endswith("'user', 'assistant', 'system', 'developer'")


def test_every_problem_of_a_body_is_found_at_once() -> None:
    assert {loc for _, loc, _ in found(RESPONSES, {"model": 1, "x": 1})} == {("model",), ("input",), ("x",)}


TOKENS = ["prompt_token_ids", "generation_token_ids", "generation_log_probs"]
OWN_ITEMS = [
    (RESPONSES, CALL),
    (RESPONSES, {"type": "reasoning", "summary": []}),
    (RESPONSES, {"role": "assistant", "content": "x"}),
    (CHAT, {"role": "assistant", "content": "x"}),
]


@pytest.mark.parametrize(("dialect", "item"), OWN_ITEMS)
@pytest.mark.parametrize("given", [*TOKENS, "routed_experts"])
def test_token_metadata_comes_whole_or_not_at_all(dialect: str, item: dict[str, Any], given: str) -> None:
    """A186: any of the four asks for the first three."""
    elements = SCHEMAS[dialect].elements
    missing = [name for name in TOKENS if name != given]
    assert found(dialect, {elements: [{**item, given: [1]}]}) == [
        ("missing", (elements, 0, name), "Field required") for name in missing
    ]
    whole = {name: [1] for name in TOKENS} | {"routed_experts": "…"}
    assert found(dialect, {elements: [{**item, **whole}]}) == []
    unset = dict.fromkeys([*TOKENS, "routed_experts"])
    assert found(dialect, {elements: [{**item, **unset}]}) == []


def test_tokens_of_a_user_are_no_fields() -> None:
    [(kind, loc, _)] = found(RESPONSES, {"input": [{**USER, "prompt_token_ids": [1]}]})
    assert (kind, loc) == ("extra_forbidden", ("input", 0, "prompt_token_ids"))


def test_big_numbers_and_lone_surrogates_are_values_like_others() -> None:
    """B40, B41."""
    assert (
        found(CHAT, {"messages": [{"role": "tool", "tool_call_id": "x", "content": "cut \ud83d"}], "seed": 2**64}) == []
    )
    assert (
        found(RESPONSES, {"input": "cut \ud83d", "max_output_tokens": 10**40, "metadata": {"\ud83d": "\ud83d"}}) == []
    )


def test_an_extension_is_taken_only_where_it_is_said_to_be() -> None:
    name = "required_prefix_token_ids"
    body = {"input": "hi", name: [1, 2]}
    assert found(RESPONSES, body) == [("extra_forbidden", (name,), "Extra inputs are not permitted")]
    assert found(RESPONSES, body, frozenset({name})) == []
    assert found(RESPONSES, {"input": "hi", name: None}, frozenset({name})) == []
    assert found(RESPONSES, {"input": "hi"}, frozenset({name})) == []
    assert found(RESPONSES, {"input": "hi", name: [1, "2"]}, frozenset({name})) == [
        ("int_type", (name, 1), "Input should be a valid integer")
    ]
    assert found(RESPONSES, {"input": "hi", "own": object()}, frozenset({"own"})) == []


def test_a_long_list_is_looked_at_until_it_has_shown_enough() -> None:
    wrong = found(RESPONSES, {"input": [USER] * 600 + [{"role": "user"}] * 2000})
    assert [loc[1] for _, loc, _ in wrong] == list(range(600, 1024))


def test_the_error_is_bounded_and_says_where_in_the_body() -> None:
    many = [problem("missing", "Field required", {"big": "x" * 5000}, "input", index) for index in range(300)]
    error = invalid(many)
    assert (error.status, len(error.problems)) == (422, 100)
    assert error.problems[7] == {"type": "missing", "loc": ["body", "input", 7], "msg": "Field required"}
    assert str(error) == "body.input.0: Field required"
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_a_small_input_is_repeated() -> None:
    small = {"a": [1, "x" * 4000]}
    error = invalid([problem("value_error", "m", small, "input", expected="False")])
    assert error.problems[0]["input"] is small
    assert error.problems[0]["ctx"] == {"expected": "False"}
