"""Well-formed answers of the three dialects, whole and streamed, complete enough for strict SDKs: for tests only."""

from __future__ import annotations

import json
from typing import Any

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.testing.script import SSE, ScriptedAnswer

__all__ = ["json_answer", "stream_answer"]

_CREATED = 1_790_000_000
_MODEL = "fake-model"


def json_answer(dialect: str, text: str) -> ScriptedAnswer:
    """Return a complete answer that says ``text`` in ``dialect``."""
    return ScriptedAnswer([_dump(_WHOLE[dialect](text))])


def stream_answer(dialect: str, text: str) -> ScriptedAnswer:
    """Return a stream that says ``text`` word by word in ``dialect``; one chunk holds one event."""
    return ScriptedAnswer(_STREAMS[dialect](text), content_type=SSE)


def _chat(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": _CREATED,
        "model": _MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": _chat_usage(text),
    }


def _chat_usage(text: str) -> dict[str, Any]:
    words = len(_pieces(text))
    return {"prompt_tokens": 7, "completion_tokens": words, "total_tokens": 7 + words}


def _chat_stream(text: str) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": _CREATED, "model": _MODEL}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event(None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    deltas = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in _pieces(text))]
    usage = _event(None, {**head, "choices": [], "usage": _chat_usage(text)})
    return [*deltas, chunk({}, "stop"), usage, b"data: [DONE]\n\n"]


def _response(text: str, status: str = "completed") -> dict[str, Any]:
    output = [_item(text, status)] if status == "completed" else []
    words = len(_pieces(text))
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": words,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7 + words,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": _CREATED,
        "model": _MODEL,
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": None,
        "top_p": None,
        "usage": usage if status == "completed" else None,
    }


def _item(text: str, status: str) -> dict[str, Any]:
    content = [_part(text)] if status == "completed" else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response_stream(text: str) -> list[bytes]:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(text, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": _item(text, "in_progress")},
        {"type": "response.content_part.added", **place, "part": _part("")},
        *({"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []} for piece in _pieces(text)),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": _part(text)},
        {"type": "response.output_item.done", "output_index": 0, "item": _item(text, "completed")},
        {"type": "response.completed", "response": _response(text)},
    ]
    return [_event(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)]


def _message(text: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": len(_pieces(text))},
    }


def _message_stream(text: str) -> list[bytes]:
    whole = _message(text)
    empty = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 0}}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": empty},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in _pieces(text)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": whole["usage"]["output_tokens"]}},
        {"type": "message_stop"},
    ]
    return [_event(event["type"], event) for event in events]


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


def _event(name: str | None, value: dict[str, Any]) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + _dump(value) + b"\n\n"


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_WHOLE = {CHAT: _chat, RESPONSES: _response, MESSAGES: _message}
_STREAMS = {CHAT: _chat_stream, RESPONSES: _response_stream, MESSAGES: _message_stream}
