"""Tells whether an answer says anything, in whichever dialect it is.

What is not recognised counts as something said: a finding claims that there is nothing, so it must be sure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

__all__ = ["response_says_anything", "says_anything"]

_TEXT: Final = frozenset({"text", "output_text", "input_text", "refusal", "summary_text", "reasoning_text"})
_REASONING: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
_PARTS_OF_REASONING: Final = ("summary", "content", "thinking", "text", "data", "encrypted_content")
_MESSAGE: Final = ("content", "refusal", "tool_calls", "function_call", "audio")
_MESSAGE_WITH_REASONING: Final = (*_MESSAGE, "reasoning_content", "reasoning")


def says_anything(value: Any, *, reasoning: bool = False) -> bool:
    """Return whether a value holds text that is not blank, a tool call, or anything else but empty structure.

    Args:
        value: An answer: text, an item, a message, or a list of them, nested as deep as it may be.
        reasoning: Count reasoning as well.
    """
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if part and not part.isspace():
                return True
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            inside = _inside(part, reasoning)
            if inside is None:
                return True
            waiting += inside
        elif part is not None:
            return True
    return False


def _inside(item: dict[str, Any], reasoning: bool) -> Iterable[Any] | None:
    """Return what an object says, None when it says something by being there."""
    kind = item.get("type")
    if kind is None:
        is_message = "content" in item or "role" in item
        return _message(item, reasoning) if is_message else item.values()
    if not isinstance(kind, str):
        return None
    if kind in _TEXT:
        return (item.get("text"), item.get("refusal"))
    if kind in _REASONING:
        return [item.get(part) for part in _PARTS_OF_REASONING] if reasoning else ()
    return _message(item, reasoning) if kind == "message" else None  # a tool call, an image, or a later invention


def _message(item: dict[str, Any], reasoning: bool) -> Iterable[Any]:
    return [item[part] for part in (_MESSAGE_WITH_REASONING if reasoning else _MESSAGE) if part in item]


def response_says_anything(response: Any) -> bool | None:
    """Return whether a model's whole answer says anything besides reasoning; None when it cannot be looked into."""
    if not isinstance(response, dict):
        return None  # none was kept, or it is no JSON and nothing tells text from framing
    output = response.get("output")
    if isinstance(output, list):
        return says_anything(output)
    choices = response.get("choices")
    if isinstance(choices, list):
        return any(_choice_says_anything(choice) for choice in choices)
    return says_anything(response["content"]) if "content" in response else None


def _choice_says_anything(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return says_anything(choice)
    return says_anything(choice.get("message")) or says_anything(choice.get("text"))
