"""Reads the lines of one capture file, tolerantly.

Pure functions on bytes that somebody else read under the lock (A67). A damaged line costs itself and no other, and it
keeps its place in the count, so that ``call_index`` means the same before and after the damage (A70b).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gym_ray import exact_json

__all__ = [
    "DEEPEST_LEVELS",
    "CaptureSnapshot",
    "iterate_exchanges",
    "iterate_lines",
    "parse_lines",
    "without_deep_lines",
]

DEEPEST_LEVELS = 254
"""Nesting that JSON of any depth of record can still hold; more is stored only where the whole record allows it."""


@dataclass(frozen=True, slots=True)
class CaptureSnapshot:
    """What a rollout's capture was at one moment, read under the lock.

    Attributes:
        data: Bytes of the capture file, None when there is no file.
        incomplete: Whether the rollout is marked as having lost a record.
        error: Why the file could not be read, None when it could; ``data`` is None then.
    """

    data: bytes | None
    incomplete: bool
    error: str | None = None


def iterate_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield ``(index, line)`` for every non-blank line, counted from 0; only LF ends a line."""
    index = start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        line = data[start:] if end < 0 else data[start:end]
        start = len(data) if end < 0 else end + 1
        if not line or line.isspace():
            continue
        yield index, line
        index += 1


def iterate_exchanges(data: bytes) -> Iterator[tuple[int, dict[str, Any] | None, bool]]:
    """Yield every line of a capture file as ``(index, exchange, is_unicode)`` (A70b).

    The index counts non-blank lines, damaged ones too. The exchange is None where a line holds no JSON object. The last
    is True where no text of the exchange can hold a lone surrogate, as those of hardly any do.
    """
    fast = exact_json.loads_within(data)
    is_strict = fast is not exact_json.loads
    for index, line in iterate_lines(data):
        is_unicode = is_strict
        try:
            exchange = fast(line)
        except ValueError:
            exchange, is_unicode = exact_json.loads_object(line), False
        yield index, exchange if isinstance(exchange, dict) else None, is_unicode


def parse_lines(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Parse the bytes of a capture file (A70b).

    Returns:
        The exchanges with their line index, and the number of lines that hold no JSON object (torn, damaged, not UTF-8,
        or JSON of another kind).
    """
    exchanges: list[tuple[int, dict[str, Any]]] = []
    invalid = 0
    for index, exchange, _ in iterate_exchanges(data):
        if exchange is None:
            invalid += 1
        else:
            exchanges.append((index, exchange))
    return exchanges, invalid


def without_deep_lines(snapshot: CaptureSnapshot) -> CaptureSnapshot:
    """Damage the lines that nest too deeply to be stored, so that the record counts them as unreadable (D67)."""
    lines = [
        b"{" if exact_json.nests_deeper(exact_json.loads_object(line), DEEPEST_LEVELS) else line
        for _, line in iterate_lines(snapshot.data or b"")
    ]
    return replace(snapshot, data=b"".join(line + b"\n" for line in lines))
