"""Chat Completions: what ends its stream, what the stream adds up to, what an answer says.

Reading never repairs: arguments stay the text the model wrote, and choices stay apart.

A stream's answer has the members of A84 at its top and no others. Below that nothing is dropped: members of a choice
(``logprobs``, ``token_ids``, ``error``), of a delta (``reasoning_details``, ``annotations``), of a tool call
(``extra_content``) and of its function that no rule names are kept where a whole answer has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gym_ray import exact_json
from gym_ray.dialects.unknown_members import merge_member

__all__ = ["TERMINAL_EVENTS", "Completion", "finish_reason", "reasoning_texts", "tool_calls"]

_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)  # an answer cut short may not close its tag

TERMINAL_EVENTS = {"error": "error"}
"""Event names that end a stream, beside ``data: [DONE]`` and error payloads (A81)."""


# Objects of a delta that arrive in fragments -> their members that are texts to join.
_IN_FRAGMENTS = {"audio": ("data", "transcript"), "function_call": ("arguments",)}


class _Fragments:
    """An object that arrives in fragments: its texts are joined, its other members are merged."""

    __slots__ = ("_texts", "others")

    def __init__(self, *texts: str) -> None:
        self._texts: dict[str, list[str]] = {name: [] for name in texts}
        self.others: dict[str, Any] = {}

    def take(self, fragment: dict[str, Any]) -> None:
        for name, value in fragment.items():
            texts = self._texts.get(name)
            if texts is None:
                merge_member(self.others, name, value)
            elif isinstance(value, str):
                texts.append(value)
            elif isinstance(value, dict | list):  # some servers send the parsed value instead of its text
                texts.append(exact_json.dumps(value).decode("utf-8"))

    def text(self, name: str) -> str:
        return "".join(self._texts[name])

    def finished(self) -> dict[str, Any]:
        return self.others | {name: "".join(texts) for name, texts in self._texts.items() if texts}


class _Choice:
    """One choice of a stream under way (A86)."""

    __slots__ = ("_members", "_others", "_parts", "_texts", "_tools", "finish_reason", "role")

    def __init__(self) -> None:
        self.role = "assistant"
        self.finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._parts: list[Any] = []  # of a content that is a list
        self._tools = _ToolCalls()
        self._members: dict[str, Any] = {}  # further members of the message
        self._others: dict[str, Any] = {}  # further members of the choice

    def take(self, choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name == "delta":
                if isinstance(value, dict):
                    self._take_delta(value)
            elif value is not None and name != "index":
                if name != "finish_reason":
                    merge_member(self._others, name, value)
                elif isinstance(value, str) and value:
                    self.finish_reason = value

    def _take_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if isinstance(value, str) and name in self._texts:
                self._texts[name].append(value)
            elif value is not None:
                self._take_member(delta, name, value)

    def _take_member(self, delta: dict[str, Any], name: str, value: Any) -> None:
        if name == "tool_calls":
            self._tools.take(value)
        elif name == "role":
            self.role = value if isinstance(value, str) and value else self.role
        elif name == "reasoning":
            if isinstance(value, str) and not delta.get("reasoning_content"):
                self._texts["reasoning_content"].append(value)
        elif name in self._texts:
            if name == "content" and isinstance(value, list):
                self._parts += value
        elif name in _IN_FRAGMENTS:
            if isinstance(value, dict):
                self._members.setdefault(name, _Fragments(*_IN_FRAGMENTS[name])).take(value)
        else:
            merge_member(self._members, name, value)

    def finished(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self._content()}
        for name in ("reasoning_content", "refusal"):
            if text := "".join(self._texts[name]):
                message[name] = text
        calls = self._tools.finished()
        if calls:
            message["tool_calls"] = calls
        for name, value in self._members.items():
            message[name] = value.finished() if isinstance(value, _Fragments) else value
        return {"index": index, "message": message, "finish_reason": self.finish_reason, **self._others}

    def _content(self) -> str | list[Any] | None:
        text = "".join(self._texts["content"])
        if not self._parts:
            return text or None
        return [{"type": "text", "text": text}, *self._parts] if text else self._parts


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _ToolCall:
    """One tool call under way."""

    __slots__ = ("call_id", "custom", "function", "kind", "name", "others")

    def __init__(self) -> None:
        self.call_id: str | None = None
        self.name = ""
        self.kind = ""
        self.function = _Fragments("arguments")
        self.custom: _Fragments | None = None
        self.others: dict[str, Any] = {}

    def take(self, fragment: dict[str, Any]) -> None:
        for name, value in fragment.items():
            if name == "function":
                if isinstance(value, dict):
                    self.function.take(value)
                    self.name = _text(value.get("name")) or self.name
            elif name == "custom" and isinstance(value, dict):
                self.custom = self.custom or _Fragments("input")
                self.custom.take(value)
            elif name == "type":
                self.kind = _text(value) or self.kind
            elif name not in ("id", "index"):
                merge_member(self.others, name, value)

    def finished(self) -> dict[str, Any]:
        if self.custom is not None:
            return {"id": self.call_id, "type": self.kind or "custom", "custom": self.custom.finished(), **self.others}
        function = self.function.others | {"name": self.name, "arguments": self.function.text("arguments")}
        return {"id": self.call_id, "type": "function", "function": function, **self.others}


class _ToolCalls:
    """Tool calls of one choice, built from fragments (A87, A88)."""

    __slots__ = ("_calls", "_last", "_next", "_slots")

    def __init__(self) -> None:
        self._calls: dict[int, _ToolCall] = {}
        self._slots: dict[str, int] = {}
        self._next = 0
        self._last: int | None = None

    def take(self, fragments: Any) -> None:
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict):
                self._call(fragment).take(fragment)

    def _call(self, fragment: dict[str, Any]) -> _ToolCall:
        """Return the call that a fragment belongs to."""
        call_id, slot = fragment.get("id"), fragment.get("index")
        call_id = call_id if isinstance(call_id, str) and call_id else None
        if not isinstance(slot, int):
            slot = self._slot(call_id)
        self._last = slot
        call = self._calls.get(slot)
        if call is None:
            call = self._calls[slot] = _ToolCall()
            self._next = max(self._next, slot + 1)
        if call_id is not None:
            self._slots[call_id] = slot
            call.call_id = call_id
        return call

    def _slot(self, call_id: str | None) -> int:
        """Return the place of a fragment that does not say its own (A88)."""
        if call_id is not None:
            if call_id in self._slots:
                return self._slots[call_id]
            if self._last is not None and self._calls[self._last].call_id is None:
                return self._last  # the open call learns its id late
            return self._next
        return 0 if self._last is None else self._last

    def finished(self) -> list[dict[str, Any]]:
        return [self._calls[slot].finished() for slot in sorted(self._calls)]


class Completion:
    """A ``chat.completion`` under way, built from the chunks of its stream (A84-A89)."""

    __slots__ = ("_choices", "_id", "_model", "_usage")

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._id: str | None = None
        self._model: str | None = None
        self._usage: dict[str, Any] | None = None

    def take(self, chunk: dict[str, Any]) -> None:
        """Take the next chunk; members of unexpected types are passed over."""
        get = chunk.get
        if (value := get("id")) and isinstance(value, str):
            self._id = value
        if (value := get("model")) and isinstance(value, str):
            self._model = value
        if (value := get("usage")) and isinstance(value, dict):
            self._usage = value
        choices = get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index")
                index = index if isinstance(index, int) else 0
                known = self._choices.get(index)
                if known is None:
                    known = self._choices[index] = _Choice()
                known.take(choice)

    def finished(self) -> dict[str, Any] | None:
        """Return one choice per choice index, ascending; None when no chunk carried a choice."""
        if not self._choices:
            return None
        finished = [self._choices[index].finished(index) for index in sorted(self._choices)]
        result: dict[str, Any] = {"object": "chat.completion", "model": self._model, "choices": finished}
        if self._id is not None:
            result["id"] = self._id
        if self._usage is not None:
            result["usage"] = self._usage
        return result


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return the finish reason of the first choice (A99)."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    return reason if isinstance(reason, str) else None


def tool_calls(response: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(call id, name, arguments)`` of the calls of all choices, in order, as they were sent (A101, W20)."""
    for message in _messages(response):
        for call in _objects(message.get("tool_calls")):
            function, custom = call.get("function"), call.get("custom")
            if isinstance(custom, dict) and not function:
                yield call.get("id"), custom.get("name"), custom.get("input")
            else:
                function = function if isinstance(function, dict) else {}
                yield call.get("id"), function.get("name"), function.get("arguments")
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            yield None, legacy.get("name"), legacy.get("arguments")


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
