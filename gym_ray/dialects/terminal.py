"""Watches a stream for the event that ends it.

The capture layer holds that event back until the record is durable, so it must be found in the chunk that completes it
(A40, A81). A stream is complete only on positive evidence: no finish reason, no end of the connection stands in for the
terminal event. This runs on the event loop, so neither the many small deltas nor a huge event may cost it much.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, chat, messages, responses
from gym_ray.dialects.sse import BOM, ESCAPED, Event, blank_lines, cut_events, parse_payload

__all__ = ["COMPLETE", "ERROR", "INCOMPLETE", "TerminalScanner", "classify", "is_error_payload"]

COMPLETE = "complete"
INCOMPLETE = "incomplete"
ERROR = "error"

_TERMINALS = {
    RESPONSES: responses.TERMINAL_EVENTS,
    CHAT: chat.TERMINAL_EVENTS,
    MESSAGES: messages.TERMINAL_EVENTS,
}

# A stream that shows none of these bytes has no terminal event: every way to say it holds one of them. An escape could
# spell a name in another way, hence the last one. So the many small deltas, and the rare huge one, are never parsed.
_HINTS = {dialect: (*(name.encode() for name in names), ESCAPED) for dialect, names in _TERMINALS.items()}
_HINTS[CHAT] += (b"[DONE]",)
_LONGEST_HINT = max(len(hint) for hints in _HINTS.values() for hint in hints)

_LARGE = 1 << 20
"""From this size on an event is believed by its name, or by the type it begins with, without being parsed."""

_TYPE_AT_START = re.compile(rb'\s*\{\s*(?:"sequence_number"\s*:\s*\d+\s*,\s*)?"type"\s*:\s*"([\w.]+)"\s*,')


class TerminalScanner:
    """Finds the first terminal event of a stream, in time linear in the bytes, however they are cut.

    What has no end yet is kept as the very chunks it came in: where these are kept elsewhere too, an open stream is not
    held in memory twice.

    Attributes:
        terminal: ``complete``, ``incomplete`` or ``error`` once the terminal event has come, else None.
    """

    __slots__ = ("_dialect", "_hinted", "_hints", "_open", "_started", "_tail", "terminal")

    def __init__(self, dialect: str) -> None:
        self.terminal: str | None = None
        self._dialect = dialect
        self._hints = _HINTS[dialect]
        self._open: list[bytes] = []  # the bytes of the open event
        self._tail = b""  # the last of them: a hint or a blank line may be cut in two
        self._hinted = False  # the open event may be terminal
        self._started = False  # an event has ended

    def feed(self, chunk: bytes) -> str | None:
        """Take the next bytes of the stream and return :attr:`terminal` as it stands after them.

        The first hit stays; bytes behind it are not looked at.
        """
        if self.terminal is not None or not chunk:
            return self.terminal
        first, last = blank_lines(self._tail[-1:], chunk)
        found = self._hint_in(self._tail + chunk)
        if not last:
            self._open.append(chunk)
            self._hinted = self._hinted or found
            self._tail = (self._tail + chunk[-_LONGEST_HINT:])[-_LONGEST_HINT:]
            return None
        if found or self._hinted:
            self.terminal = self._first_terminal(self._ended(chunk, first, last))
        rest = chunk[last:]
        self._open, self._tail = [rest], rest[-_LONGEST_HINT:]
        self._hinted = found and self._hint_in(rest)
        self._started = True
        return self.terminal

    def _ended(self, chunk: bytes, first: int, last: int) -> bytes:
        """Return the events that end in a chunk; the first may be huge, and is left out if it cannot be terminal."""
        if not self._hinted and not self._hint_in(self._tail + chunk[:first]):
            return chunk[first - 1 : last]
        text = b"".join([*self._open, chunk[:last]])
        return text if self._started else text.removeprefix(BOM)

    def _first_terminal(self, text: bytes) -> str | None:
        for field, data in cut_events(text):
            if (self._hint_in(field) or self._hint_in(data)) and (found := classify(self._dialect, Event(field, data))):
                return found
        return None

    def _hint_in(self, text: bytes) -> bool:
        for hint in self._hints:  # noqa: SIM110 - a generator would cost more than the searches do
            if hint in text:
                return True
        return False


def classify(dialect: str, event: Event) -> str | None:
    """Return what an event means for its stream: a terminal class, or None for an event in the middle (A81, A82)."""
    names, data = _TERMINALS[dialect], event.data
    if event.name in names:
        return names[event.name]
    if dialect == CHAT and event.done:
        return COMPLETE
    if dialect != CHAT and len(data) >= _LARGE and (kind := _TYPE_AT_START.match(data)):
        return names.get(kind[1].decode())
    try:
        payload = _parse(data)
    except ValueError:
        return None  # not JSON: an ordinary event that the view leaves out
    kind = payload.get("type") if isinstance(payload, dict) else None
    if isinstance(kind, str) and kind:
        return names.get(kind) or (ERROR if dialect == CHAT and is_error_payload(payload) else None)
    return ERROR if is_error_payload(payload) else None


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
