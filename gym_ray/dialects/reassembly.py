"""Adds a stream up to the answer it carried, whatever the dialect.

A view on bytes that are kept elsewhere: it may be partial, it may be missing, but it never raises. What a whole answer
of the dialect has, the view has where the stream said it, members unknown to this version included; the files of the
dialects say where those are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gym_ray import exact_json
from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.chat import Completion
from gym_ray.dialects.messages import Message
from gym_ray.dialects.responses import ENVELOPES, Response
from gym_ray.dialects.sse import BLANK_LINES, BOM, ESCAPED, cut_events, event_name, parse_or_none

__all__ = ["read_events", "reassemble"]


class _Builder(Protocol):
    """An answer under way."""

    def take(self, event: dict[str, Any]) -> None: ...

    def finished(self) -> dict[str, Any] | None: ...


_BUILDERS: dict[str, type[_Builder]] = {CHAT: Completion, MESSAGES: Message, RESPONSES: Response}
_ENVELOPE_NAMES = tuple(name.encode() for name in ENVELOPES)


def reassemble(dialect: str, body: bytes) -> dict[str, Any] | None:
    """Reassemble the bytes of a stream, whole or cut off (A84-A98).

    Args:
        dialect: ``responses``, ``chat`` or ``messages``.
        body: The stream's bytes.

    Returns:
        The answer as an object of the dialect, as far as it came; None when nothing can be rebuilt.
    """
    try:
        if dialect == RESPONSES and (whole := _whole_response(body)) is not None:
            return whole
        builder = _BUILDERS[dialect]()
        read_events(body, builder.take)
        return builder.finished()
    except Exception:  # noqa: BLE001 - A98: the call is recorded with its raw bytes, whatever an upstream sent
        return None


def read_events(body: bytes, take: Callable[[dict[str, Any]], None]) -> None:
    """Hand over the JSON objects of a stream, in order; one that does not say its type gets the name of its event.

    What is no JSON object is passed over.
    """
    loads = exact_json.loads_within(body)
    for field, data in cut_events(body.removeprefix(BOM)):
        try:
            payload = loads(data)
        except ValueError:
            payload = parse_or_none(data)
        if isinstance(payload, dict):
            if field and "type" not in payload and (name := event_name(field)):
                payload["type"] = name
            take(payload)


def _whole_response(body: bytes) -> dict[str, Any] | None:
    """Read the last terminal event alone, which supersedes the deltas before it if it lists its output (A96).

    Returns:
        None when there is no such event, or something else may say more; then the whole stream has to be read.
    """
    last = max(body.rfind(name) for name in _ENVELOPE_NAMES)
    if last < 0:
        return None
    begin = max(body.rfind(blank, 0, last) for blank in BLANK_LINES)
    tail = body[begin + 1 :]  # with the end of the blank line: what follows is not the start of the stream
    if _later_type_may_be_escaped(tail):
        return None
    response = Response()
    read_events(tail, response.take)
    return response.whole()


def _later_type_may_be_escaped(tail: bytes) -> bool:
    """Whether an event behind the first may spell the name of a terminal event with escape sequences."""
    ends = [end for blank in BLANK_LINES if (end := tail.find(blank)) >= 0]
    return bool(ends) and tail.find(ESCAPED, min(ends)) >= 0
