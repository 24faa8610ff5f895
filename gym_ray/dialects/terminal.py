"""Watches a stream for the event that ends it.

The capture layer holds that event back until the record is durable, so it must be found in the chunk that completes it
(A40, A81). A stream is complete only on positive evidence: no finish reason, no end of the connection stands in for the
terminal event.
"""

from __future__ import annotations

from typing import Any

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES, chat, messages, responses
from gym_ray.dialects.sse import Event, EventScanner, parse_payload

__all__ = ["COMPLETE", "ERROR", "INCOMPLETE", "TerminalScanner", "is_error_payload"]

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
_HINTS = {dialect: (b"[DONE]", *(name.encode() for name in names), b"\\u") for dialect, names in _TERMINALS.items()}
_LONGEST_HINT = max(len(hint) for hints in _HINTS.values() for hint in hints)


class TerminalScanner:
    """Finds the first terminal event of a stream.

    Attributes:
        terminal: ``complete``, ``incomplete`` or ``error`` once the terminal event has come, else None.
    """

    __slots__ = ("_dialect", "_fed", "_hinted", "_scanner", "_tail", "terminal")

    def __init__(self, dialect: str) -> None:
        self.terminal: str | None = None
        self._dialect = dialect
        self._scanner = EventScanner()
        self._fed = 0
        self._tail = b""  # end of the stream so far: a hint may be cut in two
        self._hinted = False  # the open event may hold a hint

    def feed(self, chunk: bytes) -> str | None:
        """Take the next bytes of the stream and return :attr:`terminal` as it stands after them.

        The first hit stays; bytes behind it are not looked at.
        """
        if self.terminal is not None or not chunk:
            return self.terminal
        tail, self._tail = self._tail, (self._tail + chunk[-_LONGEST_HINT:])[-_LONGEST_HINT:]
        found = self._hint_in(chunk) or self._hint_in(tail + chunk[:_LONGEST_HINT])
        events = self._scanner.feed(chunk)
        if events and (found or self._hinted):
            # The first event may have begun long ago; if only what follows it holds a hint, it is left alone.
            plain_first = not self._hinted and not self._hint_in(tail + chunk[: events[0].end - self._fed])
            kinds = (classify(self._dialect, event) for event in events[plain_first:])
            self.terminal = next(filter(None, kinds), None)
        self._hinted = found or (self._hinted and not events)
        self._fed += len(chunk)
        return self.terminal

    def _hint_in(self, text: bytes) -> bool:
        return any(hint in text for hint in _HINTS[self._dialect])


def classify(dialect: str, event: Event) -> str | None:
    """Return what an event means for its stream: a terminal class, or None for an event in the middle (A81, A82)."""
    names = _TERMINALS[dialect]
    if event.name in names:
        return names[event.name]
    data = event.data
    if not data:
        return None
    if dialect == CHAT and event.done:
        return COMPLETE
    if not any(hint in data for hint in _HINTS[dialect]):
        return None  # it came with an event that has one
    try:
        payload = parse_payload(data)
    except ValueError:
        return None  # not JSON: an ordinary event that the view leaves out
    kind = payload.get("type") if isinstance(payload, dict) else None
    if isinstance(kind, str) and kind:
        return names.get(kind) or (ERROR if dialect == CHAT and is_error_payload(payload) else None)
    return ERROR if is_error_payload(payload) else None


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
