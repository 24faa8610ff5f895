"""Watches a stream for the event that ends it.

The capture layer holds that event back until the record is durable, so it must be found in the chunk that completes it
(A40, A81). A stream is complete only on positive evidence: no finish reason, no end of the connection stands in for the
terminal event. This runs on the event loop, so neither the many small deltas nor a huge event may cost it much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, chat, messages, responses
from gym_ray.dialects.sse import BOM, ESCAPED, Event, blank_lines, cut_events, event_name, parse_payload

__all__ = ["COMPLETE", "ERROR", "INCOMPLETE", "TerminalScanner", "classify", "is_error_payload"]

COMPLETE = "complete"
INCOMPLETE = "incomplete"
ERROR = "error"

_TERMINALS = {
    RESPONSES: responses.TERMINAL_EVENTS,
    CHAT: chat.TERMINAL_EVENTS,
    MESSAGES: messages.TERMINAL_EVENTS,
}

_NAMES = {dialect: tuple(name.encode() for name in names) for dialect, names in _TERMINALS.items()}
_QUOTED = {dialect: tuple(b'"%s"' % name for name in names) for dialect, names in _NAMES.items()}
_DONE = b"[DONE]"
_ERROR = b'"error"'
_ERROR_MEANT = re.compile(rb'"error"(?!\s*:\s*null)')
_ESCAPED_LETTER = re.compile(rb"\\u00(?:2[eE]|5[fF]|[67])")  # of a name: a letter, a dot or an underscore
_TAIL_BYTES = 2 + max(len(name) for names in _NAMES.values() for name in names)
"""Bytes of the open event that are looked at again with the next chunk: whatever is looked for may be cut in two."""

_LARGE = 1 << 20
"""From this size on the payload of an event is believed by the type it begins or ends with, without being parsed."""
_HEAD_BYTES, _END_BYTES = 4096, 1024
_TYPE_AT_START = re.compile(rb'\s*\{\s*(?:"sequence_number"\s*:\s*\d+\s*,\s*)?"type"\s*:\s*"([\w.]+)"\s*,')
_TYPE_AT_END = re.compile(rb',\s*"type"\s*:\s*"([\w.]+)"\s*\}\s*\Z')


class _Suspicion:
    """Whether bytes that were looked at may make a terminal event; most events are cleared without being parsed.

    A name in an ``event:`` line stands bare, and one in a payload in quotes, which text inside a payload never has.
    """

    __slots__ = ("_dialect", "_lined", "_named", "_names", "_said")

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._names = _NAMES[dialect]
        self.drop()

    def drop(self) -> None:
        """Begin anew."""
        self._lined = self._named = self._said = False

    def look(self, text: bytes) -> None:
        """Look at more bytes; those that may belong to what is cut in two are to be looked at together."""
        if not self._named:
            for name in self._names:
                if name in text:
                    self._named = True
                    break
        if not self._lined and b"event:" in text:
            self._lined = True
        if not self._said:
            self._said = _says(self._dialect, text, named=self._named)

    @property
    def justified(self) -> bool:
        """Whether the event has to be read."""
        return self._said or (self._named and self._lined)


class TerminalScanner:
    """Finds the first terminal event of a stream, in time linear in the bytes, however they are cut.

    What has no end yet is kept as the very chunks it came in: where these are kept elsewhere too, an open stream is not
    held in memory twice.

    Attributes:
        terminal: ``complete``, ``incomplete`` or ``error`` once the terminal event has come, else None.
    """

    __slots__ = ("_dialect", "_open", "_started", "_suspicion", "_tail", "terminal")

    def __init__(self, dialect: str) -> None:
        self.terminal: str | None = None
        self._dialect = dialect
        self._open: list[bytes] = []  # the bytes of the open event
        self._tail = b""  # the last of them
        self._suspicion = _Suspicion(dialect)  # against the open event
        self._started = False  # an event has ended

    def feed(self, chunk: bytes) -> str | None:
        """Take the next bytes of the stream and return :attr:`terminal` as it stands after them.

        The first hit stays; bytes behind it are not looked at.
        """
        if self.terminal is not None or not chunk:
            return self.terminal
        first, last = blank_lines(self._tail[-1:], chunk)
        end = chunk[:first] if last else chunk
        self._suspicion.look(self._tail + end)
        self._open.append(end)
        if not last:
            self._tail = (self._tail + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]
            return None
        if self._suspicion.justified:
            self.terminal = self._read_open()
        if self.terminal is None and last > first:
            self.terminal = self._read(chunk[first - 1 : last])  # with a line end: this is not the start of the stream
        self._begin(chunk[last:])
        return self.terminal

    def _begin(self, rest: bytes) -> None:
        self._open, self._tail, self._started = [], rest[-_TAIL_BYTES:], True
        self._suspicion.drop()
        if rest:
            self._open.append(rest)
            self._suspicion.look(rest)

    def _read(self, text: bytes) -> str | None:
        suspicion = _Suspicion(self._dialect)
        suspicion.look(text)
        return _first_terminal(self._dialect, text) if suspicion.justified else None

    def _read_open(self) -> str | None:
        """Return what the open event, whose end has come, means."""
        if sum(map(len, self._open)) >= _LARGE and (ends := _ends_of_large(self._open)):
            field, start, end = ends
            said = event_name(field)
            if said in _TERMINALS[self._dialect] or (said := _type_of_large(self._dialect, start, end) or ""):
                return _TERMINALS[self._dialect].get(said)
        text = b"".join(self._open)
        return _first_terminal(self._dialect, text if self._started else text.removeprefix(BOM))


def _first_terminal(dialect: str, text: bytes) -> str | None:
    for field, data in cut_events(text):
        if found := classify(dialect, Event(field, data)):
            return found
    return None


def _ends_of_large(pieces: list[bytes]) -> tuple[bytes, bytes, bytes] | None:
    """Read a large event without putting it together.

    Returns:
        The value of its event line, and the first and the last bytes of its data; None when it has another shape than
        one short event line, if any, and one long line of data.
    """
    head = _joined(pieces, _HEAD_BYTES)[:_HEAD_BYTES]
    tail = _joined(pieces[::-1], _END_BYTES, backwards=True)
    end = tail.rstrip(b"\r\n")
    *before, start = head.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    field = before[-1] if before else b"event:"
    line_ends = sum(_line_ends(piece) for piece in pieces)
    plain = line_ends == _line_ends(head) + len(tail) - len(end)
    if not plain or len(before) > 1 or not field.startswith(b"event:") or not start.startswith(b"data:"):
        return None
    return field[6:], start[5:][:_END_BYTES], end[-_END_BYTES:]


def _joined(pieces: Iterable[bytes], size: int, *, backwards: bool = False) -> bytes:
    found: list[bytes] = []
    length = 0
    for piece in pieces:
        if length >= size:
            break
        found.append(piece)
        length += len(piece)
    return b"".join(found[::-1] if backwards else found)


def _line_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r")


def _type_of_large(dialect: str, start: bytes, end: bytes) -> str | None:
    """Return the type that a payload begins or ends with, which in chat is not decisive."""
    if dialect == CHAT:
        return None
    found = _TYPE_AT_START.match(start) or _TYPE_AT_END.search(end)
    return found[1].decode() if found else None


def classify(dialect: str, event: Event) -> str | None:
    """Return what an event means for its stream: a terminal class, or None for an event in the middle (A81, A82)."""
    names, data = _TERMINALS[dialect], event.data
    if event.name in names:
        return names[event.name]
    if not _says(dialect, data):
        return None
    if dialect == CHAT and event.done:
        return COMPLETE
    if len(data) >= _LARGE and (said := _type_of_large(dialect, data[:_END_BYTES], data[-_END_BYTES:])):
        return names.get(said)
    try:
        payload = _parse(data)
    except ValueError:
        return None  # not JSON: an ordinary event that the view leaves out
    kind = payload.get("type") if isinstance(payload, dict) else None
    if isinstance(kind, str) and kind:
        return names.get(kind) or (ERROR if dialect == CHAT and is_error_payload(payload) else None)
    return ERROR if is_error_payload(payload) else None


def _says(dialect: str, data: bytes, *, named: bool = True) -> bool:
    """Whether a payload holds a terminal name or sentinel in a form that it takes when it is meant."""
    if named:
        for quoted in _QUOTED[dialect]:
            if quoted in data and (quoted != _ERROR or _ERROR_MEANT.search(data)):
                return True
    # One byte is found several times faster than a word, and most bytes of most streams hold none of these.
    if dialect == CHAT and b"[" in data and _DONE in data:
        return True
    return b"\\" in data and ESCAPED in data and _ESCAPED_LETTER.search(data) is not None


def _parse(data: bytes) -> Any:
    try:
        return orjson.loads(data)  # numbers are not looked at, so exactness may be skipped
    except orjson.JSONDecodeError:
        return parse_payload(data)


def is_error_payload(payload: Any) -> bool:
    """Whether a payload says that the answer failed, in any of the shapes seen in the field (B21).

    An ``error`` member that is not null (object or string), ``object: error``, ``type: error``, a choice that failed,
    or an array that holds one of these.
    """
    if isinstance(payload, list):
        return any(isinstance(item, dict) and is_error_payload(item) for item in payload)
    if not isinstance(payload, dict):
        return False
    if payload.get("error") is not None or payload.get("object") == "error" or payload.get("type") == "error":
        return True
    choices = payload.get("choices")
    return isinstance(choices, list) and any(_failed_choice(choice) for choice in choices)


def _failed_choice(choice: Any) -> bool:
    return isinstance(choice, dict) and (choice.get("error") is not None or choice.get("finish_reason") == "error")
