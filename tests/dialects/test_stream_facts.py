from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.stream_facts import stream_facts

RECORDINGS = Path(__file__).parents[1] / "recordings"
DONE = b"data: [DONE]\n\n"


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"id": "q7", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


START = {"type": "message_start", "message": {"id": "a1", "role": "assistant"}}
STOP = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"})


def block(kind: str, index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind}}


def delta(kind: str, index: int = 0, **members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **members}}


def recorded() -> list[Any]:
    loaded = [(path, json.loads(path.read_text("utf-8"))) for path in sorted(RECORDINGS.glob("*/*.json"))]
    return [
        pytest.param(
            DIALECT_BY_PATH[recording["path"]], recording["body"].encode(), id=f"{path.parent.name}-{path.stem}"
        )
        for path, recording in loaded
        if recording["path"] in DIALECT_BY_PATH and recording["headers"]["content-type"].startswith("text/event-stream")
    ]


@pytest.mark.parametrize(("dialect", "body"), recorded())
def test_streams_of_real_engines_are_plain(dialect: str, body: bytes) -> None:
    facts = stream_facts(dialect, body)
    assert facts <= {"invalid_utf8"}  # a random model's tokens end in the middle of characters
    assert ("invalid_utf8" in facts) == ("\ufffd" in body.decode())
    cut_off = stream_facts(dialect, body[: len(body) // 2].rpartition(b"\n\n")[0]) - facts
    assert {"no_terminal"} <= cut_off <= {"no_terminal", "empty_stream"}


@pytest.mark.parametrize(
    ("dialect", "body", "facts"),
    [
        pytest.param(CHAT, sse(chunk(content="a"), chunk("stop")) + DONE, set(), id="plain"),
        pytest.param(CHAT, sse(chunk(content="half")), {"no_terminal"}, id="B08 text only"),
        pytest.param(CHAT, sse(chunk(content="all"), chunk("stop")), {"no_terminal"}, id="B08 finished"),
        pytest.param(CHAT, sse(chunk(content="all"), chunk("stop")) + DONE[:-2], set(), id="B08 no blank line"),
        pytest.param(CHAT, DONE, {"empty_stream"}, id="B22"),
        pytest.param(CHAT, b"", {"empty_stream", "no_terminal"}, id="nothing at all"),
        pytest.param(CHAT, sse(chunk(role="assistant", content="")) + DONE, {"empty_stream"}, id="a role is no answer"),
        pytest.param(CHAT, sse(chunk("stop")) + DONE, set(), id="ended at once"),
        pytest.param(CHAT, sse(chunk(tool_calls=[{"index": 0}])) + DONE, set(), id="a call"),
        pytest.param(MESSAGES, sse(START, {"type": "message_stop"}), {"empty_stream"}, id="a message of nothing"),
        pytest.param(RESPONSES, sse({"type": "response.completed"}), {"empty_stream"}, id="no envelope"),
        pytest.param(
            RESPONSES,
            sse({"type": "response.completed", "response": {"status": "completed", "output": []}}),
            set(),
            id="an answer of nothing",
        ),
        pytest.param(
            CHAT, sse(chunk("stop", content="a"), chunk("stop", content="b")) + DONE, {"late_content"}, id="B25"
        ),
        pytest.param(
            CHAT, sse(chunk("stop", content="a"), chunk("stop", index=1, content="b")) + DONE, set(), id="n=2"
        ),
        pytest.param(CHAT, sse(chunk("stop"), chunk(content="")) + DONE, set(), id="an empty text is not late"),
        pytest.param(
            CHAT, sse(chunk(content="a")) + DONE + sse(chunk(content="b")), {"late_content"}, id="behind the end"
        ),
        pytest.param(
            MESSAGES, sse(START, block("text"), *STOP, delta("text_delta", text="x")), {"late_content"}, id="late delta"
        ),
        pytest.param(
            RESPONSES,
            sse(
                {"type": "response.completed", "response": {"output": [{}]}},
                {"type": "response.output_text.delta", "delta": "x"},
            ),
            {"late_content"},
            id="late text",
        ),
        pytest.param(
            MESSAGES,
            sse(START, START, block("text"), delta("text_delta", text="a"), *STOP),
            {"duplicate_start"},
            id="B31 start",
        ),
        pytest.param(
            MESSAGES,
            sse(START, block("text"), delta("thinking_delta", thinking="why"), *STOP),
            {"block_type_mismatch"},
            id="B31 block",
        ),
        pytest.param(
            MESSAGES,
            sse(START, block("text"), delta("input_json_delta", partial_json="{}"), *STOP),
            {"block_type_mismatch"},
            id="input in a text",
        ),
        pytest.param(
            MESSAGES,
            sse(
                START,
                block("server_tool_use"),
                delta("input_json_delta", partial_json="{}"),
                delta("thinking_delta", 1, thinking="w"),
                delta("signature_delta", 1, signature="s"),
                delta("future_delta", 1),
                *STOP,
            ),
            set(),
            id="deltas that fit",
        ),
        pytest.param(RESPONSES, sse(*[{"type": "response.created", "response": {}}] * 2), None, id="created twice"),
        pytest.param(CHAT, b"data: : hb\n\n" + sse(chunk("stop")) + DONE, {"unparsable_event"}, id="B03"),
        pytest.param(CHAT, b"data: 5\n\n: c\n\nevent: x\n\n" + sse(chunk("stop")) + DONE, set(), id="no object"),
        pytest.param(
            CHAT, b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n' + DONE, {"invalid_utf8"}, id="bytes"
        ),
        pytest.param(
            CHAT, 'data: {"choices":[{"delta":{"content":"\ufffd"}}]}\n\n'.encode() + DONE, {"invalid_utf8"}, id="kept"
        ),
        pytest.param(CHAT, sse(chunk(content="p"), {"error": {"code": 503}}), {"error_event"}, id="B21"),
        pytest.param(CHAT, sse(chunk(content="p")) + DONE + sse({"error": "x"}), {"error_event"}, id="a late error"),
        pytest.param(MESSAGES, sse(START, block("text"), {"type": "error", "error": {}}), {"error_event"}, id="B29"),
        pytest.param(
            RESPONSES, sse({"type": "response.failed", "response": {"status": "failed"}}), {"error_event"}, id="failed"
        ),
    ],
)
def test_facts(dialect: str, body: bytes, facts: set[str] | None) -> None:
    expected = {"duplicate_start", "empty_stream", "no_terminal"} if facts is None else facts
    assert stream_facts(dialect, body) == expected
    assert stream_facts(dialect, body.replace(b"\n", b"\r\n")) == expected


@given(
    st.lists(st.sampled_from([b"data: ", b"event: ", b"{", b"}", b'"type":', b'"error"', b"\n", b"[", b"]", b"\xff"]))
)
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    for dialect in DIALECT_BY_PATH.values():
        assert isinstance(stream_facts(dialect, b"".join(pieces)), frozenset)
