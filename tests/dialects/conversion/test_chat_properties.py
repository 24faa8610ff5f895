"""Whatever comes in, the Chat converters convert or refuse; and what they convert comes back."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from gym_ray import exact_json
from gym_ray.dialects.conversion import chat_reasoning, chat_to_responses, responses_to_chat
from gym_ray.dialects.conversion.answer_parts import reasoning_item, reasoning_texts
from gym_ray.errors import EngineError, UnsupportedRequestError

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_REQUEST = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "u"},
                {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}},
                {"type": "file", "file": {"file_data": "QQ==", "filename": "a"}},
            ],
        },
        {
            "role": "assistant",
            "content": "<think>t</think>a",
            "refusal": "no",
            "reasoning_content": "r",
            "reasoning_details": [{"type": "reasoning.text", "text": "r", "signature": "S", "id": "rs_1"}],
            "tool_calls": [CHAT_CALL],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "max_tokens": 5,
    "max_completion_tokens": 6,
    "reasoning_effort": "low",
    "verbosity": "low",
    "stop": ["x"],
    "seed": 1,
    "n": 1,
    "logprobs": False,
    "modalities": ["text"],
    "functions": [],
}
ITEM_CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
CUSTOM_CALL = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "p", "input": "free"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "t"}],
    "content": [{"type": "reasoning_text", "text": "raw"}],
    "encrypted_content": "S",
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "no"}],
}
RESPONSES_REQUEST = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "http://x", "detail": "low"},
                {"type": "input_file", "file_data": "QQ==", "filename": "a"},
            ],
        },
        THOUGHT,
        SAID,
        ITEM_CALL,
        CUSTOM_CALL,
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "include": [],
    "truncation": "disabled",
    "max_output_tokens": 5,
}
CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "error": None,
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": "x",
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "<think>t</think>a"}],
                "refusal": "no",
                "reasoning": "r",
                "reasoning_details": [{"type": "reasoning.encrypted", "data": "E", "id": "rs_1"}],
                "function_call": {"name": "f", "arguments": "{}"},
                "tool_calls": [CHAT_CALL, {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "free"}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}
RESPONSES_ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 5,
    "model": "m",
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "error": None,
    "service_tier": "default",
    "output": [THOUGHT, SAID, ITEM_CALL, CUSTOM_CALL, {"type": "web_search_call", "id": "w"}],
    "usage": {"input_tokens": 4, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
}
ANY_TEXT = st.text(st.characters())  # lone surrogates too
WORDS = st.sampled_from(
    ["function", "custom", "message", "reasoning", "text", "refusal", "assistant", "user", "tool", "system", "error"]
) | st.sampled_from(["auto", "required", "completed", "failed", "stop", "<think>", "</think>", "arguments", "content"])
SCALARS = st.none() | st.booleans() | st.integers() | st.just(2**70) | st.floats() | ANY_TEXT | WORDS
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | ANY_TEXT, inner, max_size=3)
)


@st.composite
def damaged(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A well-formed object in which a few places hold something else, or nothing."""
    body = copy.deepcopy(original)
    for _ in range(draw(st.integers(0, 3))):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.integers(0, 3)):
                place = place[key]
                continue
            if draw(st.booleans()):
                del place[key]
            else:
                place[key] = draw(ANYTHING)
            break
    return body


@given(damaged(RESPONSES_REQUEST) | st.dictionaries(WORDS | st.sampled_from(list(RESPONSES_REQUEST)), ANYTHING))
def test_any_responses_request_converts_or_is_refused(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    with contextlib.suppress(UnsupportedRequestError):
        chat = responses_to_chat.request_to_chat(body)
        assert isinstance(chat["messages"], list)
        exact_json.dumps(chat)
    assert exact_json.dumps(body) == exact_json.dumps(before)


@given(damaged(CHAT_REQUEST) | st.dictionaries(WORDS | st.sampled_from(list(CHAT_REQUEST)), ANYTHING))
def test_any_chat_request_converts_or_is_refused(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    with contextlib.suppress(UnsupportedRequestError):
        hub = chat_to_responses.request_to_responses(body)
        carried = chat_to_responses.carried_settings(body)
        assert set(carried) <= {"stop", "top_k", "seed", "user", "logit_bias", "presence_penalty", "frequency_penalty"}
        responses_to_chat.request_to_chat(hub, carried=carried)  # what this side makes, the other side reads
    assert exact_json.dumps(body) == exact_json.dumps(before)


@given(damaged(CHAT_ANSWER) | st.dictionaries(WORDS | st.sampled_from(list(CHAT_ANSWER)), ANYTHING), st.booleans())
def test_any_chat_answer_converts_or_is_refused(answer: dict[str, Any], split_think: bool) -> None:
    before = copy.deepcopy(answer)
    with contextlib.suppress(EngineError):
        response = chat_to_responses.answer_to_responses(answer, RESPONSES_REQUEST, split_think=split_think)
        assert response["output"]
        Response.model_validate({**response, "usage": None, "service_tier": None})
    assert exact_json.dumps(answer) == exact_json.dumps(before)


@given(damaged(RESPONSES_ANSWER) | st.dictionaries(WORDS | st.sampled_from(list(RESPONSES_ANSWER)), ANYTHING))
def test_any_responses_answer_converts_or_is_refused(answer: dict[str, Any]) -> None:
    before = copy.deepcopy(answer)
    with contextlib.suppress(EngineError):
        ChatCompletion.model_validate(responses_to_chat.answer_to_chat(answer))
    assert exact_json.dumps(answer) == exact_json.dumps(before)


def test_the_originals_convert() -> None:
    """Else the tests above would prove little."""
    responses_to_chat.request_to_chat(RESPONSES_REQUEST)
    chat_to_responses.request_to_responses(CHAT_REQUEST)
    chat_to_responses.answer_to_responses(CHAT_ANSWER, RESPONSES_REQUEST)
    responses_to_chat.answer_to_chat(RESPONSES_ANSWER)


SPOKEN = ANY_TEXT.filter(lambda text: "think>" not in text)
SOME = SPOKEN.filter(bool)
ID = st.text("abc123_-", min_size=1)
IMAGE = st.builds(
    lambda url, detail: {"type": "image_url", "image_url": {"url": url, "detail": detail}},
    SOME,
    st.sampled_from(["auto", "low", "high"]),
)
TEXT_PART = st.builds(lambda text: {"type": "text", "text": text}, SPOKEN)
TEXTS = SPOKEN | st.lists(TEXT_PART, max_size=3)
CALL = st.builds(
    lambda call_id, name, arguments: {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    ID,
    ID,
    SPOKEN,
)
USER = st.builds(lambda content: {"role": "user", "content": content}, SPOKEN | st.lists(TEXT_PART | IMAGE, max_size=3))
SYSTEM = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), TEXTS
)
TOOL = st.builds(lambda call_id, content: {"role": "tool", "tool_call_id": call_id, "content": content}, ID, TEXTS)


@st.composite
def assistant(draw: st.DrawFn) -> dict[str, Any]:
    content, refusal = draw(st.none() | SPOKEN), draw(st.none() | SOME)
    reasoning, calls = draw(st.none() | SOME), draw(st.lists(CALL, max_size=2))
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    return message | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    others = USER | SYSTEM | TOOL
    messages = draw(st.lists(others, min_size=1, max_size=2))
    for _ in range(draw(st.integers(0, 2))):
        messages += [draw(assistant()), *draw(st.lists(others, min_size=1, max_size=2))]
    return messages


def essence(message: dict[str, Any]) -> tuple[Any, ...]:
    """What must survive: role, texts, images, reasoning, refusal, calls and the call that a result names."""
    content = message["content"]
    if message["role"] == "assistant":
        sections, content = chat_reasoning.split(content or "")
        reasoning = message.get("reasoning_content") or "".join(sections)
        return "assistant", content, reasoning, message.get("refusal"), message.get("tool_calls")
    return message["role"], content, message.get("tool_call_id")


@given(conversations())
def test_a_conversation_comes_back(messages: list[dict[str, Any]]) -> None:
    back = responses_to_chat.request_to_chat(chat_to_responses.request_to_responses({"messages": messages}))
    assert [essence(message) for message in back["messages"]] == [essence(message) for message in messages]


@given(
    assistant(),
    st.sampled_from(["stop", "length", "content_filter"]),
    st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
)
def test_a_chat_answer_comes_back(message: dict[str, Any], reason: str, counts: tuple[int, int] | None) -> None:
    usage = counts and {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    back = responses_to_chat.answer_to_chat(chat_to_responses.answer_to_responses(answer, {"input": ""}))
    (choice,) = back["choices"]
    assert essence(choice["message"]) == essence(message)
    assert choice["finish_reason"] == ("tool_calls" if reason == "stop" and message.get("tool_calls") else reason)
    assert (back["usage"] and {key: back["usage"][key] for key in usage}) == usage


ITEMS = st.lists(
    st.builds(reasoning_item, st.lists(SOME, max_size=2), SOME, ID)
    | st.builds(
        lambda call_id, name, arguments: {**ITEM_CALL, "call_id": call_id, "name": name, "arguments": arguments},
        ID,
        ID,
        SPOKEN,
    )
    | st.builds(lambda text: {**SAID, "content": [{"type": "output_text", "text": text, "annotations": []}]}, SOME),
    min_size=1,
)


@given(ITEMS)
def test_a_responses_answer_comes_back(items: list[dict[str, Any]]) -> None:
    """Chat puts reasoning first, then one text, then the calls; nothing of them is lost."""

    def told(response: dict[str, Any]) -> tuple[Any, ...]:
        by_type: dict[str, list[dict[str, Any]]] = {"reasoning": [], "message": [], "function_call": []}
        for item in response["output"]:
            by_type[item["type"]].append(item)
        return (
            [("\n".join(reasoning_texts(item)), item["encrypted_content"]) for item in by_type["reasoning"]],
            "".join(part["text"] for item in by_type["message"] for part in item["content"]),
            [(item["call_id"], item["name"], item["arguments"]) for item in by_type["function_call"]],
        )

    chat = responses_to_chat.answer_to_chat({"output": items})
    assert told(chat_to_responses.answer_to_responses(chat, {"input": ""})) == told({"output": items})
