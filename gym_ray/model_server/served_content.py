"""Whether a client was served any content by an answer that failed.

It decides what becomes of a training call: a call that served nothing is withdrawn, so that a good retry can take its
place (W23). A call whose content the agent may have used must never be withdrawn, so what is not known to be empty
counts as content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import CHAT, MESSAGES
from gym_ray.dialects.sse import BLANK_LINES, BOM, cut_events, event_name, parse_payload
from gym_ray.dialects.terminal import is_error_payload

__all__ = ["says_something", "stream_says_something"]

_FRAME: Final = frozenset(
    {
        "content_index",
        "error",
        "id",
        "index",
        "item_id",
        "object",
        "output_index",
        "role",
        "sequence_number",
        "status",
        "summary_index",
        "type",
        "usage",
    }
)
"""Members that describe the place or the kind of a part, and are no content themselves."""
_CALL: Final = "_call"  # function_call, web_search_call, ...: an item that is an action, even without a text
_NO_CONTENT: Final = frozenset({"ping", "error"})
_FAILED: Final = (None, "error")
_LEVELS: Final = 32
"""What nests deeper than any event does counts as content."""


def says_something(answer: Mapping[str, Any]) -> bool:
    """Whether a whole answer of any dialect has content: a text, a call, or a reason why the model ended."""
    choices = answer.get("choices")
    if isinstance(choices, list) and any(map(_choice_says, choices)):
        return True
    return _holds(answer.get("output")) or _holds(answer.get("content"))


def stream_says_something(dialect: str, text: bytes) -> bool:
    """Whether the bytes of a stream that failed, or was cut anywhere, have content.

    A last event that was cut off does not count: no client reads it. A whole event that cannot be read counts.

    Args:
        dialect: ``responses``, ``chat`` or ``messages``.
        text: The bytes.
    """
    events = list(cut_events(text.removeprefix(BOM)))
    whole = len(events) if text.endswith((*BLANK_LINES, b"\r\n\r\n")) else len(events) - 1
    for index, (field, data) in enumerate(events):
        try:
            payload = parse_payload(data) if data.strip() not in (b"", b"[DONE]") else None
        except ValueError:
            if index < whole:
                return True
            continue
        if payload is not None and _event_says(dialect, event_name(field), payload):
            return True
    return False


def _event_says(dialect: str, name: str, payload: object) -> bool:
    if not isinstance(payload, Mapping):
        return not is_error_payload(payload)
    if dialect == CHAT:
        return says_something(payload)
    if (payload.get("type") or name) in _NO_CONTENT:
        return False
    if dialect == MESSAGES:
        return _message_event_says(payload)
    response = payload.get("response")
    return _holds(response.get("output") if isinstance(response, Mapping) else payload)


def _message_event_says(payload: Mapping[str, Any]) -> bool:
    message = payload.get("message")
    return _holds(message.get("content") if isinstance(message, Mapping) else payload)


def _choice_says(choice: object) -> bool:
    if not isinstance(choice, Mapping):
        return choice is not None
    rest = {name: value for name, value in choice.items() if name not in ("finish_reason", "stop_reason")}
    return choice.get("finish_reason") not in _FAILED or _holds(rest)


def _holds(value: object, levels: int = _LEVELS) -> bool:
    if isinstance(value, Mapping):
        if not levels or str(value.get("type")).endswith(_CALL):
            return True
        return any(name not in _FRAME and _holds(part, levels - 1) for name, part in value.items())
    if isinstance(value, list):
        return not levels or any(_holds(part, levels - 1) for part in value)
    return bool(value)
