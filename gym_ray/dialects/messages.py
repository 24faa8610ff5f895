"""Anthropic Messages: what ends its stream, what the stream adds up to, what an answer says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gym_ray import exact_json
from gym_ray.dialects.usage import count

__all__ = ["TERMINAL_EVENTS", "finish_reason", "reasoning_texts", "reassemble", "tool_calls"]

TERMINAL_EVENTS = {"message_stop": "complete", "error": "error"}
"""Event names that end a stream (A81)."""

_KEPT = ("id", "type", "role", "model", "stop_reason")

# Kind of delta -> (member that carries the text, member of the block it belongs to, type of a block it has to open)
_TEXT_DELTAS = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("signature", "signature", None),
}


class _Block:
    """One content block under way (A91-A93)."""

    __slots__ = ("input_json", "texts", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.texts: dict[str, list[str]] = {}
        self.input_json: list[str] | None = None

    def take(self, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.input_json = [] if self.input_json is None else self.input_json
            text = delta.get("partial_json")
            if isinstance(text, str):
                self.input_json.append(text)
        elif kind == "citations_delta":
            citations = self.value.get("citations")
            self.value["citations"] = [*(citations if isinstance(citations, list) else ()), delta.get("citation")]
        elif isinstance(kind, str) and kind in _TEXT_DELTAS:
            source, member, block_type = _TEXT_DELTAS[kind]
            if block_type is not None:
                self.value.setdefault("type", block_type)
            text = delta.get(source)
            if isinstance(text, str):
                self.texts.setdefault(member, []).append(text)

    def finished(self) -> dict[str, Any]:
        for member, parts in self.texts.items():
            start = self.value.get(member)
            self.value[member] = (start if isinstance(start, str) else "") + "".join(parts)
        if self.input_json is not None and not self.value.get("input"):
            self.value["input"] = _parsed_input("".join(self.input_json))
        return self.value


def _parsed_input(text: str) -> Any:
    if not text:
        return {}
    try:
        return exact_json.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return {"_raw": text}


class _Message:
    """A message under way."""

    __slots__ = ("blocks", "kept", "started", "usage")

    def __init__(self) -> None:
        self.started = False
        self.kept: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.blocks: dict[int, _Block] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._start(event.get("message"))
        elif kind == "content_block_start":
            block = event.get("content_block")
            if isinstance(block, dict):
                self.blocks[_index(event, max(self.blocks, default=-1) + 1)] = _Block(block)
        elif kind == "content_block_delta":
            delta = event.get("delta")
            if isinstance(delta, dict):
                self.blocks.setdefault(_index(event, 0), _Block({})).take(delta)
        elif kind == "message_delta":
            self._merge_usage(event.get("usage"))
            delta = event.get("delta")
            reason = delta.get("stop_reason") if isinstance(delta, dict) else None
            if reason and self.started:
                self.kept["stop_reason"] = reason

    def _start(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        self.started = True
        self.kept.update({key: message[key] for key in _KEPT if message.get(key) is not None})
        self._merge_usage(message.get("usage"))

    def _merge_usage(self, usage: Any) -> None:
        """Merge what a later event reports: null is no report, and 0 does not beat a positive count (A94, B30)."""
        if not isinstance(usage, dict):
            return
        for key, value in usage.items():
            known = count(self.usage.get(key))
            if value is None or (value == 0 and count(value) is not None and known):
                continue
            self.usage[key] = value

    def finished(self) -> dict[str, Any] | None:
        if not self.started and not self.blocks:
            return None
        result = {**self.kept, "type": "message"}
        result["content"] = [self.blocks[index].finished() for index in sorted(self.blocks)]
        if self.usage:
            result["usage"] = self.usage
        return result


def _index(event: dict[str, Any], missing: int) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else missing


def reassemble(objects: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """Add the events of a stream up to a message (A90-A95); None without a message start and without a block."""
    message = _Message()
    for event in objects:
        message.take(event)
    return message.finished()


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return the stop reason (A99)."""
    reason = response.get("stop_reason")
    return reason if isinstance(reason, str) else None


def tool_calls(response: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(id, name, input)`` of the ``tool_use`` blocks, in order (A101)."""
    for block in _blocks(response):
        if block.get("type") == "tool_use":
            yield block.get("id"), block.get("name"), block.get("input")


def reasoning_texts(response: dict[str, Any]) -> Iterator[Any]:
    """Yield the thinking of ``thinking`` and ``redacted_thinking`` blocks (A103)."""
    for block in _blocks(response):
        if block.get("type") in ("thinking", "redacted_thinking"):
            yield block.get("thinking")


def _blocks(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = response.get("content")
    return (block for block in content if isinstance(block, dict)) if isinstance(content, list) else iter(())
