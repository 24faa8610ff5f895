"""Writes a generation as a Responses answer or stream, with every field that strict clients demand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects.failures import response_error
from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage, TextDelta, ToolCall
from gym_ray.dialects.response_frames import ResponseFrames
from gym_ray.dialects.synthesis.writer import fresh_id, model_of

__all__ = ["ResponsesWriter"]

_ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class ResponsesWriter:
    """Implements :class:`gym_ray.dialects.synthesis.writer.AnswerWriter` for ``/v1/responses``.

    Args:
        body: The client's request; its settings are echoed (A167).
        served_model: Name to answer with when the request has none.
    """

    def __init__(self, body: Mapping[str, Any], served_model: str) -> None:
        self._shell = _shell(body, served_model)
        self._frames = ResponseFrames()
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the message item whose text still flows

    def answer(self, generation: Generation) -> dict[str, Any]:
        """Return the JSON answer."""
        items = [_call_item(call) for call in generation.tool_calls]
        if generation.text or not items:
            items.insert(0, _message_item(generation.text, _item_status(generation)))
        return self._response(generation, items)

    def begin(self, prompt_tokens: int) -> bytes:
        """Return ``response.created`` and ``response.in_progress``."""
        del prompt_tokens  # this dialect tells usage at the end only
        return b"".join(self._frames.begin(self._shell))

    def event(self, event: GenerationEvent) -> bytes:
        """Return the frames of a text delta or of one whole function call."""
        if isinstance(event, TextDelta):
            return self._text_delta(event.text)
        return self._close_message("completed") + self._call(event)

    def end(self, generation: Generation) -> bytes:
        """Return the frames that close what is open, then ``response.completed`` or ``response.incomplete``."""
        frames = b"" if self._items or self._open is not None else self._open_message()
        frames += self._close_message(_item_status(generation))
        response = self._response(generation, self._items)
        return frames + self._frames.frame(f"response.{response['status']}", response=response)

    def fail(self, message: str, status: int) -> bytes:
        """Return ``response.failed`` with the message."""
        error = response_error(status, message)
        failed = {**self._shell, "status": "failed", "error": error, "output": self._items}
        return self._frames.frame("response.failed", response=failed)

    def _response(self, generation: Generation, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = generation.finish is Finish.LENGTH
        return {
            **self._shell,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items,
            "usage": _usage(generation.usage),
        }

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items), "content_index": 0}

    def _open_message(self) -> bytes:
        self._open = _message_item("", "in_progress")
        shell = {**self._open, "content": []}
        added = self._frames.item_added(len(self._items), shell)
        return added + self._frames.part_added("content", self._place(), _text_part(""))

    def _text_delta(self, text: str) -> bytes:
        frames = b"" if self._open is not None else self._open_message()
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        return frames + self._frames.part_delta(self._place(), part, text)

    def _close_message(self, status: str) -> bytes:
        if self._open is None:
            return b""
        frames = self._frames.part_done("content", self._place(), self._open["content"][0])
        item, self._open = {**self._open, "status": status}, None
        frames.append(self._frames.item_done(len(self._items), item))
        self._items.append(item)
        return b"".join(frames)

    def _call(self, call: ToolCall) -> bytes:
        item = _call_item(call)
        frames = self._frames.item(len(self._items), item)
        self._items.append(item)
        return b"".join(frames)


def _shell(body: Mapping[str, Any], served_model: str) -> dict[str, Any]:
    echoed = {key: default if body.get(key) is None else body[key] for key, default in _ECHOED.items()}
    return {
        "id": fresh_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model_of(body, served_model),
        "output": [],
        "previous_response_id": None,
        "tools": [
            {"description": None, "parameters": None, "strict": False, **tool} for tool in body.get("tools") or ()
        ],
        "usage": None,
        **echoed,
    }


def _item_status(generation: Generation) -> str:
    return "incomplete" if generation.finish is Finish.LENGTH else "completed"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(text: str, status: str) -> dict[str, Any]:
    return {
        "id": fresh_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_text_part(text)],
    }


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "id": fresh_id("fc_"),
        "type": "function_call",
        "status": "completed",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _usage(usage: GenerationUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
