"""Tells whether an answer says anything, in whichever dialect it is.

What is not recognised counts as something said: a finding claims that there is nothing, so it must be sure.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["response_says_anything", "says_anything"]

_TEXT: Final = frozenset({"text", "output_text", "input_text", "refusal", "summary_text", "reasoning_text"})
_REASONING: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
_PARTS_OF_REASONING: Final = ("summary", "content", "thinking", "text", "data", "encrypted_content")
_PARTS_OF_A_MESSAGE: Final = (
    "content",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "reasoning_content",
    "reasoning",
)


def says_anything(value: Any, *, reasoning: bool = False) -> bool:
    """Return whether a value holds text that is not blank, a tool call, or anything else but empty structure.

    Args:
        value: An answer: text, an item, a message, or a list of them.
        reasoning: Count reasoning as well.
    """
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    if isinstance(value, list):
        return any(says_anything(item, reasoning=reasoning) for item in value)
    if isinstance(value, dict):
        return _object_says_anything(value, reasoning)
    return value is not None


def _object_says_anything(item: dict[str, Any], reasoning: bool) -> bool:
    kind = item.get("type")
    if kind in _TEXT:
        return says_anything(item.get("text")) or says_anything(item.get("refusal"))
    if kind in _REASONING:
        return reasoning and any(says_anything(item.get(part), reasoning=True) for part in _PARTS_OF_REASONING)
    if kind == "message" or (kind is None and ("content" in item or "role" in item)):
        return _message_says_anything(item, reasoning)
    if kind is None:
        return any(says_anything(part, reasoning=reasoning) for part in item.values())
    return True  # a tool call, an image, or what a later dialect invents


def _message_says_anything(message: dict[str, Any], reasoning: bool) -> bool:
    for part in _PARTS_OF_A_MESSAGE if reasoning else _PARTS_OF_A_MESSAGE[:-2]:
        if says_anything(message.get(part), reasoning=reasoning):
            return True
    return False


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
