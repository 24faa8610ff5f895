"""Frames server-sent events on the bytes as they come off the wire.

A stream may be cut anywhere, so framing happens on bytes and only whole events are decoded (A77). Lines end at LF, CR
or CRLF and at nothing else: U+2028 inside JSON is an ordinary character. Every byte is looked at a fixed number of
times (A82a); this module must never search again what an earlier chunk already went through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gym_ray import exact_json

__all__ = ["Event", "EventScanner", "iterate_objects", "parse_objects", "parse_payload"]

_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"
_LINE_ENDS = (b"\n", b"\r\n", b"\r")
_LINE_END_BYTES = b"\r\n"
_LONGEST_PREFIX = len(_BOM) + len(b"event: ")


class Event:
    """One event of a stream. Its data is put together when it is first asked for: most events of a stream never are.

    Attributes:
        name: Value of its last ``event:`` line without blanks around it, "" when there was none.
        end: Offset just behind its blank line in the whole stream. Of a CRLF only the CR counts, because the LF may
            still be on its way; so the offset does not depend on how the stream was cut.
    """

    __slots__ = ("_pieces", "end", "name")

    def __init__(self, name: str, pieces: list[bytes], end: int) -> None:
        self.name = name
        self.end = end
        self._pieces = pieces

    @property
    def data(self) -> bytes:
        """Its ``data:`` lines joined with LF, each without one leading blank; b"" when there were none."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def done(self) -> bool:
        """Whether the payload is the ``[DONE]`` sentinel; blanks around it are tolerated (A82)."""
        return len(self.data) < 64 and self.data.strip() == _DONE

    def __repr__(self) -> str:
        return f"Event(name={self.name!r}, data={self.data!r}, end={self.end})"


class EventScanner:
    """Turns chunks of a stream into events, in time linear in the bytes, however they are cut.

    What has no end yet is kept as the pieces it came in: the caller's own chunks where they hold nothing else, so that
    an open stream is not held in memory twice.

    Attributes:
        bytes_examined: Bytes gone through so far, counting a byte each time it is searched or copied to find lines:
            the measure behind the promise of linear work.
    """

    __slots__ = ("_data", "_first_line", "_name", "_offset", "_partial", "_seen", "_swallow_lf", "bytes_examined")

    def __init__(self) -> None:
        self.bytes_examined = 0
        self._offset = 0
        self._partial: list[bytes] = []  # pieces of a line whose end has not come
        self._swallow_lf = False  # the last chunk ended in CR: a LF now belongs to that line end
        self._first_line = True
        self._name = ""
        self._data: list[bytes] = []  # pieces of the open event's data, line feeds between its lines included
        self._seen = False  # the open event has a name or data

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes and return the events whose blank line is now complete, in order."""
        if self._swallow_lf and chunk:
            self._swallow_lf = False
            if chunk.startswith(b"\n"):
                self._offset += 1
                chunk = chunk[1:]
        if not chunk:
            return []
        self.bytes_examined += len(chunk)
        events: list[Event] = []
        for piece in chunk.splitlines(keepends=True):
            self._offset += len(piece)
            if piece in _LINE_ENDS and not self._partial:
                self._first_line = False
                if self._seen:
                    events.append(self._dispatch(self._offset - len(piece) + 1))
            elif piece[-1] in _LINE_END_BYTES:
                self._end_line(piece[:-2] if piece.endswith(b"\r\n") else piece[:-1])
            else:
                self._partial.append(piece)
        self._swallow_lf = chunk.endswith(b"\r")
        return events

    def close(self) -> list[Event]:
        """End the stream and return the last event if its blank line never came (A80)."""
        if self._partial:
            self._end_line(b"")
        return [self._dispatch(self._offset)] if self._seen else []

    def _end_line(self, line: bytes) -> None:
        rest: list[bytes] = []
        if self._partial:
            line, rest = self._head_and_rest(line)
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if line.startswith(b"data:"):
            if self._data:
                self._data.append(b"\n")
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            self._data += rest
            self._seen = True
        elif line.startswith(b"event:"):
            self._name = b"".join([line[6:], *rest]).decode("utf-8", "replace").strip()
            self._seen = True

    def _head_and_rest(self, tail: bytes) -> tuple[bytes, list[bytes]]:
        """Return the pieces of a line, the first of them long enough to tell which field it is."""
        pieces, self._partial = [*self._partial, tail], []
        count, length = 0, 0
        while count < len(pieces) and length < _LONGEST_PREFIX:
            length += len(pieces[count])
            count += 1
        if count == 1:
            return pieces[0], pieces[1:]
        self.bytes_examined += length
        return b"".join(pieces[:count]), pieces[count:]

    def _dispatch(self, end: int) -> Event:
        event = Event(self._name, self._data, end)
        self._name, self._data, self._seen = "", [], False
        return event


def parse_payload(data: bytes) -> Any:
    """Parse the JSON payload of one event; bytes that are not UTF-8 become U+FFFD first (A77).

    Raises:
        ValueError: The payload is not JSON.
    """
    try:
        return exact_json.loads(data)
    except UnicodeDecodeError:
        return exact_json.loads(data.decode("utf-8", "replace").encode("utf-8"))


def iterate_objects(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(event name, JSON object)`` for what a stream carried, in order (A77-A80).

    A last event without blank line counts. Events without data, ``[DONE]``, payloads that are not JSON and JSON that is
    not an object are left out; nothing raises.
    """
    scanner = EventScanner()
    for event in [*scanner.feed(body), *scanner.close()]:
        if not event.data or event.done:
            continue
        try:
            value = parse_payload(event.data)
        except ValueError:
            continue  # the raw bytes are kept beside the view; a payload that is no JSON adds nothing to it (A79)
        if isinstance(value, dict):
            yield event.name, value


def parse_objects(body: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects that a stream carried, as :func:`iterate_objects` finds them."""
    return [value for _, value in iterate_objects(body)]
