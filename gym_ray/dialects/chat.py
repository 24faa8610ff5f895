"""Chat Completions: what ends its stream, what the stream adds up to, what an answer says.

Reading never repairs: arguments stay the text the model wrote, and choices stay apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gym_ray import exact_json

__all__ = ["TERMINAL_EVENTS", "finish_reason", "reasoning_texts", "reassemble", "tool_calls"]

_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)  # an answer cut short may not close its tag

TERMINAL_EVENTS = {"error": "error"}
"""Event names that end a stream, beside ``data: [DONE]`` and error payloads (A81)."""


class _Choice:
    """One choice of a stream under way (A86)."""

    __slots__ = ("content", "finish_reason", "reasoning", "refusal", "role", "tools")

    def __init__(self) -> None:
        self.role = "assistant"
        self.finish_reason: str | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tools = _ToolCalls()

    def take(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        role = delta.get("role")
        if isinstance(role, str) and role:
            self.role = role
        _append(self.content, delta.get("content"))
        _append(self.reasoning, delta.get("reasoning_content") or delta.get("reasoning"))
        _append(self.refusal, delta.get("refusal"))
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict):
                self.tools.take(fragment)

    def finished(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": "".join(self.content) or None}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.refusal:
            message["refusal"] = "".join(self.refusal)
        calls = self.tools.finished()
        if calls:
            message["tool_calls"] = calls
        return {"index": index, "message": message, "finish_reason": self.finish_reason}


class _ToolCalls:
    """Tool calls of one choice, built from fragments (A87, A88)."""

    __slots__ = ("_arguments", "_ids", "_last", "_names", "_next", "_slots")

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._next = 0
        self._ids: dict[int, str | None] = {}
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}
        self._last: int | None = None

    def take(self, fragment: dict[str, Any]) -> None:
        call_id = fragment.get("id")
        call_id = call_id if isinstance(call_id, str) and call_id else None
        slot = self._slot(fragment.get("index"), call_id)
        self._last = slot
        self._next = max(self._next, slot + 1)
        if call_id is not None:
            self._slots[call_id] = slot
        if call_id is not None or slot not in self._ids:
            self._ids[slot] = call_id
        function = fragment.get("function")
        if not isinstance(function, dict):
            return
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and name:
            self._names[slot] = name
        if isinstance(arguments, dict | list):  # some servers send the parsed value instead of its text
            arguments = exact_json.dumps(arguments).decode("utf-8")
        _append(self._arguments.setdefault(slot, []), arguments)

    def _slot(self, index: Any, call_id: str | None) -> int:
        if isinstance(index, int):
            return index
        if call_id is not None:
            if call_id in self._slots:
                return self._slots[call_id]
            if self._last is not None and self._ids[self._last] is None:
                return self._last  # the open call learns its id late
            return self._next
        return 0 if self._last is None else self._last

    def finished(self) -> list[dict[str, Any]]:
        return [
            {
                "id": self._ids[slot],
                "type": "function",
                "function": {
                    "name": self._names.get(slot, ""),
                    "arguments": "".join(self._arguments.get(slot, ())),
                },
            }
            for slot in sorted(self._ids)
        ]


def _append(parts: list[str], text: Any) -> None:
    if isinstance(text, str) and text:
        parts.append(text)


def reassemble(objects: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """Add the chunks of a stream up to a ``chat.completion`` (A84-A89).

    Returns:
        One choice per choice index, ascending; None when no chunk carried a choice.
    """
    choices: dict[int, _Choice] = {}
    response_id = model = usage = None
    for chunk in objects:
        value = chunk.get("id")
        if isinstance(value, str) and value:
            response_id = value
        value = chunk.get("model")
        if isinstance(value, str) and value:
            model = value
        value = chunk.get("usage")
        if isinstance(value, dict) and value:
            usage = value
        for choice in _objects(chunk.get("choices")):
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            if index not in choices:
                choices[index] = _Choice()
            choices[index].take(choice)
    if not choices:
        return None
    finished = [choices[index].finished(index) for index in sorted(choices)]
    result: dict[str, Any] = {"object": "chat.completion", "model": model, "choices": finished}
    if response_id is not None:
        result["id"] = response_id
    if usage is not None:
        result["usage"] = usage
    return result


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return the finish reason of the first choice (A99)."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    return reason if isinstance(reason, str) else None


def tool_calls(response: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(call id, name, arguments)`` of the tool calls of all choices, in order, as they were sent (A101)."""
    for message in _messages(response):
        for call in _objects(message.get("tool_calls")):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            yield call.get("id"), function.get("name"), function.get("arguments")


def reasoning_texts(response: dict[str, Any]) -> Iterator[Any]:
    """Yield the reasoning of every choice: its own field, else the ``<think>`` sections at its start (A103, W12)."""
    for message in _messages(response):
        text = message.get("reasoning_content") or message.get("reasoning")
        content = message.get("content")
        if text or not isinstance(content, str):
            yield text
        else:
            yield from _thoughts(content)


def _thoughts(content: str) -> Iterator[str]:
    """Sections before the first word of the answer; a tag further on may be what the model talks about."""
    position = 0
    while found := _THOUGHT.match(content, position):
        yield found[1]
        position = found.end()


def _messages(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for choice in _objects(response.get("choices")):
        message = choice.get("message")
        if isinstance(message, dict):
            yield message


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else iter(())
