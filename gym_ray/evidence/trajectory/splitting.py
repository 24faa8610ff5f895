"""Splits a call into what was asked, what was answered and what was thought (D94)."""

from __future__ import annotations

from typing import Any

__all__ = ["answer_of", "question_of"]

_CHAT_REASONING = ("reasoning_content", "reasoning")
_THOUGHTS = ("reasoning",)
_THINKING = ("thinking", "redacted_thinking")


def question_of(request: Any) -> Any:
    """Return what was asked.

    Args:
        request: The parsed request of a call, or the raw text of one that could not be parsed.

    Returns:
        It shares everything with the request; only a list is new where some of its items are not its own.
    """
    if not isinstance(request, dict):
        return request
    asked = request.get("input")
    if asked is None:
        return request.get("messages")
    if isinstance(asked, list):
        for item in asked:
            if isinstance(item, dict) and "type" not in item:
                return [_typed(item) for item in asked]
    return asked


def _typed(item: Any) -> Any:
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return {"type": "message", **item}
    return item


def answer_of(response: Any) -> tuple[Any, Any, int]:
    """Split an answer by its shape, whatever route it came from; never raises.

    Args:
        response: The parsed response of a call, or the raw text of one that could not be parsed.

    Returns:
        What was answered, without what was thought, None where it could not be told; what was thought, None when
        nothing; how many tool calls the answer asks for. All of it is shared with the response.
    """
    if isinstance(response, dict):
        if isinstance(items := response.get("output"), list):
            return _parted(items, _THOUGHTS, "function_call")
        if isinstance(choices := response.get("choices"), list):
            return _of_chat(choices)
        if isinstance(content := response.get("content"), list):
            return _parted(content, _THINKING, "tool_use")
    return None, None, 0


def _of_chat(choices: list[Any]) -> tuple[Any, Any, int]:
    message = choices[0].get("message") if choices and isinstance(choices[0], dict) else None
    if not isinstance(message, dict):
        return None, None, 0
    reasoning = message.get("reasoning_content") or message.get("reasoning") or None
    calls = message.get("tool_calls")
    answer = {key: value for key, value in message.items() if key not in _CHAT_REASONING}
    return answer, reasoning, len(calls) if isinstance(calls, list) else 0


def _parted(items: list[Any], thoughts: tuple[str, ...], tool_call: str) -> tuple[Any, Any, int]:
    """Return the items that are no thoughts, those that are, and how many of the former are tool calls."""
    answer: list[Any] = []
    reasoning: list[Any] = []
    calls = 0
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in thoughts:
            reasoning.append(item)
            continue
        if kind == tool_call:
            calls += 1
        answer.append(item)
    return answer, reasoning or None, calls
