"""What holds for every dialect: frames, round trips of any answer, where the terminal event stands, failures."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.reading import finish_reason, reasoning, tool_calls
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.replay import KEEP_ALIVE, failure_frames, replay_frames
from gym_ray.dialects.sse import parse_objects
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.errors import EngineError

DIALECTS = (RESPONSES, CHAT, MESSAGES)
# A busy machine is slow at drawing; no test here is about speed.
OFTEN = settings(max_examples=150)
# Words that look like the end of a stream, ends of lines, characters beyond the BMP and half of one.
SNARES = st.sampled_from(
    [
        *("[DONE]", "\n\ndata: [DONE]\n\n", "response.completed", '{"type": "error"}', "event: message_stop\n\n"),
        *("\u2028\u2029\x85", "\r\n", "\x0b\x0c\x7f\x00", "größe", "😀", "\ud83d", '\\"', "\\u005bDONE]"),
    ]
)
TEXTS = st.lists(st.one_of(SNARES, st.text(max_size=8)), max_size=4).map("".join)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
COUNTS = st.integers(0, 10**20)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**25), 10**25), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
ARGUMENTS = st.one_of(TEXTS, st.dictionaries(NAMES, JSON, max_size=3).map(json.dumps))


def optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


def record(required: dict[str, Any], **maybe: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fixed = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in required.items()}
    return st.fixed_dictionaries(fixed, optional=maybe)


def listed(kind: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(kind, max_size=most)


OUTPUT_TEXT = record({"type": "output_text", "text": TEXTS}, annotations=listed(JSON), logprobs=listed(JSON))
MESSAGE_PARTS = st.one_of(OUTPUT_TEXT, record({"type": "refusal", "refusal": TEXTS}), record({"type": "output_audio"}))
ITEMS = st.one_of(
    record({"type": "message", "role": "assistant", "content": listed(MESSAGE_PARTS)}, status=st.just("completed")),
    record(
        {"type": "reasoning", "summary": listed(record({"type": "summary_text", "text": TEXTS}))},
        content=listed(record({"type": "reasoning_text", "text": TEXTS})),
        encrypted_content=TEXTS,
    ),
    record({"type": "function_call", "call_id": NAMES, "name": NAMES, "arguments": ARGUMENTS}, namespace=NAMES),
    record({"type": "custom_tool_call", "call_id": NAMES, "name": NAMES, "input": TEXTS}),
    record({"type": "mcp_call", "name": NAMES, "arguments": ARGUMENTS, "output": TEXTS}),
    record({"type": "web_search_call", "action": JSON}),
)


@st.composite
def responses_answers(draw: st.DrawFn) -> dict[str, Any]:
    items = [{"id": f"item_{index}", **item} for index, item in enumerate(draw(listed(ITEMS, 4)))]
    usage = draw(st.none() | record({"input_tokens": COUNTS, "output_tokens": COUNTS, "total_tokens": COUNTS}))
    status = draw(st.sampled_from(["completed", "incomplete", "failed"]))
    return {"id": "resp_1", "object": "response", "status": status, "output": items, "usage": usage}


CHAT_CALLS = record({"id": NAMES, "function": record({"name": NAMES, "arguments": ARGUMENTS})})
CHAT_MESSAGES = record(
    {"content": st.none() | TEXTS, "role": "assistant"},
    refusal=st.none() | TEXTS,
    reasoning_content=st.none() | TEXTS,
    tool_calls=st.none() | listed(CHAT_CALLS),
)
CHAT_ANSWERS = record(
    {
        "id": "chatcmpl-1",
        "created": 5,
        "model": NAMES,
        "choices": st.lists(
            record(
                {"message": CHAT_MESSAGES, "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None])}
            ),
            min_size=1,
            max_size=3,
        ),
    },
    usage=record({"prompt_tokens": COUNTS, "completion_tokens": COUNTS}),
    system_fingerprint=st.none() | NAMES,
)
BLOCKS = st.one_of(
    record({"type": "text", "text": TEXTS}, citations=listed(JSON)),
    record({"type": "thinking", "thinking": TEXTS}, signature=TEXTS),
    record({"type": "redacted_thinking", "data": TEXTS}),
    record({"type": "tool_use", "id": NAMES, "name": NAMES, "input": st.dictionaries(TEXTS, JSON, max_size=3)}),
    record({"type": "web_search_tool_result", "content": JSON}),
)
MESSAGES_ANSWERS = record(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": NAMES,
        "content": listed(BLOCKS, 4),
        "stop_reason": st.sampled_from(["end_turn", "tool_use", "max_tokens"]),
    },
    usage=record({"input_tokens": COUNTS, "output_tokens": COUNTS}, cache_read_input_tokens=COUNTS),
)
ANSWERS = st.one_of(
    st.tuples(st.just(RESPONSES), responses_answers()),
    st.tuples(st.just(CHAT), CHAT_ANSWERS),
    st.tuples(st.just(MESSAGES), MESSAGES_ANSWERS),
)


def expected_chat(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as the view of a stream shows it: empty texts are absent, a call has a type."""
    choices = []
    for index, choice in enumerate(answer["choices"]):
        given = choice["message"]
        message = {"role": "assistant", "content": given["content"] or None}
        message.update({key: given[key] for key in ("reasoning_content", "refusal") if given.get(key)})
        calls = [{"type": "function", **call} for call in given.get("tool_calls") or ()]
        message.update({"tool_calls": calls} if calls else {})
        choices.append({"index": index, "message": message, "finish_reason": choice["finish_reason"]})
    kept = {key: answer[key] for key in ("id", "model", "usage") if key in answer}
    return {**kept, "object": "chat.completion", "choices": choices}


@OFTEN
@given(ANSWERS)
def test_a_replayed_answer_adds_up_to_itself(case: tuple[str, dict[str, Any]]) -> None:
    dialect, answer = case
    before = exact_json.dumps(answer)
    rebuilt = reassemble(dialect, b"".join(replay_frames(dialect, answer, include_usage=True)))
    assert rebuilt is not None
    assert rebuilt == (expected_chat(answer) if dialect == CHAT else answer)
    assert (tool_calls(rebuilt), reasoning(rebuilt), finish_reason(rebuilt)) == (
        tool_calls(answer),
        reasoning(answer),
        finish_reason(answer),
    )
    assert exact_json.dumps(answer) == before


@OFTEN
@given(ANSWERS)
def test_frames_are_ascii_events_and_the_last_one_ends_the_stream(case: tuple[str, dict[str, Any]]) -> None:
    dialect, answer = case
    frames = replay_frames(dialect, answer, include_usage=True)
    for frame in frames:
        assert re.fullmatch(rb"(event: [a-z_.]+\n)?data: [\x20-\x7f]+\n\n", frame)
    scanner = TerminalScanner(dialect)
    assert [scanner.feed(frame) for frame in frames[:-1]] == [None] * (len(frames) - 1)
    status = answer.get("status", "completed")
    assert scanner.feed(frames[-1]) == {"completed": "complete", "incomplete": "incomplete", "failed": "error"}[status]


@OFTEN
@given(responses_answers())
def test_a_stream_cut_before_its_end_still_has_the_items(answer: dict[str, Any]) -> None:
    rebuilt = reassemble(RESPONSES, b"".join(replay_frames(RESPONSES, answer)[:-1]))
    assert rebuilt == {**answer, "status": "in_progress"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_values_without_an_exact_json_form_do_not_stop_an_answer(dialect: str) -> None:
    odd = {"nan": float("nan"), "big": 2**70, "half": "cut \ud83d"}
    answer = {
        RESPONSES: {"id": "r", "status": "completed", "output": [{"id": "i", "type": "thing", "odd": odd}]},
        CHAT: {"id": "c", "model": "m", "choices": [{"message": {"content": "a", "annotations": [odd]}}]},
        MESSAGES: {"id": "m", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": odd}]},
    }[dialect]
    data = b"".join(replay_frames(dialect, answer))
    assert data.isascii()
    assert b"NaN" not in data
    assert b"1180591620717411303424" in data
    assert b"cut \\ud83d" in data or b"cut \\\\ud83d" in data
    rebuilt = reassemble(dialect, data)
    assert rebuilt is not None
    if dialect != CHAT:
        odd = {**odd, "nan": None}
        assert rebuilt["output" if dialect == RESPONSES else "content"][0] in (
            {"id": "i", "type": "thing", "odd": odd},
            {"type": "tool_use", "id": "t", "name": "n", "input": odd},
        )


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("dialect", DIALECTS)
def test_deep_values_are_carried_as_far_as_they_can_be_read(dialect: str) -> None:
    for levels in (300, 600):
        assert exact_json.dumps(nested(300)) in b"".join(replay_frames(dialect, deep(dialect, levels)))
    with pytest.raises(EngineError, match="nests too deeply") as raised:
        replay_frames(dialect, deep(dialect, 5000))
    assert raised.value.status == 502


def deep(dialect: str, levels: int) -> dict[str, Any]:
    value = nested(levels)
    return {
        RESPONSES: {"output": [{"type": "thing", "value": value}]},
        CHAT: {"choices": [{"message": {"content": "a", "annotations": value}}]},
        MESSAGES: {"content": [{"type": "tool_use", "id": "t", "name": "n", "input": value}]},
    }[dialect]


def test_the_keep_alive_is_a_comment_that_adds_nothing() -> None:
    assert KEEP_ALIVE == b": keep-alive\n\n"
    for dialect in DIALECTS:
        assert TerminalScanner(dialect).feed(KEEP_ALIVE) is None
        assert parse_objects(KEEP_ALIVE * 2) == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_failure_ends_the_stream_as_an_error(dialect: str, status: int) -> None:
    *before, last = failure_frames(dialect, status=status, message="the queue is full \u2028 größe")
    scanner = TerminalScanner(dialect)
    assert [scanner.feed(frame) for frame in before] == [None] * len(before)
    assert scanner.feed(last) == "error"
    assert last.isascii()
    assert b"[DONE]" not in last


CHAT_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
}
MESSAGES_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
RESPONSES_CODES = {
    400: "invalid_prompt",
    401: "server_error",
    413: "invalid_prompt",
    422: "invalid_prompt",
    429: "rate_limit_exceeded",
    500: "server_error",
    504: "server_error",
}


@pytest.mark.parametrize(("status", "kind"), CHAT_TYPES.items())
def test_a_chat_failure_carries_its_status(status: int, kind: str) -> None:
    (frame,) = failure_frames(CHAT, status=status, message="no")
    assert frame.startswith(b"event: error\n")
    assert parse_objects(frame) == [{"error": {"message": "no", "type": kind, "code": status}}]


@pytest.mark.parametrize(("status", "kind"), MESSAGES_TYPES.items())
def test_a_messages_failure_has_anthropics_types(status: int, kind: str) -> None:
    (frame,) = failure_frames(MESSAGES, status=status, message="no")
    assert frame.startswith(b"event: error\n")
    assert parse_objects(frame) == [{"type": "error", "error": {"type": kind, "message": "no"}}]


@pytest.mark.parametrize(("status", "code"), RESPONSES_CODES.items())
def test_a_responses_failure_is_opened_and_failed(status: int, code: str) -> None:
    created, failed = parse_objects(b"".join(failure_frames(RESPONSES, status=status, message="no")))
    assert (created["type"], failed["type"]) == ("response.created", "response.failed")
    assert (created["sequence_number"], failed["sequence_number"]) == (0, 1)
    assert re.fullmatch("resp_[0-9a-f]{32}", failed["response"]["id"])
    error = {"code": code, "message": "no"}
    whole = {"id": created["response"]["id"], "object": "response", "output": [], "error": error}
    assert created["response"] == {**whole, "status": "in_progress"}
    assert failed["response"] == {**whole, "status": "failed"}
    again = parse_objects(failure_frames(RESPONSES, status=status, message="no")[1])[0]
    assert again["response"]["id"] != failed["response"]["id"]
