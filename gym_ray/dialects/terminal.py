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

# A payload that names none of these cannot end a stream, so the many small deltas are not parsed. An escape could spell
# a name in another way, hence the last one.
_HINTS = {dialect: (*(name.encode() for name in names), b"\\u") for dialect, names in _TERMINALS.items()}


class TerminalScanner:
    """Finds the first terminal event of a stream.

    Attributes:
        terminal: ``complete``, ``incomplete`` or ``error`` once the terminal event has come, else None.
    """

    __slots__ = ("_dialect", "_scanner", "terminal")

    def __init__(self, dialect: str) -> None:
        self.terminal: str | None = None
        self._dialect = dialect
        self._scanner = EventScanner()

    def feed(self, chunk: bytes) -> str | None:
        """Take the next bytes of the stream and return :attr:`terminal` as it stands after them.

        The first hit stays; bytes behind it are not looked at.
        """
        if self.terminal is None:
            for event in self._scanner.feed(chunk):
                self.terminal = classify(self._dialect, event)
                if self.terminal is not None:
                    break
        return self.terminal


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
        return None
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
