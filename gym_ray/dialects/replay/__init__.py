"""A complete answer told as the stream its client asked for, where the engine was asked for no stream (A132).

All frames exist before the first of them is sent (A136), so an answer that cannot be written never begins. Each frame
is one whole event, and the terminal event stands in the last frame alone. Nothing here repairs what a model wrote: an
answer goes out with the words, calls and counts it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.failures import chat_error_frame, messages_error_frame
from gym_ray.dialects.replay import chat, messages, responses

__all__ = ["KEEP_ALIVE", "failure_frames", "replay_frames"]

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment that tells a waiting client that its answer is still being made (A139)."""


def replay_frames(
    dialect: str, answer: Mapping[str, Any], *, include_usage: bool = False, incomplete_event: bool = True
) -> list[bytes]:
    """Return an answer as the events of its stream; reassembled, they give it back (A137-A147).

    Args:
        dialect: ``responses``, ``chat`` or ``messages``; the answer has its shape.
        answer: The whole answer; it is not changed.
        include_usage: The client of a Chat stream asked for usage.
        incomplete_event: End an incomplete Responses answer with ``response.incomplete``; else with
            ``response.completed``, for clients that take the former as an error (W10).

    Returns:
        One frame an event, at least one; the last is or holds the terminal event.

    Raises:
        EngineError: The answer nests too deeply to be written (502).
    """
    if dialect == RESPONSES:
        return responses.replay(answer, incomplete_event=incomplete_event)
    if dialect == CHAT:
        return chat.replay(answer, include_usage=include_usage)
    return messages.replay(answer)


def failure_frames(dialect: str, *, status: int, message: str) -> list[bytes]:
    """Return the events that tell a client of a failure after its stream has begun (A139, A142, W16).

    Args:
        dialect: The client's dialect.
        status: HTTP status that the failure would have had.
        message: What happened, in words a client may see: never the text of an unexpected exception.
    """
    if dialect == RESPONSES:
        return responses.failure(status, message)
    if dialect == CHAT:
        return [chat_error_frame(status, message)]
    return [messages_error_frame(status, message)]
