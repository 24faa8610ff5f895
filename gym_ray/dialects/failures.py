"""What a failure is called in each dialect, by its HTTP status (A139, A142, W16).

A failure that comes after the 200 went out has only these names left to say what happened; so a full queue must not
look like a broken request. Messages come from the caller, who never hands on the text of an unexpected exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gym_ray.dialects.frames import event_frame, typed_frame

__all__ = [
    "MESSAGES_ERROR_TYPES",
    "chat_error_frame",
    "messages_error_frame",
    "messages_error_type",
    "openai_error_type",
    "response_error",
]

_SERVER_FAULT = 500
_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MESSAGES_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
MESSAGES_ERROR_TYPES: Final = frozenset({*_MESSAGES_TYPES.values(), "invalid_request_error", "api_error"})
"""Every ``type`` that an Anthropic error may have."""
# The list of codes is closed. It has one for prompts that cannot be used, and none for keys, models or time limits.
_RESPONSE_CODES: Final[Mapping[int, str]] = {
    400: "invalid_prompt",
    413: "invalid_prompt",
    422: "invalid_prompt",
    429: "rate_limit_exceeded",
}


def openai_error_type(status: int) -> str:
    """Return the ``type`` of an error of the two OpenAI dialects."""
    return _OPENAI_TYPES.get(status) or ("server_error" if status >= _SERVER_FAULT else "invalid_request_error")


def messages_error_type(status: int) -> str:
    """Return the ``type`` of an Anthropic error."""
    return _MESSAGES_TYPES.get(status) or ("api_error" if status >= _SERVER_FAULT else "invalid_request_error")


def response_error(status: int, message: str) -> dict[str, str]:
    """Return the ``error`` of a failed Responses answer, with one of the codes that its clients know."""
    return {"code": _RESPONSE_CODES.get(status, "server_error"), "message": message}


def chat_error_frame(status: int, message: str) -> bytes:
    """Return the event that ends a failed Chat stream; no ``[DONE]`` follows it (A139)."""
    return event_frame({"error": {"message": message, "type": openai_error_type(status), "code": status}}, "error")


def messages_error_frame(status: int, message: str) -> bytes:
    """Return the event that ends a failed Messages stream."""
    return typed_frame("error", error={"type": messages_error_type(status), "message": message})
