"""Any body converts or is refused, and what a valid conversation says survives the way through Responses and back."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from gym_ray.dialects.conversion.messages_to_responses import (
    answer_to_responses,
    carried_settings,
    request_to_responses,
)
from gym_ray.dialects.conversion.preparation import prepare
from gym_ray.dialects.conversion.responses_to_messages import answer_to_messages, request_to_messages
from gym_ray.errors import EngineError, UnsupportedRequestError

# Words that the converters look for stand among the strings, so that chance finds its way into every branch.
WORDS = [
    "type", "role", "content", "text", "messages", "input", "output", "user", "assistant", "system", "developer",
    "tool_use", "tool_result", "tool_use_id", "id", "name", "image", "source", "base64", "data", "url", "media_type",
    "image/png", "thinking", "signature", "redacted_thinking", "tools", "tool_choice", "function", "custom", "auto",
    "any", "tool", "message", "function_call", "function_call_output", "reasoning", "summary", "encrypted_content",
    "call_id", "arguments", "input_text", "output_text", "refusal", "input_image", "image_url", "usage", "status",
    "incomplete_details", "reason", "stop_reason", "stop_sequence", "input_tokens", "output_tokens", "json_schema",
    "custom_tool_call", "format", "output_config", "effort", "instructions", "max_tokens", "metadata", "error",
]  # fmt: skip
strings = st.sampled_from(WORDS) | st.text(st.characters(), max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.just(2**64) | st.floats() | strings
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=5,
)
kinds = [
    "text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result", "message", "reasoning",
    "function_call", "custom_tool_call", "function_call_output", "input_text", "output_text", "input_image", "refusal",
]  # fmt: skip
members = [
    "text", "thinking", "signature", "data", "source", "id", "name", "input", "tool_use_id", "content", "is_error",
    "role", "summary", "encrypted_content", "call_id", "arguments", "output", "image_url", "refusal", "status",
]  # fmt: skip
small = st.fixed_dictionaries({"type": st.sampled_from(kinds) | values}, optional=dict.fromkeys(members, scalars))
listed = st.lists(small, max_size=2)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(kinds)},
    optional={**dict.fromkeys(members, values), "content": listed, "output": listed, "summary": listed},
)
bodies = st.dictionaries(strings, values, max_size=8) | st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(parts | values)}
            ),
            max_size=3,
        ),
        "input": st.lists(parts | values, max_size=4),
        "output": st.lists(parts | values, max_size=4),
        "content": st.lists(parts | values, max_size=4),
        "usage": values,
        "tools": values,
        "tool_choice": values,
        "text": values,
        "stop_reason": values,
        "incomplete_details": st.fixed_dictionaries({"reason": values}),
        "reasoning": values,
        "metadata": values,
        "stop_sequences": values,
    },
)


@settings(max_examples=100)
@given(bodies)
def test_any_object_converts_or_is_refused(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    for convert in (request_to_responses, request_to_messages, carried_settings):
        with suppress(UnsupportedRequestError):
            assert isinstance(convert(body), dict)
    with suppress(EngineError):
        assert answer_to_responses(body, body)["object"] == "response"
    with suppress(EngineError):
        assert answer_to_messages(body, model=None)["type"] == "message"
    assert repr(body) == repr(before)


texts = st.text(st.characters(exclude_categories=[]), min_size=1, max_size=8)
names = st.text("abcdefgh_-", min_size=1, max_size=6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(-(2**70))
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, texts)
images = st.builds(
    lambda kind, data: {"type": "image", "source": {"type": "base64", "media_type": f"image/{kind}", "data": data}},
    st.sampled_from(["png", "jpeg", "gif", "webp"]),
    st.sampled_from(["QUJD", "YQ==", ""]),
)
thoughts = st.builds(
    lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature}, texts, st.just("") | texts
) | st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts)
calls = st.builds(lambda i, n, value: {"type": "tool_use", "id": i, "name": n, "input": value}, names, names, objects)
pictured = st.lists(text_blocks | images, min_size=1, max_size=3).filter(
    lambda blocks: any(block["type"] == "image" for block in blocks)
)
results = st.builds(
    lambda i, content, failed: {
        "type": "tool_result",
        "tool_use_id": i,
        "content": content,
        **({"is_error": True} if failed else {}),
    },
    names,
    st.text(max_size=5) | pictured,
    st.booleans(),
)
user_turns = st.builds(
    lambda first, rest: {"role": "user", "content": first + rest},
    st.lists(results, max_size=2),
    st.lists(text_blocks | images, min_size=1, max_size=3),
)
assistant_blocks = st.lists(thoughts | text_blocks | calls, min_size=1, max_size=4)
assistant_turns = st.builds(lambda blocks: {"role": "assistant", "content": blocks}, assistant_blocks)
conversations = st.lists(st.tuples(user_turns, assistant_turns), min_size=1, max_size=3).map(
    lambda turns: [message for pair in turns for message in pair]
)
tools = st.lists(
    st.builds(lambda n, schema: {"name": n, "input_schema": {"type": "object", **schema}}, names, objects), max_size=2
)


@settings(max_examples=50)
@given(conversations, tools, st.integers(1, 2**31 - 1), texts)
def test_a_conversation_survives_the_way_through_responses(
    messages: list[dict[str, Any]], declared: list[dict[str, Any]], max_tokens: int, system: str
) -> None:
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": max_tokens,
        "system": system,
        "messages": messages,
        "stop_sequences": [system],
        "top_k": 3,
    }
    if declared:
        body |= {"tools": declared, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    hub = request_to_responses(body)
    assert prepare("responses", hub).body == hub  # the strict check of a Responses route has no complaint
    back = request_to_messages(hub, carried=carried_settings(body))
    assert back == {**body, "system": [{"type": "text", "text": system}]}


@settings(max_examples=50)
@given(
    assistant_blocks,
    st.sampled_from(["max_tokens", "refusal", None]),
    st.fixed_dictionaries(
        {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)},
        optional={"cache_read_input_tokens": st.integers(0, 9), "cache_creation_input_tokens": st.integers(0, 9)},
    ),
)
def test_an_answer_survives_the_way_through_responses(
    blocks: list[dict[str, Any]], cut: str | None, usage: dict[str, int]
) -> None:
    called = any(block["type"] == "tool_use" for block in blocks)
    answer = {"content": blocks, "stop_reason": cut or ("tool_use" if called else "end_turn"), "usage": usage}
    hub = answer_to_responses({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", **answer}, {})
    back = answer_to_messages(hub, model="m")
    assert {key: back[key] for key in ("content", "stop_reason")} == {
        key: answer[key] for key in ("content", "stop_reason")
    }
    reported = {key: value for key, value in back["usage"].items() if key in usage}
    assert reported == usage
    if _utf8(blocks):
        Response.model_validate(hub)
        Message.model_validate(back)


def _utf8(value: Any) -> bool:
    """Whether strict models can take the strings of a value; they refuse lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
