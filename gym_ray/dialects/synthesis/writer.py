"""What every dialect's writer does, and the names that its answers need."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from gym_ray.dialects.neutral import Generation, GenerationEvent

__all__ = ["AnswerWriter", "fresh_id", "model_of"]


class AnswerWriter(Protocol):
    """Dresses one generation as one dialect's answer, whole or streamed; an instance serves one call.

    A stream is ``begin``, any number of ``event``, then ``end`` or ``fail``. Reassembled, it equals what ``answer``
    gives for the same generation (A147).
    """

    def answer(self, generation: Generation) -> dict[str, Any]:
        """Return the JSON answer."""

    def begin(self, prompt_tokens: int) -> bytes:
        """Return the frames that open a stream."""

    def event(self, event: GenerationEvent) -> bytes:
        """Return the frames of one delta or call."""

    def end(self, generation: Generation) -> bytes:
        """Return the frames that end a stream, its terminal event last."""

    def fail(self, message: str, status: int) -> bytes:
        """Return the dialect's error event, which ends a stream that broke."""


def fresh_id(prefix: str) -> str:
    """Return a new id such as ``msg_<32 hex digits>``."""
    return prefix + secrets.token_hex(16)


def model_of(body: Mapping[str, Any], served: str) -> str:
    """Return the model name an answer carries: the one the client asked for, else the served one."""
    asked = body.get("model")
    return asked if isinstance(asked, str) and asked else served
