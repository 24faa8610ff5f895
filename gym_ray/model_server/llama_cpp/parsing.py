"""Splits what the model writes into text that may be shown at once and whole tool calls."""

from __future__ import annotations

import json
import secrets
from typing import Final

from gym_ray import exact_json
from gym_ray.dialects.neutral import GenerationEvent, TextDelta, ToolCall
from gym_ray.model_server.llama_cpp.template import CALL_CLOSE, CALL_NAME, CALL_OPEN

__all__ = ["TurnParser"]

_TRAILING: Final = "\n"


class TurnParser:
    """Reads one turn of the model in pieces of any size.

    A call is handed out only when it is whole. Line ends at the end of the text belong to the turn's frame and are
    held back until more text follows. A turn is cut at any character with the same result.

    Args:
        calls: Whether the turn may be a tool call.
    """

    def __init__(self, *, calls: bool) -> None:
        self._calls = calls
        self._held = ""
        self._decided = not calls
        self._in_call = False
        self.text = ""
        self.tool_calls: tuple[ToolCall, ...] = ()

    def feed(self, piece: str) -> list[GenerationEvent]:
        """Take the next piece and return what became certain by it."""
        self._held += piece
        if not self._decided:
            if len(self._held) < len(CALL_NAME) and CALL_NAME.startswith(self._held):
                return []
            self._decided = True
            self._in_call = self._held.startswith(CALL_NAME)
        return [] if self._in_call else self._release()

    def close(self) -> list[GenerationEvent]:
        """End the turn; an unfinished call, or the first characters of one, is not handed out."""
        return self._whole_call() if self._in_call else []

    def _release(self) -> list[GenerationEvent]:
        text = self._held.rstrip(_TRAILING)
        self._held = self._held[len(text) :]
        if not text:
            return []
        self.text += text
        return [TextDelta(text)]

    def _whole_call(self) -> list[GenerationEvent]:
        turn = self._held.rstrip(_TRAILING)
        name, found, arguments = turn[len(CALL_NAME) :].partition(CALL_OPEN)
        if not found or not turn.endswith(CALL_CLOSE):
            return []
        arguments = arguments.removesuffix(CALL_CLOSE)
        try:
            exact_json.loads(arguments.encode())
        except ValueError:
            return []  # the closing text stood inside a string, where the call was cut off
        call = ToolCall(f"call_{secrets.token_hex(12)}", json.loads(name), arguments)
        self.tool_calls = (call,)
        return [call]
