"""Broken and odd streams of real servers, each with its tiny input: what the record says of them.

Names are the ids of the quirks. Every input is captured whole, byte by byte and in pieces: the record is the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.stream_facts import stream_facts
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.model_call_capture.exchanges.exchange import Exchange, build_exchange_record, encode_exchange
from gym_ray.model_call_capture.lines import parse_lines
from gym_ray.model_call_capture.records import build_record

DONE = b"data: [DONE]\n\n"


def chunk(finish: str | None = None, delta: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "q7", "model": "m", "choices": [choice], **others}


def C(**delta: Any) -> bytes:
    return sse(chunk(None, delta))


def END(reason: str) -> bytes:
    return sse(chunk(reason))


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n" for payload in payloads)


def captured(dialect: str, chunks: list[bytes]) -> dict[str, Any]:
    exchange = Exchange("0" * 32, "0-0", dialect, "s", 1.0, status=200, is_sse=True, complete=True)
    scanner = TerminalScanner(dialect)
    for one in chunks:
        exchange.response.append(one)
        exchange.terminal = scanner.feed(one)
    return build_exchange_record(exchange)


@dataclass(frozen=True)
class Quirk:
    """An input and what its record must say; None leaves a thing unsaid."""

    body: bytes
    category: str | None = None
    dialect: str = CHAT
    content: str | None = None
    usage: dict[str, Any] | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    reasoning: str | None = None
    facts: set[str] = field(default_factory=set)


def tool(fragment: dict[str, Any]) -> bytes:
    return C(tool_calls=[fragment])


START = {"type": "message_start", "message": {"id": "a1", "role": "assistant", "model": "z"}}
TEXT_BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
STOP = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"})


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


GOOD = C(content="ok") + END("stop") + DONE
TRUNCATED, UPSTREAM = "stream_truncated", "upstream_error"

QUIRKS = {
    **{
        f"B01 U+{ord(mark):04X}": Quirk(C(content=f"plum{mark}pear") + END("stop") + DONE, content=f"plum{mark}pear")
        for mark in "\u2028\u2029\u0085"
    },
    "B03 comments": Quirk(
        b": OPENROUTER PROCESSING\n\n: hb\n" + C(content="ok") + b"data: : hb\n\n" + END("stop") + DONE,
        content="ok",
        facts={"unparsable_event"},
    ),
    "B03 ping": Quirk(
        b'event: ping\ndata: {"type":"ping"}\n\n' + sse(START, TEXT_BLOCK, text_delta("ok"), *STOP),
        dialect=MESSAGES,
        content="ok",
    ),
    "B04": Quirk(GOOD.replace(b"data: ", b"data:").replace(b"data:[DONE]", b"data:  [DONE] "), content="ok"),
    "B05": Quirk(C(content="na\u00efve") + END("stop") + DONE, content="na\u00efve"),
    "B08 half": Quirk(C(content="half"), TRUNCATED, content="half", facts={"no_terminal"}),
    "B08 no blank line": Quirk(C(content="all") + END("stop") + b"data: [DONE]", TRUNCATED, content="all"),
    "B08 finished": Quirk(C(content="all") + END("stop"), TRUNCATED, content="all", facts={"no_terminal"}),
    "B09": Quirk(
        sse(
            {"type": "message_start", "message": START["message"] | {"usage": {"input_tokens": 4}}},
            TEXT_BLOCK,
            text_delta("yo"),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ),
        dialect=MESSAGES,
        content="yo",
        usage={"input_tokens": 4, "output_tokens": 1},
    ),
    "B09 responses": Quirk(
        sse(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "yo"},
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
        ),
        dialect=RESPONSES,
        content="yo",
    ),
    "B14": Quirk(
        b'\n\nid: 3\nretry: 900\nfoo: bar\ndata: {"choices":[{"index":0,\n'
        b'data: "delta":{"content":"k"},"finish_reason":"stop"}]}\n\n' + DONE,
        content="k",
    ),
    "B15": Quirk(
        tool({"id": "u1", "function": {"name": "add", "arguments": '{"n":1}'}})
        + tool({"id": "u2", "function": {"name": "sub", "arguments": '{"n":'}})
        + tool({"function": {"arguments": "2}"}})
        + END("tool_calls")
        + DONE,
        tool_calls=[
            {"call_id": "u1", "name": "add", "arguments": {"n": 1}},
            {"call_id": "u2", "name": "sub", "arguments": {"n": 2}},
        ],
    ),
    "B18": Quirk(
        C(content="a")
        + END("stop")
        + sse(
            {"id": "q7", "choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 2}},
            {"id": "q7", "usage": {}},
            {"choices": None, "usage": None},
        )
        + DONE,
        content="a",
        usage={"prompt_tokens": 31, "completion_tokens": 2},
    ),
    "B18 without choices": Quirk(
        C(content="a") + sse({"id": "q7", "usage": {"prompt_tokens": 3}}) + DONE,
        content="a",
        usage={"prompt_tokens": 3},
    ),
    "B18 null choices": Quirk(
        C(content="a") + sse({"choices": None, "usage": {"prompt_tokens": 4}}) + DONE,
        content="a",
        usage={"prompt_tokens": 4},
    ),
    "B19": Quirk(
        sse({"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
        + C(content="a")
        + sse(
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 5}}]},
            {"choices": [{"index": 0, "delta": None}]},
            {"id": "", "model": "", "choices": []},
        )
        + END("stop")
        + DONE,
        content="a",
    ),
    "B20": Quirk(
        sse(
            chunk(None, {"content": "a"}, usage={"completion_tokens": 1}),
            chunk(None, {"content": "b"}, usage={"completion_tokens": 2}),
            {"choices": [], "usage": {"completion_tokens": 2}},
        )
        + DONE,
        content="ab",
        usage={"completion_tokens": 2},
    ),
    "B21 object": Quirk(
        C(content="par") + sse({"error": {"code": 503, "message": "gone"}}),
        UPSTREAM,
        content="par",
        facts={"error_event"},
    ),
    "B21 text": Quirk(C(content="par") + sse({"error": "gone"}), UPSTREAM, content="par", facts={"error_event"}),
    "B21 array": Quirk(
        C(content="par") + sse([{"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy"}}]),
        UPSTREAM,
        content="par",
        facts={"error_event"},
    ),
    "B21 event line": Quirk(
        C(content="par") + b"event: error\ndata: gone\n\n",
        UPSTREAM,
        content="par",
        facts={"error_event", "unparsable_event"},
    ),
    "B21 object error": Quirk(
        C(content="par") + sse({"object": "error", "message": "m", "code": 400}),
        UPSTREAM,
        content="par",
        facts={"error_event"},
    ),
    "B21 choice": Quirk(
        C(content="par")
        + sse(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": ""},
                        "finish_reason": "error",
                        "error": {"code": 502, "message": "up"},
                    }
                ]
            }
        )
        + DONE,
        UPSTREAM,
        content="par",
        facts={"error_event"},
    ),
    "B21 null is none": Quirk(sse(chunk(None, {"content": "a"}, error=None)) + END("stop") + DONE, content="a"),
    "B22": Quirk(DONE, "capture_parse_error", facts={"empty_stream"}),
    "B22 messages": Quirk(
        sse({"type": "message_stop"}), "capture_parse_error", dialect=MESSAGES, facts={"empty_stream"}
    ),
    "B22 responses": Quirk(
        sse({"type": "response.completed"}), "capture_parse_error", dialect=RESPONSES, facts={"empty_stream"}
    ),
    "B22 envelope of nothing": Quirk(
        sse({"type": "response.completed", "response": {"id": "r"}}),
        "capture_parse_error",
        dialect=RESPONSES,
        facts={"empty_stream"},
    ),
    "B25": Quirk(
        sse(chunk("stop", {"content": "a"}), chunk("stop", {"content": "b"})) + DONE,
        content="ab",
        facts={"late_content"},
    ),
    "B26 reasoning": Quirk(C(reasoning="r") + END("stop") + DONE, reasoning="r"),
    "B26 reasoning_content": Quirk(C(reasoning_content="r") + END("stop") + DONE, reasoning="r"),
    "B26 both": Quirk(C(reasoning="r", reasoning_content="r") + END("stop") + DONE, reasoning="r"),
    "B27": Quirk(
        tool({"index": 0, "id": "w", "function": {"name": "sh", "arguments": '{"c":"ls"'}}) + END("tool_calls") + DONE,
        tool_calls=[{"call_id": "w", "name": "sh", "arguments": {"_raw": '{"c":"ls"'}}],
    ),
    "B29": Quirk(
        sse(START, TEXT_BLOCK, text_delta("he"))
        + b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        UPSTREAM,
        dialect=MESSAGES,
        content="he",
        facts={"error_event"},
    ),
    "B30": Quirk(
        sse(
            {
                "type": "message_start",
                "message": {
                    "id": "a",
                    "usage": {"input_tokens": 812, "cache_read_input_tokens": 700, "output_tokens": 5},
                },
            },
            TEXT_BLOCK,
            text_delta("x"),
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 8}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 9},
            },
            {"type": "message_stop"},
        ),
        dialect=MESSAGES,
        content="x",
        usage={"input_tokens": 812, "cache_read_input_tokens": 700, "output_tokens": 9},
    ),
    "B31": Quirk(
        sse(
            START,
            START,
            TEXT_BLOCK,
            text_delta("hi"),
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "why"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_stop", "index": 0},
            *STOP,
        ),
        dialect=MESSAGES,
        content="hi",
        facts={"block_type_mismatch", "duplicate_start"},
    ),
}


def text_of(response: dict[str, Any]) -> str | None:
    if "choices" in response:
        found = response["choices"][0]["message"]["content"]
    elif "content" in response:
        found = response["content"][0]["text"]
    else:
        found = response["output"][0]["content"][0]["text"]
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)
def test_quirk(quirk: Quirk) -> None:
    record = captured(quirk.dialect, [quirk.body])
    assert record["error_category"] == quirk.category
    assert record["response_raw"] == quirk.body.decode(), "what came is kept whatever was made of it"
    response = record["response"]
    if quirk.category == "capture_parse_error":
        assert response is None or response == {"id": "r"}
    else:
        assert text_of(response) == quirk.content
        assert response.get("usage") == quirk.usage
    call = build_record(record, 0)
    assert [one.model_dump() for one in call.tool_calls] == quirk.tool_calls
    assert call.reasoning_content == quirk.reasoning
    assert stream_facts(quirk.dialect, quirk.body) == quirk.facts
    assert captured(quirk.dialect, [quirk.body[at : at + 1] for at in range(len(quirk.body))]) == record
    for at in range(1, len(quirk.body)):
        assert captured(quirk.dialect, [quirk.body[:at], quirk.body[at:]]) == record


def test_b19_an_empty_id_or_model_overwrites_none() -> None:
    response = captured(CHAT, [QUIRKS["B19"].body])["response"]
    assert (response["id"], response["model"]) == ("q7", "m")


def test_b25_one_finish_reason() -> None:
    (choice,) = captured(CHAT, [QUIRKS["B25"].body])["response"]["choices"]
    assert choice["finish_reason"] == "stop"


def test_b31_text_and_thinking_are_both_kept_and_nothing_is_doubled() -> None:
    response = captured(MESSAGES, [QUIRKS["B31"].body])["response"]
    assert response["content"] == [{"type": "text", "text": "hi", "thinking": "why"}]
    assert response["id"] == "a1"


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"no credit"}}', b"{}", b"", b'{"choices":[]}', b'{"choices":null}', b"[]"]
)
def test_b23_a_200_that_is_no_answer_is_no_success(body: bytes) -> None:
    exchange = Exchange("0" * 32, "0-0", CHAT, "s", 1.0, status=200, complete=True, response=[body])
    expected = "upstream_error" if b"error" in body else "capture_parse_error"
    assert build_exchange_record(exchange)["error_category"] == expected


@pytest.mark.parametrize("number", [18446744073709551616, -9223372036854775809, 9007199254740993])
def test_b40_integers_of_any_size_survive_a_stream_and_its_record(number: int) -> None:
    body = sse(chunk("stop", {"content": "a", "seed": number}, usage={"total_tokens": number})) + DONE
    exchange = Exchange("0" * 32, "0-0", CHAT, "s", 1.0, status=200, is_sse=True, complete=True, response=[body])
    exchange.request, exchange.terminal = [b'{"seed": %d}' % number], "complete"
    (((_, record),), invalid) = parse_lines(encode_exchange(exchange))
    assert invalid == 0
    assert record["request"] == {"seed": number}
    assert record["response"]["choices"][0]["message"]["seed"] == number
    assert record["response"]["usage"] == {"total_tokens": number}


def test_b41_a_lone_surrogate_survives_a_stream_and_its_record() -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"cut \\ud83d"},"finish_reason":"stop"}]}\n\n' + DONE
    exchange = Exchange("0" * 32, "0-0", CHAT, "s", 1.0, status=200, is_sse=True, complete=True, response=[body])
    exchange.request = [b'{"messages":[{"role":"tool","tool_call_id":"x","content":"cut \\ud83d"}]}']
    exchange.terminal = "complete"
    (((_, record),), invalid) = parse_lines(encode_exchange(exchange))
    assert (invalid, record["error_category"]) == (0, None)
    assert record["request"]["messages"][0]["content"] == "cut \ud83d"
    assert record["response"]["choices"][0]["message"]["content"] == "cut \ud83d"
