"""From each dialect's request to the neutral form, and from a neutral generation to each dialect's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, fields
from gym_ray.dialects.neutral import PromptRequest
from gym_ray.dialects.synthesis import chat_request, messages_request, responses_request
from gym_ray.dialects.synthesis.chat import ChatWriter
from gym_ray.dialects.synthesis.messages import MessagesWriter
from gym_ray.dialects.synthesis.responses import ResponsesWriter
from gym_ray.dialects.synthesis.writer import AnswerWriter

__all__ = ["AnswerWriter", "answer_writer", "read_request"]

_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], PromptRequest]]] = {
    RESPONSES: responses_request.read_request,
    CHAT: chat_request.read_request,
    MESSAGES: messages_request.read_request,
}
_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], AnswerWriter]]] = {
    RESPONSES: ResponsesWriter,
    CHAT: ChatWriter,
    MESSAGES: MessagesWriter,
}


def read_request(dialect: str, body: Mapping[str, Any]) -> PromptRequest:
    """Return the neutral form of a request body.

    Raises:
        UnsupportedRequestError: A field is missing, malformed (422) or cannot be honoured (400); the message names it.
    """
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise fields.malformed("stream", f"should be true or false, not {stream!r}")  # A133, W16
    try:
        json.dumps(body)  # prompts and answers repeat parts of it, so all of it must be writable
    except RecursionError:
        raise fields.malformed("request body", "is nested too deeply") from None
    return _READERS[dialect](body)


def answer_writer(dialect: str, body: Mapping[str, Any], served_model: str) -> AnswerWriter:
    """Return a writer for one answer to ``body``."""
    return _WRITERS[dialect](body, served_model)
