"""Writes a generation as an Anthropic Messages answer or stream, with every field that strict clients demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.dialects.failures import messages_error_frame
from gym_ray.dialects.frames import typed_frame
from gym_ray.dialects.neutral import Finish, Generation, GenerationEvent, GenerationUsage, ToolCall
from gym_ray.dialects.synthesis.writer import fresh_id, model_of

__all__ = ["MessagesWriter"]

_FINISH: Final = {
    Finish.STOP: "end_turn",
    Finish.STOP_SEQUENCE: "stop_sequence",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
}


class MessagesWriter:
    """Implements :class:`gym_ray.dialects.synthesis.writer.AnswerWriter` for ``/v1/messages``.

    Args:
        body: The client's request.
        served_model: Name to answer with when the request has none.
    """

    def __init__(self, body: Mapping[str, Any], served_model: str) -> None:
        self._shell = {
            "id": fresh_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": model_of(body, served_model),
        }
        self._index = 0
        self._text_open = False

    def answer(self, generation: Generation) -> dict[str, Any]:
        """Return the JSON answer."""
        blocks: list[dict[str, Any]] = []
        if generation.text:
            blocks.append({"type": "text", "text": generation.text})
        blocks += [{**_call_block(call), "input": _arguments(call)} for call in generation.tool_calls]
        return {
            **self._shell,
            "content": blocks,
            "stop_reason": _FINISH[generation.finish],
            "stop_sequence": generation.stop_sequence,
            "usage": _usage(generation.usage),
        }

    def begin(self, prompt_tokens: int) -> bytes:
        """Return ``message_start``; what of the prompt was cached is told by ``message_delta``."""
        usage = _usage(GenerationUsage(prompt_tokens, 0, 0))
        message: dict[str, Any] = {
            **self._shell,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return typed_frame("message_start", message=message)

    def event(self, event: GenerationEvent) -> bytes:
        """Return the frames of a text delta or of one whole ``tool_use`` block."""
        if isinstance(event, ToolCall):
            return self._close_text() + self._call(event)
        frames = b""
        if not self._text_open:
            self._text_open = True
            frames = self._block_frame("content_block_start", content_block={"type": "text", "text": ""})
        return frames + self._block_frame("content_block_delta", delta={"type": "text_delta", "text": event.text})

    def end(self, generation: Generation) -> bytes:
        """Return the end of an open block, ``message_delta`` and ``message_stop``."""
        delta = {"stop_reason": _FINISH[generation.finish], "stop_sequence": generation.stop_sequence}
        frames = self._close_text() + typed_frame("message_delta", delta=delta, usage=_usage(generation.usage))
        return frames + typed_frame("message_stop")

    def fail(self, message: str, status: int) -> bytes:
        """Return one ``error`` event."""
        return messages_error_frame(status, message)

    def _call(self, call: ToolCall) -> bytes:
        frames = self._block_frame("content_block_start", content_block={**_call_block(call), "input": {}})
        text = exact_json.dumps(_arguments(call)).decode()  # valid JSON of an object, whatever the model wrote
        frames += self._block_frame("content_block_delta", delta={"type": "input_json_delta", "partial_json": text})
        return frames + self._close_block()

    def _close_text(self) -> bytes:
        if not self._text_open:
            return b""
        self._text_open = False
        return self._close_block()

    def _close_block(self) -> bytes:
        frame = self._block_frame("content_block_stop")
        self._index += 1
        return frame

    def _block_frame(self, kind: str, **members: Any) -> bytes:
        return typed_frame(kind, index=self._index, **members)


def _call_block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name}


def _arguments(call: ToolCall) -> dict[str, Any]:
    parsed = exact_json.loads_object(call.arguments.encode())
    # A tool whose schema is no object still has to travel as one in this dialect (A162, W16).
    return {"arguments": call.arguments} if parsed is None else parsed


def _usage(usage: GenerationUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
