"""What is odd about a call is found in its record, and a plain call has no flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.model_call_capture.exchanges.exchange import Exchange, encode_exchange
from gym_ray.model_call_capture.quirk_flags import quirk_flags
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

RECORDINGS = Path(__file__).parents[1] / "recordings"
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def flags_of(
    request: bytes = b"{}",
    response: bytes = ANSWER,
    *,
    dialect: str = "chat",
    status: int = 200,
    terminal: str | None = "complete",
    is_sse: bool = False,
) -> tuple[str, ...]:
    exchange = Exchange("0" * 32, "0-0", dialect, "s", 1.0, status=status, is_sse=is_sse, complete=True)
    exchange.request, exchange.response = [request], [response]
    exchange.terminal = terminal if is_sse else None
    return quirk_flags(exact_json.loads(encode_exchange(exchange)))


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "q7", "model": "m", "choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
WHOLE = chunk({"content": "all"}) + chunk({}, "stop")


@pytest.mark.parametrize("dialect", DIALECT_BY_PATH.values())
def test_a_plain_call_has_no_flag(dialect: str) -> None:
    assert flags_of(response=json_answer(dialect, "one two").body, dialect=dialect) == ()
    assert flags_of(response=stream_answer(dialect, "one two").body, dialect=dialect, is_sse=True) == ()


@pytest.mark.parametrize(
    ("body", "terminal", "flags"),
    [
        (WHOLE, None, ("no_terminal",)),
        (chunk({"content": "half"}), None, ("no_terminal",)),
        (DONE, "complete", ("empty_stream",)),
        (b"", None, ("empty_stream", "no_terminal")),
        (WHOLE + chunk({"content": "late"}) + DONE, "complete", ("late_content",)),
        (chunk({"content": "x"}).replace(b"x", b"\xff") + DONE, "complete", ("invalid_utf8",)),
        (b'data: {"error":{"message":"overloaded"}}\n\n', "error", ("empty_stream", "error_event", "http_200_error")),
        (chunk({"content": "cut \ud83d"}) + DONE, "complete", ("lone_surrogate",)),
        (
            chunk({"tool_calls": [{"index": 0, "id": "w", "function": {"name": "sh", "arguments": '{"c":"ls"'}}]})
            + DONE,
            "complete",
            ("tool_json_invalid",),
        ),
    ],
)
def test_streams(body: bytes, terminal: str | None, flags: tuple[str, ...]) -> None:
    assert flags_of(response=body, terminal=terminal, is_sse=True) == flags


def test_a_delta_that_does_not_fit_its_block() -> None:
    events = [
        {"type": "message_start", "message": {"id": "a", "role": "assistant", "model": "z"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert flags_of(response=body, dialect="messages", is_sse=True) == ("block_type_mismatch",)


@pytest.mark.parametrize(
    ("request_body", "response", "flags"),
    [
        (b'{"seed": 18446744073709551616}', ANSWER, ("big_integer",)),
        (b'{"a": [{"id": -9223372036854775809}]}', ANSWER, ("big_integer",)),
        (b'{"n": 18446744073709551615, "m": -9223372036854775808, "t": true}', ANSWER, ()),
        (b'{"content": "cut \\ud83d"}', ANSWER, ("lone_surrogate",)),
        (b'{"\\ud83d": 1}', ANSWER, ("lone_surrogate",)),
        (b'{"content": "whole \\ud83d\\ude00 \xc3\xa9"}', ANSWER, ()),
        (b'["\xff"]', ANSWER, ("invalid_utf8",)),
        (b'{"messages": [{"role"', ANSWER, ("truncated_body",)),
        (b"{}", ANSWER[:-3], ("truncated_body",)),
        (b"{}", b"<html>busy</html>", ()),
        (b"{}", b"[1, 2]", ()),
        (b"{}", b'{"a" 1}', ()),
        (b"{}", b'{"error": {"message": "no"}}', ("http_200_error",)),
        (b"{}", b"\xff\xfe", ("invalid_utf8",)),
        (b"{}", b'{"choices":[{"message":{"tool_calls":[{"function":{"arguments":"[1]"}}]}}]}', ("tool_json_invalid",)),
        (b"{}", b'{"choices":[{"message":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}', ()),
    ],
)
def test_bodies(request_body: bytes, response: bytes, flags: tuple[str, ...]) -> None:
    assert flags_of(request_body, response) == flags


def test_an_error_with_an_errors_status_is_nothing_odd() -> None:
    assert flags_of(response=b'{"error": {"message": "no"}}', status=500) == ()


WHOLE_BODY = json.dumps({"a": [1.5e3, True, None, 'x\\y "q" é\u1234'], "b": {"c": -12, "d": False}}).encode()


@pytest.mark.parametrize("cut", range(1, len(WHOLE_BODY)))
def test_a_body_that_breaks_off_anywhere_is_found(cut: int) -> None:
    assert flags_of(response=WHOLE_BODY[:cut]) == ("truncated_body",)
    assert flags_of(request=WHOLE_BODY[:cut]) == ("truncated_body",)


@pytest.mark.parametrize("engine", ["vllm_0_32", "llama_cpp"])
@pytest.mark.parametrize("dialect", DIALECT_BY_PATH.values())
def test_streams_of_real_engines_have_no_flag(engine: str, dialect: str) -> None:
    for path in sorted((RECORDINGS / engine).glob(f"{dialect}*stream*.json")):
        body = json.loads(path.read_text("utf-8"))["body"]
        expected = ("invalid_utf8",) if "\ufffd" in body else ()  # a model without training does write it
        assert flags_of(response=body.encode(), dialect=dialect, is_sse=True) == expected, path


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["dialect", "request", "response", "request_raw", "response_raw", "status_code", "error_category"]
)


@given(
    exchange=st.dictionaries(KEYS, JSON_VALUES | st.sampled_from(["chat", "messages", "stream_truncated", "data: {"]))
)
def test_no_line_of_a_file_makes_it_raise(exchange: dict[str, Any]) -> None:
    assert quirk_flags(exchange) == tuple(sorted(set(quirk_flags(exchange))))
