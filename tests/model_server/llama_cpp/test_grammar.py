"""Grammars from tools and schemas; that llama.cpp takes them is tested with the model."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects.neutral import PromptRequest, ResponseFormat, Tool, ToolChoice, Turn
from gym_ray.errors import UnsupportedRequestError
from gym_ray.model_server.llama_cpp.grammar import build_grammar
from gym_ray.model_server.llama_cpp.json_grammar import JsonGrammar, quoted

USER = (Turn("user", "x"),)
ONE = Tool("one", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
TWO = Tool('t"wo', "", {})


def rules(request: PromptRequest) -> dict[str, str]:
    grammar = build_grammar(request, "line")
    assert grammar is not None
    return dict(line.split(" ::= ", 1) for line in grammar.splitlines())  # type: ignore[misc]


def test_auto_leaves_both_ways_open_and_text_cannot_look_like_a_call() -> None:
    found = rules(PromptRequest(USER, (ONE, TWO)))
    assert found["root"] == "call | text"
    assert found["call"] == r'(tool-0 | tool-1) "\n"'
    assert found["line-start"] == r"[^\n\r\t <]"
    assert found["tool-1"].startswith(r'"<tool_call>{\"name\": \"t\\\"wo\", \"arguments\": "')


def test_a_demanded_call_leaves_no_text_and_a_named_one_no_other_tool() -> None:
    assert rules(PromptRequest(USER, (ONE, TWO), ToolChoice("required")))["root"] == "call"
    named = rules(PromptRequest(USER, (ONE, TWO), ToolChoice("required", 't"wo')))
    assert named["call"] == r'(tool-1) "\n"'
    assert "tool-0" not in named


def test_none_leaves_text_only() -> None:
    found = rules(PromptRequest(USER, (ONE,), ToolChoice("none")))
    assert (found["root"], found["line-start"]) == ("text", r"[^\n\r\t ]")


def test_a_tuned_model_without_tools_is_free() -> None:
    assert build_grammar(PromptRequest(USER), "marker") is None
    assert build_grammar(PromptRequest(USER, (ONE,), ToolChoice("none")), "marker") is None
    assert "call | text" in str(build_grammar(PromptRequest(USER, (ONE,)), "marker"))


def test_a_response_format_takes_the_place_of_text() -> None:
    found = rules(PromptRequest(USER, (ONE,), response_format=ResponseFormat({"enum": ["x"]})))
    assert (found["root"], found["text"], found["answer"]) == ("call | text", r'answer "\n"', r'"\"x\""')
    assert rules(PromptRequest(USER, response_format=ResponseFormat()))["text"] == r'json-object "\n"'


def test_literals_escape_what_the_grammar_would_read() -> None:
    assert quoted('a"b\\c\nd\te\r') == r'"a\"b\\c\nd\te\r"'


def members(schema: dict[str, Any]) -> dict[str, str]:
    grammar = JsonGrammar()
    grammar.schema(schema, "s", "p")
    return dict(line.split(" ::= ", 1) for line in grammar.text().splitlines())  # type: ignore[misc]


def test_optional_members_may_be_left_out_and_commas_stand_between_two() -> None:
    found = members({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]})
    assert found["s"] == '"{" s-from-0 "}"'
    assert found["s-from-0"] == r'"\"a\": " s-0 s-after-1 | s-from-1'
    assert found["s-from-1"] == r'"\"b\": " s-1 ""'
    assert found["s-after-1"] == r'", " "\"b\": " s-1 ""'


def test_bounds_are_kept_and_set_where_there_are_none() -> None:
    assert members({"type": "string"})["s"] == r'"\"" json-char{0,256} "\""'
    assert members({"type": "string", "minLength": 2, "maxLength": 4})["s"] == r'"\"" json-char{2,4} "\""'
    assert members({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})["s"] == (
        '"[" s-item (", " s-item){1,2} "]"'
    )


def test_a_recursive_schema_is_one_rule_that_names_itself() -> None:
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    found = members({"$ref": "#/$defs/node", "$defs": {"node": tree}})
    assert found["s"] == "s-ref"
    assert found["s-ref-0-0"] == "s-ref"


BAD: list[tuple[Any, str, int]] = [
    ({"allOf": []}, "p.allOf: is not supported", 400),
    ({"type": "date"}, "p.type: 'date' is none of", 422),
    ({"enum": []}, "p.enum: should be", 422),
    ({"anyOf": []}, "p.anyOf: should be", 422),
    ({"properties": []}, "p.properties: should be", 422),
    ({"properties": {"a": 3}}, "p.properties.a: should be a JSON schema", 422),
    ({"properties": {}, "required": True}, "p.required: should be", 422),
    ({"$ref": "other.json"}, "p.$ref: 'other.json' is not", 400),
    ({"$ref": "#/$defs/none"}, "p.$ref: '#/$defs/none' points to nothing", 422),
    ({"type": "string", "minLength": 300}, "p.minLength: 300 is more than", 400),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "p.minLength: 3 is more than maxLength 2", 422),
    ({"type": "array", "maxItems": -1}, "p.maxItems: should be", 422),
]


@pytest.mark.parametrize(("schema", "message", "status"), BAD)
def test_a_schema_without_grammar_is_refused_by_its_place(schema: Any, message: str, status: int) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        JsonGrammar().schema(schema, "s", "p")
    assert caught.value.message.startswith(message)
    assert caught.value.status == status


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(30):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UnsupportedRequestError, match="nested deeper than 24 levels"):
        JsonGrammar().schema(schema, "s", "p")
