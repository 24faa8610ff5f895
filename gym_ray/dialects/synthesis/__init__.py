"""From each dialect's request to the neutral form, and from a neutral generation to each dialect's answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
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
    return _READERS[dialect](body)


def answer_writer(dialect: str, body: Mapping[str, Any], served_model: str) -> AnswerWriter:
    """Return a writer for one answer to ``body``."""
    return _WRITERS[dialect](body, served_model)
