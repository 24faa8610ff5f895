"""Decides how one exchange ended: its ``error_category``, or None for success.

Success needs positive evidence. A 200 that carries an error, nothing, or something that is no answer is an error, and a
stream without its terminal event is truncated, whatever it said before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

from gym_ray.dialects.terminal import ERROR, INCOMPLETE, is_error_payload

__all__ = [
    "CANCELLED",
    "CAPTURE_PARSE_ERROR",
    "CONTEXT_LENGTH_EXCEEDED",
    "STREAM_TRUNCATED",
    "UPSTREAM_ERROR",
    "category_from_exception",
    "category_from_status",
    "exception_details",
    "final_category",
]

CANCELLED = "cancelled"
CAPTURE_PARSE_ERROR = "capture_parse_error"
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
STREAM_TRUNCATED = "stream_truncated"
UPSTREAM_ERROR = "upstream_error"

_BY_STATUS = {401: "auth", 403: "auth", 404: "not_found", 408: "timeout", 429: "rate_limit", 504: "timeout"}

# Statuses that promise a body; 204 and 304 promise that there is none (W21).
_STATUS_WITH_BODY = (200, 201)

# What a Responses answer may say of itself short of failing; some servers then leave its output out.
_ANSWER_STATUSES = ("completed", "incomplete", "in_progress", "queued", "cancelled")


def category_from_status(status: int | None) -> str | None:
    """Return the category of an HTTP status (A71); None below 400 and for an unknown status."""
    if status is None or status < 400:
        return None
    return _BY_STATUS.get(status) or ("client_error" if status < 500 else UPSTREAM_ERROR)


def category_from_exception(exc: BaseException) -> str:
    """Return the category of what a handler raised (A72); its message is not looked at."""
    name = type(exc).__name__.lower()
    if isinstance(exc, asyncio.CancelledError) or name == "cancellederror" or name.startswith("clientdisconnect"):
        return CANCELLED
    if isinstance(exc, TimeoutError) or "timeout" in name:
        return "timeout"
    if isinstance(exc, ConnectionError) or "conn" in name:
        return "connection"
    return "exception"


def exception_details(exc: BaseException) -> tuple[int | None, bytes | None]:
    """Read the upstream's status and body off an exception (A49).

    Returns:
        The first integer of ``status``, ``status_code``, ``response.status_code``; and, as bytes, the first value that
        is not null of ``response_content``, ``response.content``, ``response.text`` and ``body``, where our own engine
        errors keep it. None where there is none, where it is of another type, or where reading it raised.
    """
    response = _read(exc, "response")
    candidates = (_read(exc, "status"), _read(exc, "status_code"), _read(response, "status_code"))
    status = next((value for value in candidates if isinstance(value, int) and not isinstance(value, bool)), None)
    places = ((exc, "response_content"), (response, "content"), (response, "text"), (exc, "body"))
    body = next((value for owner, name in places if (value := _read(owner, name)) is not None), None)
    if isinstance(body, str):
        return status, body.encode("utf-8", "surrogatepass")
    return status, bytes(body) if isinstance(body, bytes | bytearray) else None


def _read(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - foreign accessors may raise anything (an unread httpx body does)
        return None


def final_category(
    *,
    status: int | None,
    terminal: str | None,
    is_sse: bool,
    body: Sized,
    response: dict[str, Any] | None,
    local_response_reason: str | None = None,
) -> str | None:
    """Return the category of an exchange whose handler returned normally (A61, A73-A75); the first rule wins.

    Args:
        status: HTTP status that was sent.
        terminal: What the stream's terminal event said: ``complete``, ``incomplete``, ``error``, None for none.
        is_sse: Whether the answer was a stream.
        body: The answer's bytes; only whether there are any matters.
        response: The answer as a JSON object: parsed, or reassembled from the stream.
        local_response_reason: Why the server answered by itself, if it did (A52).
    """
    if local_response_reason == CONTEXT_LENGTH_EXCEEDED:
        return CONTEXT_LENGTH_EXCEEDED
    category = category_from_status(status)
    if category is not None:
        return category
    if terminal == ERROR:
        return UPSTREAM_ERROR
    if terminal == INCOMPLETE:
        return "incomplete"
    if is_sse and terminal is None:
        return STREAM_TRUNCATED
    if response is None:
        empty_is_wrong = status in _STATUS_WITH_BODY
        return CAPTURE_PARSE_ERROR if len(body) > 0 or empty_is_wrong else None
    if is_error_payload(response) or response.get("status") == "failed":
        return UPSTREAM_ERROR
    if status not in _STATUS_WITH_BODY or _is_answer(response):
        return None
    return CAPTURE_PARSE_ERROR


def _is_answer(response: dict[str, Any]) -> bool:
    """Whether a JSON object shows any sign of being an answer of one of the dialects (B23)."""
    if isinstance(response.get("output"), list) or isinstance(response.get("content"), list):
        return True
    choices = response.get("choices")
    if isinstance(choices, list):
        return any(isinstance(choice, dict) and choice for choice in choices)
    return response.get("status") in _ANSWER_STATUSES
