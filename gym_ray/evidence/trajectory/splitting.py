"""Splits a call into what was asked, what was answered and what was thought (D94)."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["SplitCall", "split_call"]

_CHAT_REASONING = ("reasoning_content", "reasoning")
_THINKING = ("thinking", "redacted_thinking")


class SplitCall(NamedTuple):
    """One call as a turn shows it.

    Attributes:
        question: What was asked.
        answer: What was answered, without what was thought; None where it could not be told.
        reasoning: What was thought, None when nothing.
        tool_calls: How many tool calls the answer asks for.
    """

    question: Any
    answer: Any
    reasoning: Any
    tool_calls: int


def split_call(request: Any, response: Any) -> SplitCall:
    """Split a call by the shape of its answer, whatever route it came from; never raises.

    Args:
        request: Its parsed request, or the raw text of one that could not be parsed.
        response: Its parsed response, or the raw text.

    Returns:
        Its parts, which share everything with the payloads; only a list is new where some of its items are not its own.
    """
    answer, reasoning, tool_calls = _answer(response)
    return SplitCall(_question(request), answer, reasoning, tool_calls)


def _question(request: Any) -> Any:
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


def _answer(response: Any) -> tuple[Any, Any, int]:
    if isinstance(response, dict):
        if isinstance(items := response.get("output"), list):
            return _of_responses(items)
        if isinstance(choices := response.get("choices"), list):
            return _of_chat(choices)
        if isinstance(content := response.get("content"), list):
            return _of_messages(content)
    return None, None, 0


def _of_responses(output: list[Any]) -> tuple[Any, Any, int]:
    return _parted(output, ("reasoning",), "function_call")


def _of_messages(content: list[Any]) -> tuple[Any, Any, int]:
    return _parted(content, _THINKING, "tool_use")


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
        calls += kind == tool_call
        answer.append(item)
    return answer, reasoning or None, calls
