"""Frames server-sent events on the bytes as they come off the wire.

A stream may be cut anywhere, so framing happens on bytes and only whole events are decoded (A77). Lines end at LF, CR
or CRLF and at nothing else: U+2028 inside JSON is an ordinary character. One function cuts text into events; whoever
reads a stream while it comes only waits for the blank line, and must never search again what an earlier chunk already
went through (A82a).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gym_ray import exact_json

__all__ = [
    "BLANK_LINES",
    "BOM",
    "ESCAPED",
    "Event",
    "EventScanner",
    "WholeEvents",
    "blank_lines",
    "cut_events",
    "event_name",
    "parse_objects",
    "parse_or_none",
    "parse_payload",
]

BOM = b"\xef\xbb\xbf"
"""May stand at the very start of a stream, where it means nothing."""

BLANK_LINES = (b"\n\n", b"\r\r", b"\n\r")
"""What a blank line looks like: two line ends that are not one CRLF."""

ESCAPED = b"\\u00"
"""Where this does not stand, an ASCII word inside JSON is spelled with its own letters."""

_DONE = b"[DONE]"

# The shape that nearly every event has, else whatever lines stand together. Nothing in it backtracks.
_EVENT = re.compile(
    rb"(?:event:([^\n]*+)\n)?data: ?+([^\n]*+)\n\n"
    rb"|((?:[^\n]++\n?)++)"
)  # fmt: skip


class Event(NamedTuple):
    """One event of a stream.

    Attributes:
        field: Value of its last ``event:`` line as it stands there, b"" when there was none.
        data: Its ``data:`` lines joined with LF, each without one leading blank; b"" when there were none.
    """

    field: bytes
    data: bytes

    @property
    def name(self) -> str:
        """The event's name: the value of its ``event:`` line without blanks around it."""
        return event_name(self.field)

    @property
    def done(self) -> bool:
        """Whether the payload is the ``[DONE]`` sentinel; blanks around it are tolerated (A82)."""
        return len(self.data) < 64 and self.data.strip() == _DONE


def event_name(field: bytes) -> str:
    """Return the name that the value of an ``event:`` line says."""
    return field.decode("utf-8", "replace").strip()


def blank_lines(before: bytes, chunk: bytes) -> tuple[int, int]:
    """Find where events end in a chunk.

    Args:
        before: The byte in front of the chunk; b"" at the start of a stream and behind a blank line.
        chunk: Bytes of a stream.

    Returns:
        Offsets behind the first and the last blank line in the chunk, 0 and 0 when there is none. A CR counts as a
        line end at once; the LF that may follow it adds nothing (A82).
    """
    carriage_return = b"\r" in chunk
    if b"\n" not in chunk and not carriage_return:
        return 0, 0
    last = chunk.rfind(b"\n\n")
    if carriage_return:
        last = max(last, chunk.rfind(b"\r\r"), chunk.rfind(b"\n\r"))
        found = [at for at in map(chunk.find, BLANK_LINES) if at >= 0]
        first = min(found, default=-1)
    else:
        first = chunk.find(b"\n\n", 0, last + 2)
    if before + chunk[:1] in BLANK_LINES:
        return 1, last + 2 if last >= 0 else 1
    return (first + 2, last + 2) if last >= 0 else (0, 0)


def cut_events(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the members of an :class:`Event` for each event of a text that begins where one may begin.

    The last one needs no blank line. Blocks of lines without ``event:`` and ``data:`` are no events. A mark of byte
    order is the caller's matter.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for match in _EVENT.finditer(text):
        field, data, block = match.groups()
        if data is not None:
            yield field or b"", data
        elif (event := _read_block(block)) is not None:
            yield event


def _read_block(block: bytes) -> tuple[bytes, bytes] | None:
    field: bytes | None = None
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line.startswith(b"event:"):
            field = line[6:]
    if field is None and not lines:
        return None
    return field or b"", b"\n".join(lines)


class WholeEvents:
    """Collects the chunks of a stream until events are whole, in time linear in the bytes, however they are cut.

    What has no end yet is kept as the very chunks it came in. All texts that are returned, joined, are the stream.
    """

    __slots__ = ("_before", "_open")

    def __init__(self) -> None:
        self._open: list[bytes] = []  # the bytes of the open event
        self._before = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes and return the text of the events whose blank line is now complete; b"" if none is."""
        _, end = blank_lines(self._before, chunk)
        if not end:
            self._open.append(chunk)
            self._before = chunk[-1:] or self._before
            return b""
        text = b"".join([*self._open, chunk[:end]])
        rest = chunk[end:]
        self._open, self._before = [rest], rest[-1:]
        return text

    def close(self) -> bytes:
        """End the stream and return what has no blank line behind it."""
        text, self._open = b"".join(self._open), []
        return text


class EventScanner:
    """Turns chunks of a stream into events, in time linear in the bytes, however they are cut."""

    __slots__ = ("_started", "_whole")

    def __init__(self) -> None:
        self._whole = WholeEvents()
        self._started = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes and return the events whose blank line is now complete, in order."""
        text = self._whole.feed(chunk)
        return self._cut(text) if text else []

    def close(self) -> list[Event]:
        """End the stream and return the last event if its blank line never came (A80)."""
        return self._cut(self._whole.close())

    def _cut(self, text: bytes) -> list[Event]:
        if not self._started:
            self._started = True
            text = text.removeprefix(BOM)
        return [Event(field, data) for field, data in cut_events(text)]


def parse_payload(data: bytes) -> Any:
    """Parse the JSON payload of one event; bytes that are not UTF-8 become U+FFFD first (A77).

    Raises:
        ValueError: The payload is not JSON.
    """
    try:
        return exact_json.loads(data)
    except UnicodeDecodeError:
        return exact_json.loads(data.decode("utf-8", "replace").encode("utf-8"))


def parse_or_none(data: bytes) -> Any:
    """Parse the payload of one event; None if it is not JSON, which adds nothing to a view of the stream (A79)."""
    try:
        return parse_payload(data)
    except ValueError:
        return None


def parse_objects(body: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects that a stream carried, in order (A77-A80); nothing raises.

    A last event without blank line counts. Events without data, ``[DONE]``, payloads that are not JSON and JSON that is
    not an object are left out.
    """
    payloads = (parse_or_none(data) for _, data in cut_events(body.removeprefix(BOM)))
    return [payload for payload in payloads if isinstance(payload, dict)]
