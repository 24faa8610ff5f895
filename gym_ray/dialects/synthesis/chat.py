"""Writes a generation as a Chat Completions answer or stream, with every field that strict clients demand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects.failures import chat_error_frame
from gym_ray.dialects.frames import DONE, event_frame
from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage, TextDelta, ToolCall
from gym_ray.dialects.synthesis.writer import fresh_id, model_of

__all__ = ["ChatWriter"]

_FINISH: Final = {
    Finish.STOP: "stop",
    Finish.STOP_SEQUENCE: "stop",
    Finish.LENGTH: "length",
    Finish.TOOL_CALLS: "tool_calls",
}


class ChatWriter:
    """Implements :class:`gym_ray.dialects.synthesis.writer.AnswerWriter` for ``/v1/chat/completions``.

    Args:
        body: The client's request.
        served_model: Name to answer with when the request has none.
    """

    def __init__(self, body: Mapping[str, Any], served_model: str) -> None:
        self._shell = {
            "id": fresh_id("chatcmpl-"),
            "created": int(time.time()),
            "model": model_of(body, served_model),
            "system_fingerprint": None,
        }
        options = body.get("stream_options")
        self._include_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        self._calls = 0
        self._anything = False

    def answer(self, generation: Generation) -> dict[str, Any]:
        """Return the JSON answer."""
        message: dict[str, Any] = {"role": "assistant", "content": generation.text, "refusal": None}
        if generation.tool_calls:
            message["content"] = generation.text or None
            message["tool_calls"] = [_call(call) for call in generation.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[generation.finish]}
        return {
            **self._shell,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(generation.usage),
        }

    def begin(self, prompt_tokens: int) -> bytes:
        """Return the chunk with the role."""
        del prompt_tokens  # this dialect tells usage at the end only
        return self._chunk({"role": "assistant", "content": None})

    def event(self, event: GenerationEvent) -> bytes:
        """Return the chunk of a text delta or of one whole tool call."""
        self._anything = True
        if isinstance(event, TextDelta):
            return self._chunk({"content": event.text})
        index = self._calls
        self._calls += 1
        return self._chunk({"tool_calls": [{"index": index, **_call(event)}]})

    def end(self, generation: Generation) -> bytes:
        """Return the chunk with the finish reason, usage when asked for, and ``[DONE]``."""
        frames = b"" if self._anything else self._chunk({"content": ""})
        frames += self._chunk({}, _FINISH[generation.finish])
        if self._include_usage:
            frames += self._frame(choices=[], usage=_usage(generation.usage))
        return frames + DONE

    def fail(self, message: str, status: int) -> bytes:
        """Return one ``error`` event; no ``[DONE]`` follows (A139)."""
        return chat_error_frame(status, message)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._frame(choices=[choice], **({"usage": None} if self._include_usage else {}))

    def _frame(self, **members: Any) -> bytes:
        return event_frame({**self._shell, "object": "chat.completion.chunk", **members})


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: GenerationUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
