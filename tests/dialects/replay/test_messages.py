from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects import MESSAGES
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.sse import parse_objects

USAGE = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 100,
    "output_tokens": 3,
    "server_tool_use": {"web_search_requests": 1},
}


def events(*blocks: Any, **members: Any) -> list[dict[str, Any]]:
    answer = {"id": "m", "model": "q", "content": list(blocks), "stop_reason": "end_turn", "usage": USAGE, **members}
    frames = replay_frames(MESSAGES, answer)
    told = parse_objects(b"".join(frames))
    assert [frame.split(b"\n")[0] for frame in frames] == [b"event: " + event["type"].encode() for event in told]
    return told


def block_events(block: dict[str, Any]) -> list[dict[str, Any]]:
    told = [event for event in events(block) if event["type"].startswith("content_block")]
    assert [event["type"] for event in told][:: len(told) - 1] == ["content_block_start", "content_block_stop"]
    assert {event["index"] for event in told} == {0}
    return [told[0]["content_block"], *(event["delta"] for event in told[1:-1])]


def test_the_start_does_not_know_the_end_but_the_prompt() -> None:
    message = events(stop_sequence="S")[0]["message"]
    assert message == {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "q",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 0},
    }


@pytest.mark.parametrize("usage", [None, {}])
def test_unknown_counts_stay_unknown(usage: Any) -> None:
    start, delta, _ = events(usage=usage)
    assert start["message"]["usage"] == {"input_tokens": None, "output_tokens": None}
    assert delta["usage"] == {"output_tokens": None}


def test_the_delta_says_how_it_ended() -> None:
    *_, delta, stop = events(stop_reason="stop_sequence", stop_sequence="S", container={"id": "k"}, stop_details=None)
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "S", "container": {"id": "k"}}
    assert delta["usage"] == {"output_tokens": 3}
    assert stop == {"type": "message_stop"}


def test_text_with_citations() -> None:
    block = {"type": "text", "text": "a", "citations": [{"cited_text": "x"}]}
    cited = {"type": "citations_delta", "citation": {"cited_text": "x"}}
    assert block_events(block) == [{**block, "text": "", "citations": []}, {"type": "text_delta", "text": "a"}, cited]
    bare = {"type": "text", "text": "", "citations": None}
    assert block_events(bare) == [bare, {"type": "text_delta", "text": ""}]


def test_thinking_with_and_without_a_signature() -> None:
    thought = {"type": "thinking_delta", "thinking": "why"}
    signed = {"type": "thinking", "thinking": "why", "signature": "S"}
    signature = {"type": "signature_delta", "signature": "S"}
    assert block_events(signed) == [{"type": "thinking", "thinking": ""}, thought, signature]
    assert block_events({**signed, "signature": ""}) == [{**signed, "thinking": "", "signature": ""}, thought]


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use", "mcp_tool_use"])
def test_the_input_of_a_tool_is_one_json_text(kind: str) -> None:
    block = {"type": kind, "id": "t", "name": "f", "input": {"a": [1, "ö"]}, "caller": {"type": "direct"}}
    delta = {"type": "input_json_delta", "partial_json": '{"a": [1, "\\u00f6"]}'}
    assert block_events(block) == [{**block, "input": {}}, delta]
    assert block_events({**block, "input": None})[1]["partial_json"] == "{}"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "E"},
        {"type": "web_search_tool_result", "tool_use_id": "t", "content": [{"url": "u"}]},
        {"type": ["odd"], "text": "a"},
        {"type": "text", "text": 5},
    ],
)
def test_other_blocks_are_opened_whole(block: dict[str, Any]) -> None:
    assert block_events(block) == [block]


def test_blocks_are_numbered_without_a_gap() -> None:
    told = events({"type": "text", "text": "a"}, "no block", {"type": "text", "text": "b"})
    assert [event["index"] for event in told if event["type"] == "content_block_start"] == [0, 1]
