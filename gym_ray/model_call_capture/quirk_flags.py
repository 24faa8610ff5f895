"""Says what is odd about a captured call: facts for whoever judges it, computed when a record is read, stored nowhere.

A flag is no verdict (``error_category`` is) and mends nothing: what the engine and the client sent stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gym_ray.dialects import reading
from gym_ray.dialects.stream_facts import INVALID_UTF8, stream_facts
from gym_ray.model_call_capture.exchanges.redaction import SPELLED_OUT
from gym_ray.model_call_capture.exchanges.verdict import STREAM_TRUNCATED, UPSTREAM_ERROR

__all__ = [
    "BIG_INTEGER",
    "HTTP_200_ERROR",
    "LONE_SURROGATE",
    "TOOL_JSON_INVALID",
    "TRUNCATED_BODY",
    "quirk_flags",
]

BIG_INTEGER = "big_integer"
"""A whole number beyond 64 bits is in the request or the answer (B40)."""
HTTP_200_ERROR = "http_200_error"
"""The status promised success, the answer was an error (B21)."""
LONE_SURROGATE = "lone_surrogate"
"""A text holds half of a surrogate pair (B41)."""
TOOL_JSON_INVALID = "tool_json_invalid"
"""The model called a tool with arguments that are no JSON object (B27)."""
TRUNCATED_BODY = "truncated_body"
"""A JSON request or answer breaks off."""

_STREAM_STARTS = ("data:", "event:", ":", "id:", "retry:")
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_NUMBER_CHARACTERS = "0123456789.eE+-"
_LONGEST_ESCAPE = 6


def quirk_flags(exchange: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is odd about a raw record, sorted; nothing for a plain call.

    Args:
        exchange: One line of a capture file, parsed.

    Returns:
        Names of this module and of :mod:`gym_ray.dialects.stream_facts`. ``big_integer`` and ``lone_surrogate`` are
        looked for in bodies that could be parsed. ``invalid_utf8`` means U+FFFD in a body that was kept as text: that
        is what a record keeps of bytes that are no UTF-8, and what some engines write themselves.
    """
    response, request_raw = exchange.get("response"), _text(exchange, "request_raw")
    flags = _flags_of_answer(exchange, _text(exchange, "response_raw"))
    if "\ufffd" in request_raw:
        flags.add(INVALID_UTF8)
    if _breaks_off(request_raw):
        flags.add(TRUNCATED_BODY)
    flags.update(_oddities(exchange.get("request")), _oddities(response))
    if isinstance(response, dict) and any(list(call["arguments"]) == ["_raw"] for call in reading.tool_calls(response)):
        flags.add(TOOL_JSON_INVALID)
    status = exchange.get("status_code")
    if exchange.get("error_category") == UPSTREAM_ERROR and isinstance(status, int) and 200 <= status <= 299:
        flags.add(HTTP_200_ERROR)
    return tuple(sorted(flags))


def _text(exchange: Mapping[str, Any], name: str) -> str:
    value = exchange.get(name)
    return value if isinstance(value, str) else ""


def _flags_of_answer(exchange: Mapping[str, Any], raw: str) -> set[str]:
    """Return what the kept text of an answer shows; a stream is known by how it is kept, or by how it begins."""
    if raw == SPELLED_OUT:
        return set()  # the stream itself was not kept, so nothing is known of its events
    dialect = exchange.get("dialect")
    is_stream = bool(raw) and isinstance(exchange.get("response"), dict)
    is_stream = is_stream or exchange.get("error_category") == STREAM_TRUNCATED
    if is_stream or raw.lstrip("\ufeff\r\n").startswith(_STREAM_STARTS):
        body = raw.encode("utf-8", "surrogatepass")
        return set(stream_facts(dialect, body)) if dialect in ("chat", "messages", "responses") else set()
    flags = {INVALID_UTF8} if "\ufffd" in raw else set()
    return flags | {TRUNCATED_BODY} if _breaks_off(raw) else flags


def _breaks_off(text: str) -> bool:
    """Whether a text begins as a JSON object or array and ends before that does."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].rstrip()
        in_escape = "escape" in error.msg and len(rest) < _LONGEST_ESCAPE
        in_literal = any(literal.startswith(rest) for literal in _LITERALS)  # an empty rest begins every literal
        in_number = not rest.strip(_NUMBER_CHARACTERS)
        return error.msg.startswith("Unterminated string") or in_escape or in_literal or in_number
    except RecursionError:
        return False  # too deep to tell
    return False


def _oddities(body: Any) -> Iterator[str]:
    """Yield the flags of a parsed body's numbers and texts; any depth."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            if not value.isascii() and _has_lone_surrogate(value):
                yield LONE_SURROGATE
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            yield BIG_INTEGER


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        try:
            text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")  # two halves that belong together are none
        except UnicodeDecodeError:
            return True
    return False
