"""The recordings, streamed and not, must tell the same story; and no bytes at all may raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble

RECORDINGS = Path(__file__).parents[1] / "recordings"


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


def stream(engine: str, name: str) -> dict[str, Any]:
    recording = json.loads((RECORDINGS / engine / f"{name}.json").read_text("utf-8"))
    result = reassemble(DIALECT_BY_PATH[recording["path"]], recording["body"].encode())
    assert result is not None
    return result


def answer(engine: str, name: str) -> dict[str, Any]:
    recording = json.loads((RECORDINGS / engine / f"{name}.json").read_text("utf-8"))
    body = json.loads(recording["body"])
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm_0_32"])
def test_chat(engine: str) -> None:
    result = stream(engine, "chat_stream")
    (choice,) = result["choices"]
    assert result["object"] == "chat.completion"
    assert result["id"].startswith("chatcmpl-")
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    plain = answer(engine, "chat")
    assert result["model"] == plain["model"]
    assert choice["finish_reason"] == plain["choices"][0]["finish_reason"]


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm_0_32"])
def test_chat_usage_arrives_without_choices(engine: str) -> None:
    usage = stream(engine, "chat_stream_usage_tokens")["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_chat_choices_stay_apart() -> None:
    result = stream("vllm_0_32", "chat_n2_stream")
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    first, second = (choice["message"]["content"] for choice in result["choices"])
    assert first
    assert second
    assert first != second


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm_0_32"])
def test_messages(engine: str) -> None:
    result, plain = stream(engine, "messages_stream"), answer(engine, "messages")
    assert result["type"] == "message"
    assert result["stop_reason"] == plain["stop_reason"]
    assert result["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    assert [block["type"] for block in result["content"]] == [block["type"] for block in plain["content"]]
    assert result["content"][0]["text"]


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm_0_32"])
def test_responses(engine: str) -> None:
    result, plain = stream(engine, "responses_stream"), answer(engine, "responses")
    assert result["status"] == plain["status"]
    assert result["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    if engine == "llama_cpp":  # the other one streamed no item for its empty text
        assert [item["type"] for item in result["output"]] == [item["type"] for item in plain["output"]]


def test_llama_cpp_items_have_no_output_index() -> None:
    recording = json.loads((RECORDINGS / "llama_cpp" / "responses_stream.json").read_text("utf-8"))
    whole = reassemble(RESPONSES, recording["body"].encode())
    body = recording["body"]
    without_terminal = body[: body.index("event: response.completed")].encode()
    assert whole is not None
    partial = reassemble(RESPONSES, without_terminal)
    assert partial is not None
    assert partial["status"] == "in_progress"
    assert partial["output"] == whole["output"]
    cut_in_text = body[: body.index("event: response.output_text.done")].encode()
    partial = reassemble(RESPONSES, cut_in_text)
    assert partial is not None
    assert partial["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]


def test_chat_tool_deltas_without_index() -> None:
    def chunk(*calls: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls)}}]}

    result = reassemble(
        CHAT,
        sse(
            chunk({"id": "u1", "function": {"name": "add", "arguments": '{"n":1}'}}),
            chunk({"id": "u2", "function": {"name": "sub", "arguments": '{"n":'}}),
            chunk({"function": {"arguments": "2}"}}),
            chunk(
                {"id": "u1", "function": {"arguments": " "}}, {"id": "u3", "function": {"name": "f", "arguments": {}}}
            ),
        ),
    )
    assert result is not None
    calls = result["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("u1", "add", '{"n":1} '),
        ("u2", "sub", '{"n":2}'),
        ("u3", "f", "{}"),
    ]


def test_chat_calls_of_two_choices_do_not_mix() -> None:
    def chunk(index: int, arguments: str, call_id: str | None = None) -> dict[str, Any]:
        call = {"index": 0, "id": call_id, "function": {"name": None, "arguments": arguments}}
        return {"choices": [{"index": index, "delta": {"tool_calls": [call]}}]}

    result = reassemble(CHAT, sse(chunk(1, "b1", "B"), chunk(0, "a1", "A"), chunk(1, "b2"), chunk(0, "a2")))
    assert result is not None
    found = [choice["message"]["tool_calls"][0] for choice in result["choices"]]
    assert [(call["id"], call["function"]["arguments"]) for call in found] == [("A", "a1a2"), ("B", "b1b2")]


def test_chat_filter_chunks_do_not_overwrite() -> None:
    result = reassemble(
        CHAT,
        sse(
            {
                "id": "q7",
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": "a"}}],
                "usage": {"total_tokens": 3},
            },
            {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": []},
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}], "usage": {}},
            {"choices": None},
            {"choices": [{"index": 0, "delta": None}, 5]},
        ),
    )
    assert result is not None
    assert (result["id"], result["model"], result["usage"]) == ("q7", "m", {"total_tokens": 3})
    assert result["choices"][0]["message"]["content"] == "a"


def test_messages_signature_usage_and_twice_started() -> None:
    start = {
        "type": "message_start",
        "message": {"id": "a1", "usage": {"input_tokens": 812, "cache_read_input_tokens": 7}},
    }
    result = reassemble(
        MESSAGES,
        sse(
            start,
            start,
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s1"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s2"}},
            {"type": "content_block_start", "content_block": {"type": "text", "text": "he"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "llo"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"n": 1}}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "future_delta", "x": 1}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 9},
            },
        ),
    )
    assert result == {
        "id": "a1",
        "type": "message",
        "stop_reason": "end_turn",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s1s2"},
            {"type": "text", "text": "hello", "citations": [{"n": 1}]},
        ],
        "usage": {"input_tokens": 812, "cache_read_input_tokens": 7, "output_tokens": 9},
    }


def test_responses_built_from_every_kind_of_item_event() -> None:
    def event(kind: str, order: int, **members: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": order, **members}

    def summary(text: str) -> dict[str, Any]:
        return {"type": "summary_text", "text": text}

    hello = {"type": "output_text", "text": "Hello"}
    result = reassemble(
        RESPONSES,
        sse(
            {"type": "response.created", "response": {"id": "r", "output": []}},
            event("output_item.added", 1, item={"type": "message", "content": []}),
            event("content_part.added", 1, content_index=0, part={"type": "output_text", "text": ""}),
            event("output_text.delta", 1, content_index=0, delta="Hel"),
            event("reasoning_summary_text.delta", 0, summary_index=1, delta="two"),
            event("reasoning_summary_text.delta", 0, summary_index=0, delta="on"),
            event("reasoning_summary_text.done", 0, summary_index=0, text="one"),
            event("output_text.delta", 1, content_index=0, delta="lo"),
            event("refusal.delta", 1, content_index=1, delta="no"),
            event("custom_tool_call_input.delta", 3, delta="ls"),
            event("output_item.done", 2, item={"type": "web_search_call", "id": "w"}),
            event("output_item.added", 2, item={"type": "late"}),
            event("reasoning_text.delta", 4, content_index=0, delta="why"),
            event("unheard_of.delta", 9, delta="x"),
        ),
    )
    assert result == {
        "id": "r",
        "output": [
            {"type": "reasoning", "summary": [summary("one"), summary("two")]},
            {"type": "message", "content": [hello, {"type": "refusal", "refusal": "no"}]},
            {"type": "web_search_call", "id": "w"},
            {"type": "custom_tool_call", "input": "ls"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
        ],
    }


def test_responses_items_without_any_envelope() -> None:
    body = sse(
        {"type": "response.output_text.delta", "item_id": "m", "delta": "Hel"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "lo"},
    )
    assert reassemble(RESPONSES, body) == {
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}]
    }


def test_a_full_terminal_output_is_never_altered() -> None:
    body = sse(
        {"type": "response.output_text.delta", "output_index": 0, "delta": "other"},
        {"type": "response.completed", "response": {"output": [{"type": "message", "id": "m"}]}},
        {"type": "response.in_progress", "response": {"output": []}},
    )
    assert reassemble(RESPONSES, body) == {"output": [{"type": "message", "id": "m"}]}


def test_the_event_line_names_a_payload_without_type() -> None:
    body = b'event: response.completed\ndata: {"response": {"id": "r", "output": [1]}}\n\n'
    body += b'event: response.in_progress\ndata: {"response": {"id": "s"}}\n\n'
    assert reassemble(RESPONSES, body) == {"id": "r", "output": [1]}


MEMBERS = ["type", "index", "delta", "choices", "message", "content", "content_block", "usage", "item", "text", "part"]
MEMBERS += ["summary", "response", "output", "output_index", "content_index", "tool_calls", "function", "arguments"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "x", "error", "text_delta"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.function_call_arguments.done",
        "response.completed",
        "response.created",
    ]
)


members_of_events = st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=5)


@given(st.lists(st.tuples(kinds, members_of_events), max_size=6))
@settings(max_examples=300, deadline=None)
def test_unexpected_shapes_cost_themselves_only(events: list[tuple[str, dict[str, Any]]]) -> None:
    """Junk events before a good stream must not take the good part away, whatever they hold."""
    junk = sse(*({"type": kind, **members} for kind, members in events))
    good = sse({"type": "response.completed", "response": {"id": "r", "output": [{"type": "message"}]}})
    assert reassemble(RESPONSES, junk + good) == {"id": "r", "output": [{"type": "message"}]}
    chunk = sse({"id": "c", "choices": [{"index": 10**9, "delta": {"content": "hi"}}]})
    chat = reassemble(CHAT, junk + chunk)
    assert chat is not None
    assert chat["choices"][-1]["message"]["content"] == "hi"
    block = sse({"type": "content_block_start", "index": 10**9, "content_block": {"type": "text", "text": "hi"}})
    message = reassemble(MESSAGES, junk + block)
    assert message is not None
    assert {"type": "text", "text": "hi"} in message["content"]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise(body: bytes) -> None:
    for dialect in DIALECT_BY_PATH.values():
        result = reassemble(dialect, b"data: {" + body)
        assert result is None or isinstance(result, dict)
