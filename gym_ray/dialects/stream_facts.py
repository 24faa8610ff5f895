"""Says what is odd about a stream that was kept, for whoever judges the call later.

Facts, not verdicts: they are computed when a record is read and are stored nowhere. Nothing here repairs anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import read_events, reassemble
from gym_ray.dialects.responses import ENVELOPES
from gym_ray.dialects.sse import BOM, Event, cut_events, parse_payload
from gym_ray.dialects.terminal import ERROR, classify

__all__ = [
    "BLOCK_TYPE_MISMATCH",
    "DUPLICATE_START",
    "EMPTY_STREAM",
    "ERROR_EVENT",
    "INVALID_UTF8",
    "LATE_CONTENT",
    "NO_TERMINAL",
    "UNPARSABLE_EVENT",
    "stream_facts",
]

NO_TERMINAL: Final = "no_terminal"
"""No terminal event came, not even one that only lacks its blank line (B08)."""
EMPTY_STREAM: Final = "empty_stream"
"""No text, no call and no reason to end was said (B22)."""
LATE_CONTENT: Final = "late_content"
"""Content came behind the event that ended it (B25)."""
BLOCK_TYPE_MISMATCH: Final = "block_type_mismatch"
"""A delta did not fit the type of its block (B31)."""
UNPARSABLE_EVENT: Final = "unparsable_event"
"""The data of an event is neither JSON nor ``[DONE]`` (B03)."""
INVALID_UTF8: Final = "invalid_utf8"
"""Bytes are not UTF-8, or were not: U+FFFD is what a record keeps of such bytes."""
DUPLICATE_START: Final = "duplicate_start"
"""The answer was begun twice (B31)."""
ERROR_EVENT: Final = "error_event"
"""An event says that the answer failed (B21)."""

_REPLACEMENT = "\ufffd".encode()


def stream_facts(dialect: str, body: bytes) -> frozenset[str]:
    """Return what is odd about a stream, in time linear in its bytes; never raises for bad bytes.

    Args:
        dialect: ``responses``, ``chat`` or ``messages``.
        body: The stream's bytes, or the UTF-8 of the text that a record keeps of them.

    Returns:
        Some of the names of this module; none for a stream that is whole and plain.
    """
    facts: set[str] = _facts_of_events(dialect, body)
    watch = _WATCHES[dialect]()
    read_events(body, watch.take)
    facts |= watch.facts
    response = reassemble(dialect, body)
    if response is None or not _SAYS_SOMETHING[dialect](response):
        facts.add(EMPTY_STREAM)
    if not _is_utf8(body) or _REPLACEMENT in body:
        facts.add(INVALID_UTF8)
    return frozenset(facts)


def _facts_of_events(dialect: str, body: bytes) -> set[str]:
    facts = {NO_TERMINAL}
    for field, data in cut_events(body.removeprefix(BOM)):
        event = Event(field, data)
        if not event.done:
            facts |= _facts_of_payload(dialect, data, ended=NO_TERMINAL not in facts)
        kind = classify(dialect, event)
        if kind is not None:
            facts.discard(NO_TERMINAL)
        if kind == ERROR:
            facts.add(ERROR_EVENT)
    return facts


def _facts_of_payload(dialect: str, data: bytes, *, ended: bool) -> set[str]:
    if not data:
        return set()
    try:
        payload = parse_payload(data)
    except ValueError:
        return {UNPARSABLE_EVENT}
    late = ended and dialect == CHAT and isinstance(payload, dict) and bool(payload.get("choices"))
    return {LATE_CONTENT} if late else set()


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _Watch(Protocol):
    """Follows the events of one dialect."""

    facts: set[str]

    def take(self, event: dict[str, Any]) -> None: ...


class _ChatWatch:
    """A choice that has said why it ended says nothing more."""

    def __init__(self) -> None:
        self.facts: set[str] = set()
        self._ended: set[int] = set()

    def take(self, chunk: dict[str, Any]) -> None:
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        delta = choice.get("delta")
        said = isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
        if said and index in self._ended:
            self.facts.add(LATE_CONTENT)
        if choice.get("finish_reason"):
            self._ended.add(index)


# Kind of delta -> types of block that it fits; a block of another type must be one that has an input.
_FITTING = {
    "text_delta": ("text",),
    "citations_delta": ("text",),
    "thinking_delta": ("thinking",),
    "signature_delta": ("thinking",),
}
_WITHOUT_INPUT = ("text", "thinking", "redacted_thinking")


class _MessagesWatch:
    """A message is begun once, its deltas fit their blocks, and its blocks come before its stop reason."""

    def __init__(self) -> None:
        self.facts: set[str] = set()
        self._started = False
        self._ended = False
        self._types: dict[int, str] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            if self._started:
                self.facts.add(DUPLICATE_START)
            self._started = True
        elif kind in ("content_block_start", "content_block_delta"):
            if self._ended:
                self.facts.add(LATE_CONTENT)
            self._take_block(event)
        elif kind == "message_delta":
            delta = event.get("delta")
            self._ended = self._ended or (isinstance(delta, dict) and bool(delta.get("stop_reason")))
        elif kind == "message_stop":
            self._ended = True

    def _take_block(self, event: dict[str, Any]) -> None:
        index, block, delta = event.get("index"), event.get("content_block"), event.get("delta")
        index = index if isinstance(index, int) else 0
        if isinstance(block, dict):
            self._types[index] = str(block.get("type"))
        elif isinstance(delta, dict):
            kind = str(delta.get("type"))
            known = self._types.setdefault(index, _FITTING.get(kind, ("",))[0])
            fits = known in _FITTING[kind] if kind in _FITTING else known not in _WITHOUT_INPUT
            if not fits and (kind in _FITTING or kind == "input_json_delta"):
                self.facts.add(BLOCK_TYPE_MISMATCH)


class _ResponsesWatch:
    """An answer is created once, and its terminal event is the last that says anything."""

    def __init__(self) -> None:
        self.facts: set[str] = set()
        self._started = False
        self._ended = False

    def take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "response.created":
            if self._started:
                self.facts.add(DUPLICATE_START)
            self._started = True
        elif kind in ENVELOPES:
            self._ended = True
        elif self._ended and isinstance(kind, str) and kind.startswith("response."):
            self.facts.add(LATE_CONTENT)


_WATCHES: dict[str, Callable[[], _Watch]] = {CHAT: _ChatWatch, MESSAGES: _MessagesWatch, RESPONSES: _ResponsesWatch}


def _completion_says_something(response: dict[str, Any]) -> bool:
    return any(
        choice["finish_reason"] or any(value for name, value in choice["message"].items() if name != "role")
        for choice in response["choices"]
    )


def _message_says_something(response: dict[str, Any]) -> bool:
    return bool(response["content"] or response.get("stop_reason"))


def _response_says_something(response: dict[str, Any]) -> bool:
    return bool(response.get("output")) or response.get("status") in ("completed", "incomplete", "failed")


_SAYS_SOMETHING: dict[str, Callable[[dict[str, Any]], bool]] = {
    CHAT: _completion_says_something,
    MESSAGES: _message_says_something,
    RESPONSES: _response_says_something,
}
