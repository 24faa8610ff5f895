"""Whatever JSON a client sends, it becomes a prompt or a refusal, never another error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.neutral import Finish, Generation, GenerationUsage, PromptRequest, TextDelta
from gym_ray.dialects.synthesis import answer_writer, read_request
from gym_ray.errors import UnsupportedRequestError
from gym_ray.model_server.llama_cpp.grammar import build_grammar
from gym_ray.model_server.llama_cpp.template import render

KEYS = [
    "type",
    "role",
    "content",
    "text",
    "input",
    "messages",
    "system",
    "instructions",
    "tools",
    "tool_choice",
    "function",
    "name",
    "parameters",
    "arguments",
    "input_schema",
    "call_id",
    "id",
    "output",
    "tool_calls",
    "tool_call_id",
    "tool_use_id",
    "schema",
    "json_schema",
    "format",
    "response_format",
    "output_config",
    "properties",
    "required",
    "enum",
    "anyOf",
    "allOf",
    "$ref",
    "items",
    "minItems",
    "maxLength",
    "const",
    "max_tokens",
    "max_output_tokens",
    "temperature",
    "stop",
    "n",
    "stop_sequences",
    "stream",
    "stream_options",
    "metadata",
    "seed",
]
WORDS = [
    "message",
    "user",
    "assistant",
    "system",
    "tool",
    "function",
    "function_call",
    "function_call_output",
    "reasoning",
    "text",
    "input_text",
    "output_text",
    "tool_use",
    "tool_result",
    "custom",
    "auto",
    "none",
    "required",
    "any",
    "json_schema",
    "json_object",
    "object",
    "string",
    "array",
    "integer",
    "#/$defs/a",
    "#",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=5),
    st.just("\ud800"),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=3)), inner, max_size=6),
    ),
    max_leaves=25,
)
TURNS = st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6), max_size=3)
BODIES = st.dictionaries(st.sampled_from(KEYS), st.one_of(JSON, TURNS), max_size=8)
VALID: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
}


def prompt_or_refusal(dialect: str, body: dict[str, Any]) -> tuple[PromptRequest, str] | UnsupportedRequestError:
    try:
        request = read_request(dialect, body)
        return request, build_grammar(request, "line") or ""
    except UnsupportedRequestError as error:
        return error


@given(st.sampled_from((RESPONSES, CHAT, MESSAGES)), BODIES, st.booleans())
def test_any_body_is_read_or_refused(dialect: str, body: dict[str, Any], complete: bool) -> None:
    asked = {**body, **VALID[dialect]} if complete else body
    prompt = prompt_or_refusal(dialect, asked)
    if isinstance(prompt, UnsupportedRequestError):
        assert prompt.status in (400, 422)
        assert ": " in prompt.message
        return
    request, grammar = prompt
    grammar.encode("utf-8")
    for _, piece in render(request):
        piece.encode("utf-8")
    generation = Generation("x", (), Finish.STOP, GenerationUsage(1, 0, 1), (), None, None, True)
    writer = answer_writer(dialect, asked, "m")
    json.dumps(writer.answer(generation))
    frames = writer.begin(1) + writer.event(TextDelta("x")) + writer.end(generation)
    assert frames.isascii()


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_schema_has_a_grammar_or_is_refused(schema: dict[str, Any]) -> None:
    body = {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": schema}]}
    prompt = prompt_or_refusal(RESPONSES, body)
    if isinstance(prompt, UnsupportedRequestError):
        assert prompt.message.startswith("tools[0]")
        return
    request, grammar = prompt
    grammar.encode("utf-8")
    for _, piece in render(request):
        piece.encode("utf-8")
    assert "root ::= call | text\n" in grammar
