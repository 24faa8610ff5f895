"""What counts as content of an answer that failed: everything that is not known to be empty."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.model_server.served_content import says_something, stream_says_something
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

EMPTY_MESSAGE = {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PLACE = {"item_id": "i", "output_index": 0, "content_index": 0}
BEGUN = {"type": "response.created", "response": {"id": "r", "object": "response", "status": "x", "output": []}}
STARTED = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}}


def stream(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def chunk(delta: Any, **choice: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **choice}]}


def added(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": 0, "item": item}


def block(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": content}


def block_delta(**delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        (CHAT, [chunk({"role": "assistant", "content": ""}, logprobs=None, finish_reason=None, token_ids=None)]),
        (CHAT, [chunk({"content": None, "tool_calls": [], "refusal": None}, logprobs={"content": []})]),
        (CHAT, [{"choices": [], "usage": {"prompt_tokens": 7}}, {"error": {"message": "boom"}}]),
        (CHAT, [chunk({}, finish_reason="error", error={"message": "boom"})]),
        (CHAT, [[{"error": {"message": "boom"}}]]),
        (CHAT, [{"object": "error", "message": "boom"}, {"choices": [None]}, {"choices": "x"}]),
        (RESPONSES, [BEGUN, {**BEGUN, "type": "response.in_progress"}, added(EMPTY_MESSAGE)]),
        (RESPONSES, [BEGUN, {"type": "response.content_part.added", **PLACE, "part": {"type": "x", "text": ""}}]),
        (RESPONSES, [BEGUN, added({"id": "i", "type": "reasoning", "summary": []})]),
        (RESPONSES, [BEGUN, {"type": "error", "code": "c", "message": "boom", "param": None}]),
        (RESPONSES, [{"type": "response.failed", "response": {"status": "failed", "error": {"code": "c"}}}]),
        (MESSAGES, [STARTED, {"type": "ping"}, block({"type": "text", "text": "", "citations": None})]),
        (MESSAGES, [STARTED, block({"type": "thinking", "thinking": "", "signature": ""})]),
        (MESSAGES, [STARTED, {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}]),
    ],
)
def test_streams_that_said_nothing(dialect: str, events: list[Any]) -> None:
    assert not stream_says_something(dialect, stream(*events))


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        (CHAT, [chunk({"content": "x"})]),
        (CHAT, [chunk({"content": [{"type": "text", "text": "x"}]})]),
        (CHAT, [chunk({"reasoning_content": "x"})]),
        (CHAT, [chunk({"reasoning_details": [{"type": "reasoning.text", "text": "x"}]})]),
        (CHAT, [chunk({"audio": {"id": "a", "data": "AAAA"}})]),
        (CHAT, [chunk({"images": [{"type": "image_url", "image_url": {"url": "data:,"}}]})]),
        (CHAT, [chunk({"tool_calls": [{"index": 0, "id": "k", "function": {"name": "f", "arguments": ""}}]})]),
        (CHAT, [chunk({"function_call": {"name": "f"}})]),
        (CHAT, [{"choices": [{"index": 1, "delta": {"content": "x"}}]}]),
        (CHAT, [{"choices": [{"index": 0, "text": "x"}]}]),
        (CHAT, [chunk({}, logprobs={"content": [{"token": "x"}]})]),
        (CHAT, [chunk({}, finish_reason="stop")]),  # an empty answer is one, too
        (CHAT, [chunk({"content": "x"}, finish_reason="error")]),
        (CHAT, ["text"]),
        (RESPONSES, [BEGUN, {"type": "response.output_text.delta", **PLACE, "delta": "x"}]),
        (RESPONSES, [BEGUN, {"type": "response.audio.delta", "delta": "AAAA"}]),
        (RESPONSES, [BEGUN, {"type": "response.brand_new.delta", "item_id": "i", "delta": {"new": "x"}}]),
        (RESPONSES, [added({"id": "i", "type": "function_call", "call_id": "k", "name": "f", "arguments": ""})]),
        (RESPONSES, [added({"id": "i", "type": "web_search_call", "status": "in_progress"})]),
        (RESPONSES, [{"type": "response.failed", "response": {"output": [{"content": [{"text": "x"}]}]}}]),
        (MESSAGES, [block_delta(type="text_delta", text="x")]),
        (MESSAGES, [STARTED, block_delta(type="thinking_delta", thinking="x")]),
        (MESSAGES, [STARTED, block({"type": "tool_use", "id": "k", "name": "f", "input": {}})]),
        (MESSAGES, [STARTED, block({"type": "redacted_thinking", "data": "x"})]),
        (MESSAGES, [STARTED, block_delta(type="citations_delta", citation={"cited_text": "x"})]),
        (MESSAGES, [{"type": "message_start", "message": {"content": [{"type": "text", "text": "x"}]}}]),
        (MESSAGES, [STARTED, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]),
    ],
)
def test_streams_that_said_something(dialect: str, events: list[Any]) -> None:
    assert stream_says_something(dialect, stream(*events))


@pytest.mark.parametrize(
    "text", [b"", b": ping\n\n: ping\n\n", b"\xef\xbb\xbf: ping\n\n", b"retry: 3\n\n", b"data:\n\n"]
)
def test_comments_say_nothing(text: bytes) -> None:
    assert not any(stream_says_something(dialect, text) for dialect in (CHAT, RESPONSES, MESSAGES))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_that_is_cut_is_none_and_one_that_cannot_be_read_may_be_anything(end: bytes) -> None:
    for dialect in (CHAT, RESPONSES, MESSAGES):
        assert not stream_says_something(dialect, b': ping\n\ndata: {"choices": [{"delta": {"con')
        assert stream_says_something(dialect, b'data: {"choices": [{"delta": {"con' + end)


def test_every_word_of_a_stream_counts_from_its_event_on() -> None:
    for dialect, words in (
        (CHAT, b'"content":"hello"'),
        (RESPONSES, b'"delta":"hello"'),
        (MESSAGES, b'"text":"hello"'),
    ):
        text = stream_answer(dialect, "hello there").body
        heard = text.index(b"\n\n", text.index(words))
        assert [stream_says_something(dialect, text[:at]) for at in (0, heard // 2, heard - 1, heard, heard + 2)] == [
            *[False] * 3,
            *[True] * 2,
        ]


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
def test_whole_answers(dialect: str) -> None:
    assert says_something(json.loads(json_answer(dialect, "hello").body))
    assert not says_something({"error": {"message": "boom"}})


def test_what_nests_deeper_than_any_frame_is_content() -> None:
    deep: Any = ""
    for _ in range(5000):
        deep = [deep]
    assert says_something({"content": deep})
