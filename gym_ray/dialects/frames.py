"""The bytes of one event of a stream that is written here, whatever the dialect.

Everything inside a frame is ASCII, so that no client cuts a line at a character such as U+2028 (B01). No value is lost
on the way: integers of any size, lone surrogates and deep nesting come out as they went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray import exact_json
from gym_ray.dialects.ascii_json import ascii_json
from gym_ray.errors import EngineError

__all__ = ["DONE", "event_frame", "json_text", "typed_frame"]

DONE = b"data: [DONE]\n\n"
"""What ends a Chat Completions stream (A138)."""


def event_frame(payload: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return one event: its name line when given, its data as compact ASCII JSON, a blank line (A134).

    Raises:
        EngineError: The payload nests deeper than the interpreter can follow (502).
    """
    return (f"event: {name}\n".encode("ascii") if name else b"") + b"data: " + _event_json(payload) + b"\n\n"


def typed_frame(kind: str, **members: Any) -> bytes:
    """Return an event that carries its name as the payload's ``type`` too, as Responses and Messages events do."""
    return event_frame({"type": kind, **members}, kind)


def json_text(value: Any) -> str:
    """Return ``value`` as the JSON text that a string member of an event carries, such as a tool's input.

    It is ASCII, with a blank behind every comma and colon: what models and their providers write (A144).

    Raises:
        EngineError: The value nests deeper than the interpreter can follow (502).
    """
    try:
        return ascii_json(value)
    except ValueError:
        raise _too_deep() from None


def _event_json(value: Any) -> bytes:
    try:
        data = exact_json.dumps(value)
    except ValueError:
        data = b""  # too deep for it, which need not be too deep to be written
    if data and data.isascii():
        return data
    try:
        return ascii_json(value, (",", ":")).encode("ascii")
    except ValueError:
        raise _too_deep() from None


def _too_deep() -> EngineError:
    return EngineError("the engine's answer nests too deeply to be written as an event")
