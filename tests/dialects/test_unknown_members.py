from __future__ import annotations

import json
from typing import Any

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.unknown_members import merge_member


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


def chat(*deltas: dict[str, Any], **choice: Any) -> dict[str, Any]:
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    result = reassemble(CHAT, sse(*chunks, {"choices": [{"index": 0, "delta": {}, **choice}]}))
    assert result is not None
    (found,) = result["choices"]
    assert isinstance(found, dict)
    return found


def test_merging() -> None:
    into: dict[str, Any] = {}
    for value in ([1], [2], None, []):
        merge_member(into, "list", value)
    for value in ({"a": [1], "b": {"c": 1}, "d": 1}, {"a": [2], "b": {"e": 2}, "d": None}, {"d": 3}):
        merge_member(into, "object", value)
    for value in ("old", "new", None):
        merge_member(into, "text", value)
    merge_member(into, "changed", [1])
    merge_member(into, "changed", "x")
    assert into == {
        "list": [1, 2],
        "object": {"a": [1, 2], "b": {"c": 1, "e": 2}, "d": 3},
        "text": "new",
        "changed": "x",
    }


def test_objects_of_any_depth_are_merged() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    into: dict[str, Any] = {}
    merge_member(into, "x", deep)
    merge_member(into, "x", {"a": {"b": 1}})
    assert into["x"]["a"]["b"] == 1


def test_details_of_reasoning_are_kept_item_by_item() -> None:
    """B26."""
    items = [{"type": "reasoning.encrypted", "data": data} for data in "EFG"]
    message = chat(
        {"role": "assistant", "reasoning": "r", "reasoning_details": items[:1]},
        {"reasoning": "r2", "reasoning_content": "r2"},
        {"reasoning_content": "r3", "reasoning_details": items[1:]},
    )["message"]
    assert message == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "rr2r3",
        "reasoning_details": items,
    }


def test_members_of_a_choice_add_up() -> None:
    result = reassemble(
        CHAT,
        sse(
            {
                "id": "c",
                "system_fingerprint": "f",
                "choices": [
                    {"index": 0, "delta": {}, "token_ids": [1, 2], "logprobs": {"content": [{"t": 1}], "refusal": None}}
                ],
            },
            {"choices": [{"index": 0, "delta": {}, "token_ids": [3], "logprobs": {"content": [{"t": 2}]}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 106, "logprobs": None}]},
        ),
    )
    assert result is not None
    assert list(result) == ["object", "model", "choices", "id"], "the top has the members of A84 and no others"
    assert result["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": None},
            "finish_reason": "stop",
            "token_ids": [1, 2, 3],
            "logprobs": {"content": [{"t": 1}, {"t": 2}], "refusal": None},
            "stop_reason": 106,
        }
    ]


def test_what_arrives_in_fragments_is_joined() -> None:
    message = chat(
        {"audio": {"id": "a", "data": "AA", "transcript": "he"}, "function_call": {"name": "f", "arguments": "{"}},
        {"audio": {"data": "BB", "transcript": "llo"}, "function_call": {"arguments": "}"}},
        {"audio": {"expires_at": 5}, "annotations": [{"n": 1}]},
        {"annotations": [{"n": 2}]},
    )["message"]
    assert message["audio"] == {"id": "a", "data": "AABB", "transcript": "hello", "expires_at": 5}
    assert message["function_call"] == {"name": "f", "arguments": "{}"}
    assert message["annotations"] == [{"n": 1}, {"n": 2}]


def test_tool_calls_keep_what_gateways_add() -> None:
    extra = {"google": {"thought_signature": "S"}}
    message = chat(
        {"tool_calls": [{"index": 0, "id": "a", "extra_content": extra, "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}", "strict": True}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "custom", "custom": {"name": "g", "input": "l"}}]},
        {"tool_calls": [{"index": 1, "custom": {"input": "s"}}]},
    )["message"]
    assert message["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "{}", "strict": True},
            "extra_content": extra,
        },
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": "ls"}},
    ]


def test_content_in_parts() -> None:
    part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    assert chat({"content": [part]})["message"]["content"] == [part]
    both = chat({"content": [part]}, {"content": "so"})["message"]["content"]
    assert both == [{"type": "text", "text": "so"}, part]


def test_messages_keep_members_that_no_rule_names() -> None:
    start = {"id": "a", "model": "m", "stop_sequence": None, "service_tier": "standard", "content": [{"type": "text"}]}
    delta = {"stop_reason": "stop_sequence", "stop_sequence": "END", "container": {"id": "box"}, "id": "b"}
    result = reassemble(
        MESSAGES,
        sse(
            {"type": "message_start", "message": start},
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": []}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "x", "logprobs": [1], "other": None},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "y", "logprobs": [2]},
            },
            {"type": "content_block_start", "index": 1, "content_block": {"type": "compaction", "content": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "compaction_delta", "content": "short"}},
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}, "context_management": {"n": 1}},
            {"type": "message_delta", "delta": {"stop_reason": "", "stop_sequence": None, "container": None}},
        ),
    )
    assert result == {
        "id": "a",
        "type": "message",
        "model": "m",
        "service_tier": "standard",
        "stop_reason": "stop_sequence",
        "stop_sequence": "END",
        "container": {"id": "box"},
        "context_management": {"n": 1},
        "content": [
            {"type": "text", "text": "xy", "citations": [], "logprobs": [1, 2]},
            {"type": "compaction", "content": "short"},
        ],
        "usage": {"output_tokens": 1},
    }


def test_a_truncated_response_keeps_log_probs_and_annotations() -> None:
    def text(kind: str, **members: Any) -> dict[str, Any]:
        return {"type": f"response.output_text.{kind}", "output_index": 0, "content_index": 0, **members}

    item = {"id": "m", "type": "message", "phase": "final", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    begun = (
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": part},
        text("delta", delta="a", logprobs=[{"t": 1}], obfuscation="xx"),
        text("delta", delta="b", logprobs=[{"t": 2}], sequence_number=7),
        text("annotation.added", annotation={"type": "url_citation"}, annotation_index=0),
        {"type": "response.code_interpreter_call_code.delta", "output_index": 1, "delta": "x = 1"},
    )
    result = reassemble(RESPONSES, sse(*begun))
    found = {"type": "output_text", "text": "ab", "logprobs": [{"t": 1}, {"t": 2}]}
    assert result is not None
    assert result["output"] == [
        {
            "id": "m",
            "type": "message",
            "phase": "final",
            "content": [{**found, "annotations": [{"type": "url_citation"}]}],
        },
        {"type": "code_interpreter_call", "code": "x = 1"},
    ]
    result = reassemble(RESPONSES, sse(*begun, text("done", text="ab", logprobs=[{"t": 3}])))
    assert result is not None
    assert result["output"][0]["content"][0]["logprobs"] == [{"t": 3}]


def test_the_superseding_event_is_told_from_others() -> None:
    done = {"type": "response.completed", "response": {"id": "r", "output": [{"type": "message"}]}}
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "response.completed"}
    built = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "response.completed"}]}
    plain = {"id": "r", "output": [{"type": "message"}]}
    assert reassemble(RESPONSES, sse(delta, done)) == plain
    assert reassemble(RESPONSES, sse(done, delta)) == plain, "named again behind it"
    assert reassemble(RESPONSES, sse(delta)) == {"output": [built]}, "named only in a text"
    broken = b"event: response.completed\ndata: {\n\n"
    assert reassemble(RESPONSES, sse(delta) + broken) == {"output": [built]}
    assert reassemble(RESPONSES, sse(done) + broken) == plain
    empty = {"type": "response.completed", "response": {"id": "s", "output": []}}
    assert reassemble(RESPONSES, sse(delta, empty)) == {"id": "s", "output": [built]}
    assert reassemble(RESPONSES, sse(done, empty)) == {"id": "s", "output": []}, "the last one is the answer"
    spelled = json.dumps({**done, "response": {"id": "t", "output": [1]}}).replace("response.c", "response\\u002ec")
    assert reassemble(RESPONSES, sse(done) + f"data: {spelled}\n\n".encode()) == {"id": "t", "output": [1]}
    for end in (b"\r\n", b"\r"):
        assert reassemble(RESPONSES, sse(delta, done).replace(b"\n", end)) == plain
