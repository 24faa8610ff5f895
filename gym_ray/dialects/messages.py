"""Anthropic Messages: what ends its stream, what the stream adds up to, what an answer says.

Members that no rule names are kept where a whole answer has them: those of ``message_start``, of ``message_delta`` and
of its delta (``stop_sequence``, ``container``, ``context_management``) in the message, those of a block and of its
deltas in the block. Null says nothing. Events and kinds of delta that are not known add nothing (A95).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gym_ray import exact_json
from gym_ray.dialects.unknown_members import merge_member
from gym_ray.dialects.usage import count

__all__ = ["TERMINAL_EVENTS", "Message", "finish_reason", "reasoning_texts", "tool_calls"]

TERMINAL_EVENTS = {"message_stop": "complete", "error": "error"}
"""Event names that end a stream (A81)."""

# Kind of delta -> (its member that carries the text, member of the block that the text belongs to). Input that comes as
# JSON text is collected under that name, which no block has.
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "partial_json"),
    "compaction_delta": ("content", "content"),
}
_APART = ("content", "usage", "delta")  # members of events that are read in their own way
_OF_START = ("id", "type", "role", "model")  # said by the message start alone
_BLOCK_TYPES = {"text": "text", "thinking": "thinking"}  # member that a delta adds to -> type of a block opened for it


class _Block:
    """One content block under way (A91-A93)."""

    __slots__ = ("_texts", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self._texts: dict[str, list[str]] = {}

    def take(self, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        source, member = _DELTAS.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
        if not source:
            if kind == "citations_delta":
                merge_member(self.value, "citations", [delta.get("citation")])
            return
        texts = self._texts.get(member)
        if texts is None:
            texts = self._open(member)
        text = delta.get(source)
        if isinstance(text, str):
            texts.append(text)
        if len(delta) > 2:
            for name, value in delta.items():
                if name not in ("type", source):
                    merge_member(self.value, name, value)

    def _open(self, member: str) -> list[str]:
        if member in _BLOCK_TYPES:
            self.value.setdefault("type", _BLOCK_TYPES[member])
        start = self.value.get(member)
        texts = self._texts[member] = [start] if isinstance(start, str) else []
        return texts

    def finished(self) -> dict[str, Any]:
        input_json = self._texts.pop("partial_json", None)
        for member, texts in self._texts.items():
            self.value[member] = "".join(texts)
        if input_json is not None and not self.value.get("input"):
            self.value["input"] = _parsed_input("".join(input_json))
        return self.value


def _parsed_input(text: str) -> Any:
    if not text:
        return {}
    try:
        return exact_json.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return {"_raw": text}


class Message:
    """A message under way, built from the events of its stream (A90-A95)."""

    __slots__ = ("_blocks", "_kept", "_started", "_usage")

    def __init__(self) -> None:
        self._started = False
        self._kept: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event; members of unexpected types are passed over."""
        kind = event.get("type")
        if kind == "content_block_delta":
            delta = event.get("delta")
            if isinstance(delta, dict):
                self._block(event.get("index")).take(delta)
        elif kind == "content_block_start":
            block = event.get("content_block")
            if isinstance(block, dict):
                index = event.get("index")
                index = index if isinstance(index, int) else max(self._blocks, default=-1) + 1
                self._blocks[index] = _Block(block)
        elif kind == "message_start":
            message = event.get("message")
            if isinstance(message, dict):
                self._started = True
                self._keep(message)
        elif kind == "message_delta":
            self._end(event)

    def _block(self, index: Any) -> _Block:
        index = index if isinstance(index, int) else 0
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block({})
        return block

    def _keep(self, members: dict[str, Any]) -> None:
        self._merge_usage(members.get("usage"))
        self._kept |= {name: value for name, value in members.items() if value is not None and name not in _APART}

    def _end(self, event: dict[str, Any]) -> None:
        self._merge_usage(event.get("usage"))
        if not self._started:
            return
        delta = event.get("delta")
        for members in (event, delta if isinstance(delta, dict) else {}):
            said = {name: value for name, value in members.items() if value not in (None, "")}
            self._kept |= {name: value for name, value in said.items() if name not in _APART and name not in _OF_START}

    def _merge_usage(self, usage: Any) -> None:
        """Merge what a later event reports: null is no report, and 0 does not beat a positive count (A94, B30)."""
        if not isinstance(usage, dict):
            return
        for key, value in usage.items():
            known = count(self._usage.get(key))
            if value is None or (value == 0 and count(value) is not None and known):
                continue
            self._usage[key] = value

    def finished(self) -> dict[str, Any] | None:
        """Return the message as far as it came; None without a message start and without a block."""
        if not self._started and not self._blocks:
            return None
        result = {**self._kept, "type": "message"}
        result["content"] = [self._blocks[index].finished() for index in sorted(self._blocks)]
        if self._usage:
            result["usage"] = self._usage
        return result


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
