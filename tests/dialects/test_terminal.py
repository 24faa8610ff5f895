from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, terminal
from gym_ray.dialects.terminal import TerminalScanner, is_error_payload


def scan(dialect: str, *chunks: bytes) -> list[str | None]:
    scanner = TerminalScanner(dialect)
    return [scanner.feed(chunk) for chunk in chunks]


def test_found_in_the_chunk_that_completes_it_and_sticky() -> None:
    assert scan(CHAT, b"data: {}\n\ndata: [DO", b"NE]\n", b"\n", b"more") == [None, None, "complete", "complete"]
    assert scan(MESSAGES, b"event: error\ndata: {}\n\n", b"event: message_stop\ndata: {}\n\n") == ["error", "error"]


def test_a_carriage_return_ends_a_line_at_once() -> None:
    assert scan(CHAT, b"data: [DONE]\r", b"\r", b"\n") == [None, "complete", "complete"]
    assert scan(CHAT, b"data: [DONE]\r\n\r") == ["complete"]


@pytest.mark.parametrize(
    ("dialect", "payload", "terminal"),
    [
        (RESPONSES, {"type": "response.completed", "response": {}}, "complete"),
        (RESPONSES, {"type": "response.failed"}, "error"),
        (RESPONSES, {"type": "response.output_text.delta", "delta": "response.completed"}, None),
        (RESPONSES, {"type": "response.output_text.delta", "error": {"m": 1}}, None),
        (RESPONSES, {"error": {"message": "gone"}}, "error"),
        (RESPONSES, {"type": "message_stop"}, None),
        (MESSAGES, {"type": "message_stop"}, "complete"),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error"}}, "error"),
        (MESSAGES, {"type": "content_block_delta", "delta": {"text": "message_stop error"}}, None),
        (CHAT, {"error": {"code": 503, "message": "gone"}}, "error"),
        (CHAT, {"object": "error", "message": "m", "type": "BadRequestError"}, "error"),
        (CHAT, [{"error": {"code": 503, "status": "UNAVAILABLE"}}], "error"),
        (CHAT, {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 502}}]}, "error"),
        (CHAT, {"error": None, "choices": [{"delta": {"content": "an error"}}]}, None),
        (CHAT, {"choices": [{"delta": {"content": "[DONE]"}, "error": None}]}, None),
        (CHAT, "error", None),
    ],
)
def test_the_payload_says_it_without_an_event_line(dialect: str, payload: object, terminal: str | None) -> None:
    data = json.dumps(payload).encode()
    assert scan(dialect, b"data: " + data + b"\n\n") == [terminal]
    # a gateway's own name for every event is only a hint
    assert scan(dialect, b"event: message\ndata: " + data + b"\n\n") == [terminal]


def test_only_events_that_may_end_the_stream_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_into: list[bytes] = []
    original = terminal._parse

    def parse(data: bytes) -> Any:
        looked_into.append(data)
        return original(data)

    monkeypatch.setattr(terminal, "_parse", parse)
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"error " * 20_000 + b'"}}]}\n\n'
    spelled = b'data: {"t":"\\u0065"}\n\n'
    body = delta * 3 + b'data: {"error" : null}\n\n' + spelled + delta + b"data: [DONE]\n\n"
    chunks = [body[start : start + 4096] for start in range(0, len(body), 4096)]
    assert scan(CHAT, *chunks)[-2:] == [None, "complete"]
    assert looked_into == [b'{"t":"\\u0065"}']


def test_escaped_spelling_of_a_type() -> None:
    assert scan(MESSAGES, b'data: {"type": "message\\u005fstop"}\n\n') == ["complete"]


def test_broken_payload_with_a_terminal_word_is_an_ordinary_event() -> None:
    assert scan(CHAT, b'data: {"error": \n\n', b"data: [DONE]\n\n") == [None, "complete"]


def test_error_payloads_of_other_kinds() -> None:
    assert is_error_payload({"error": "text"})
    assert not is_error_payload({"choices": [{"finish_reason": "stop"}, 5]})
    assert not is_error_payload(None)
    assert not is_error_payload([5, {"a": 1}])


FILL = "error " * 300_000


@pytest.mark.parametrize(
    ("dialect", "event", "terminal_class", "parsed"),
    [
        (RESPONSES, f'event: response.completed\ndata: {{"x":"{FILL}"}}', "complete", False),
        (RESPONSES, f'event: response.output_text.done\ndata: {{"type":"x","t":"{FILL}"}}', None, False),
        (RESPONSES, f'data: {{"type":"response.failed","t":"{FILL}"}}', "error", False),
        (RESPONSES, f'data: {{"sequence_number": 7, "type": "response.completed", "t":"{FILL}"}}', "complete", False),
        (RESPONSES, f'data: {{"t":"{FILL}","type":"response.incomplete"}}', "incomplete", False),
        (MESSAGES, f'data: {{"type":"content_block_delta","delta":{{"text":"{FILL}"}}}}', None, False),
        (CHAT, f'data: {{"choices":[{{"delta":{{"content":"{FILL}"}}}}]}}', None, False),
        (CHAT, f'data: {{"error":null,"choices":[{{"delta":{{"content":"{FILL}"}}}}]}}', None, False),
        (CHAT, f'event: error\ndata: {{"t":"{FILL}"}}', "error", False),
        # Shapes that only reading them whole can tell.
        (CHAT, f'data: {{"t":"{FILL}","error":{{"code":1}}}}', "error", True),
        (RESPONSES, f'data: {{"t":"{FILL}","response":{{"type":"response.completed"}}}}', None, True),
        (RESPONSES, f'data: {{"t":"{FILL}",\ndata: "type":"response.completed"}}', "complete", False),
        (RESPONSES, f'id: 3\nevent: x\ndata: {{"t":"{FILL}"}}\nevent: response.completed', "complete", False),
        (RESPONSES, f'event: response.completed\ndata: {{"t":"{FILL}"}}\nevent: x', None, False),
        (RESPONSES, f'event: error\ndata: {{"type":"x",\ndata: "t":"{FILL}"}}\nevent: x', None, False),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_large_event_is_judged_by_its_ends(
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    event: str,
    terminal_class: str | None,
    parsed: bool,
    line_end: bytes,
) -> None:
    looked_into: list[int] = []
    original = terminal._parse

    def parse(data: bytes) -> Any:
        looked_into.append(len(data))
        return original(data)

    monkeypatch.setattr(terminal, "_parse", parse)
    body = b"data: {}\n\n" + (event.encode() + b"\n\n").replace(b"\n", line_end)
    assert scan(dialect, body) == [terminal_class]
    found = scan(dialect, *(body[at : at + 4096] for at in range(0, len(body), 4096)))
    assert found[-1] == terminal_class
    assert set(found[:-1]) <= {None}
    assert bool(looked_into) == parsed
