"""One generation in three dialects: strict SDK models take it, and its stream adds up to its JSON answer."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import BaseModel, TypeAdapter

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage, TextDelta, ToolCall
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.sse import parse_objects
from gym_ray.dialects.synthesis import answer_writer
from gym_ray.dialects.terminal import TerminalScanner

DIALECTS = (RESPONSES, CHAT, MESSAGES)
ANSWER_MODELS: dict[str, type[BaseModel]] = {
    RESPONSES: openai.types.responses.Response,
    CHAT: openai.types.chat.ChatCompletion,
    MESSAGES: anthropic.types.Message,
}
EVENT_MODELS: dict[str, Any] = {
    RESPONSES: openai.types.responses.ResponseStreamEvent,
    CHAT: openai.types.chat.ChatCompletionChunk,
    MESSAGES: anthropic.types.RawMessageStreamEvent,
}
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "policy", "input": "hi", "tools": [TOOL], "metadata": {"k": "v"}, "temperature": 0.5},
    CHAT: {"model": "policy", "messages": [], "stream_options": {"include_usage": True}},
    MESSAGES: {"model": "policy", "messages": [], "max_tokens": 5},
}
CALL = ToolCall("call_1", "look_up", '{"order_id": "größe \u2028 1043"}')


def generation(
    text: str = "", calls: tuple[ToolCall, ...] = (), finish: Finish = Finish.STOP, stop: str | None = None
) -> Generation:
    return Generation(text, calls, finish, GenerationUsage(20, 12, 7), (2, 105), (7,), (-0.5,), False, stop)


CASES: dict[str, tuple[list[GenerationEvent], Generation]] = {
    "text": ([TextDelta("Hel"), TextDelta("lo \u2028 wörld 😀")], generation("Hello \u2028 wörld 😀")),
    "call": ([CALL], generation(calls=(CALL,), finish=Finish.TOOL_CALLS)),
    "text and calls": (
        [TextDelta("Let me see."), CALL, ToolCall("call_2", "look_up", "{}")],
        generation("Let me see.", (CALL, ToolCall("call_2", "look_up", "{}")), Finish.TOOL_CALLS),
    ),
    "cut off": ([TextDelta("Hel")], generation("Hel", finish=Finish.LENGTH)),
    "cut off before any text": ([], generation(finish=Finish.LENGTH)),
    "stop text": ([TextDelta("a")], generation("a", finish=Finish.STOP_SEQUENCE, stop="b")),
    "nothing": ([], generation()),
}


def stream(dialect: str, case: str) -> list[bytes]:
    events, whole = CASES[case]
    writer = answer_writer(dialect, BODIES[dialect], "served")
    return [writer.begin(20), *(writer.event(event) for event in events), writer.end(whole)]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("id", "created_at", "created")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_strict_sdk_models_take_the_answer(dialect: str, case: str) -> None:
    answer = answer_writer(dialect, BODIES[dialect], "served").answer(CASES[case][1])
    parsed = ANSWER_MODELS[dialect].model_validate(answer)
    assert parsed.model_extra in ({}, {"user": None}, {"max_tool_calls": None})
    assert answer["model"] == "policy"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_strict_sdk_models_take_every_event(dialect: str, case: str) -> None:
    adapter = TypeAdapter(EVENT_MODELS[dialect])
    payloads = parse_objects(b"".join(stream(dialect, case)))
    assert payloads
    for payload in payloads:
        parsed = adapter.validate_python(payload)
        assert type(parsed).__name__ != "dict"
        assert parsed.model_dump(exclude_unset=True, mode="json", warnings=False).keys() == payload.keys()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_stream_adds_up_to_the_answer(dialect: str, case: str) -> None:
    rebuilt = reassemble(dialect, b"".join(stream(dialect, case)))
    answer = answer_writer(dialect, BODIES[dialect], "served").answer(CASES[case][1])
    assert rebuilt is not None
    assert facts(dialect, rebuilt) == facts(dialect, answer)


def facts(dialect: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what an answer says, without what a reassembled stream has no place for."""
    if dialect != CHAT:
        return {key: value for key, value in without_ids(answer).items() if key != "stop_sequence"}
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [(call["id"], call["type"], call["function"]) for call in message.get("tool_calls") or ()]
    return {
        "model": answer["model"],
        "usage": answer["usage"],
        "finish_reason": choice["finish_reason"],
        "content": message.get("content") or "",
        "tool_calls": calls,
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_terminal_event_stands_in_the_last_frames_only(dialect: str) -> None:
    *before, last = stream(dialect, "text and calls")
    scanner = TerminalScanner(dialect)
    assert [scanner.feed(frame) for frame in before] == [None] * len(before)
    assert scanner.feed(last) == "complete"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broken_stream_ends_in_the_dialects_error(dialect: str) -> None:
    writer = answer_writer(dialect, BODIES[dialect], "served")
    frames = writer.begin(20) + writer.event(TextDelta("Hel")) + writer.fail("the engine is gone", 503)
    scanner = TerminalScanner(dialect)
    assert scanner.feed(frames) == "error"
    assert b"the engine is gone" in frames
    assert b"[DONE]" not in frames


def test_a_failed_response_event_suits_the_sdk() -> None:
    frames = answer_writer(RESPONSES, BODIES[RESPONSES], "served").fail("gone", 503)
    (payload,) = parse_objects(frames)
    parsed: Any = TypeAdapter(openai.types.responses.ResponseStreamEvent).validate_python(payload)
    assert (parsed.type, parsed.response.status, parsed.response.error.message) == ("response.failed", "failed", "gone")


def test_sequence_numbers_count_the_events() -> None:
    payloads = parse_objects(b"".join(stream(RESPONSES, "text and calls")))
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))


def test_an_incomplete_response_ends_with_its_own_event() -> None:
    payloads = parse_objects(b"".join(stream(RESPONSES, "cut off")))
    assert payloads[-1]["type"] == "response.incomplete"
    assert payloads[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_chat_usage_is_streamed_only_when_asked_for() -> None:
    events, whole = CASES["text"]
    writer = answer_writer(CHAT, {"messages": []}, "served")
    frames = writer.begin(20) + b"".join(writer.event(event) for event in events) + writer.end(whole)
    assert all("usage" not in payload for payload in parse_objects(frames))
    asked = parse_objects(b"".join(stream(CHAT, "text")))
    assert [payload["usage"] for payload in asked if not payload["choices"]] == [
        {
            "prompt_tokens": 20,
            "completion_tokens": 7,
            "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 12},
        }
    ]


def test_messages_name_the_stop_text_in_both_forms() -> None:
    payloads = parse_objects(b"".join(stream(MESSAGES, "stop text")))
    (delta,) = (payload["delta"] for payload in payloads if payload["type"] == "message_delta")
    answer = answer_writer(MESSAGES, BODIES[MESSAGES], "served").answer(CASES["stop text"][1])
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "b"}
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "b")


def test_messages_count_cached_tokens_apart() -> None:
    usage = answer_writer(MESSAGES, BODIES[MESSAGES], "served").answer(CASES["text"][1])["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (8, 12, 7)


def test_arguments_that_are_no_object_still_travel_in_messages() -> None:
    call = ToolCall("call_1", "say", '"hi"')
    answer = answer_writer(MESSAGES, BODIES[MESSAGES], "served").answer(generation(calls=(call,)))
    assert answer["content"][0]["input"] == {"arguments": '"hi"'}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_frames_are_ascii_lines(dialect: str) -> None:
    frames = b"".join(stream(dialect, "text"))
    assert frames.isascii()
    assert b"\r" not in frames
    assert frames.endswith(b"\n\n")
    for line in frames.splitlines():
        assert line == b"" or line.startswith((b"event: ", b"data: "))
        if line.startswith(b"data: {"):
            json.loads(line[6:])
