"""Responses: what ends its stream, what the stream adds up to, what an answer says.

The terminal event carries the whole answer. Item events matter when it never came, or came without the items (A97).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["TERMINAL_EVENTS", "finish_reason", "reasoning_texts", "reassemble", "tool_calls"]

TERMINAL_EVENTS = {
    "response.completed": "complete",
    "response.incomplete": "incomplete",
    "response.failed": "error",
    "error": "error",
}
"""Event names that end a stream (A81)."""

_ENVELOPES = ("response.completed", "response.incomplete", "response.failed")


class _Target(NamedTuple):
    """Where the text of a delta goes: a member of the item, or of one part in a list of the item."""

    parts: str | None  # list of the item that holds the part, None when the text is the item's own
    position: str  # member of the event with the part's position
    part_type: str
    member: str  # member that holds the text, in the part or in the item; also its name in the done event
    item_type: str  # type of an item that has to be opened


_TARGETS = {
    "response.output_text": _Target("content", "content_index", "output_text", "text", "message"),
    "response.refusal": _Target("content", "content_index", "refusal", "refusal", "message"),
    "response.reasoning_text": _Target("content", "content_index", "reasoning_text", "text", "reasoning"),
    "response.reasoning_summary_text": _Target("summary", "summary_index", "summary_text", "text", "reasoning"),
    "response.function_call_arguments": _Target(None, "", "", "arguments", "function_call"),
    "response.mcp_call_arguments": _Target(None, "", "", "arguments", "mcp_call"),
    "response.custom_tool_call_input": _Target(None, "", "", "input", "custom_tool_call"),
}

_PARTS = {
    "response.content_part": ("content", "content_index"),
    "response.reasoning_summary_part": ("summary", "summary_index"),
}

_NEW_ITEMS: dict[str, dict[str, Any]] = {
    "message": {"type": "message", "role": "assistant", "content": []},
    "reasoning": {"type": "reasoning", "summary": []},
}


class _Item:
    """One output item under way."""

    __slots__ = ("_parts", "_texts", "final", "order", "value")

    def __init__(self, order: int, value: dict[str, Any], *, final: bool = False) -> None:
        self.order = order
        self.value = value
        self.final = final
        self._parts: dict[str, dict[int, dict[str, Any]]] = {}
        self._texts: dict[tuple[str | None, int], dict[str, list[str]]] = {}

    def replace(self, value: dict[str, Any], *, final: bool) -> None:
        """Take a later word on the whole item; what was built so far is dropped."""
        self.value, self.final = value, final
        self._parts.clear()
        self._texts.clear()

    def place(self, parts: str, index: Any, part: dict[str, Any], *, is_new: bool) -> None:
        """Put a part where the event says; without a position a new one goes behind the others."""
        known = self._known(parts)
        if not isinstance(index, int):
            index = max(known, default=-1) + (1 if is_new or not known else 0)
        known[index] = part
        self._texts.pop((parts, index), None)

    def text(self, target: _Target, index: Any, text: str, *, whole: bool) -> None:
        """Append a fragment of a text, or set the whole of it."""
        position = 0
        if target.parts is not None:
            known = self._known(target.parts)
            position = index if isinstance(index, int) else max(known, default=0)
            known.setdefault(position, {"type": target.part_type, target.member: ""})
        texts = self._texts.setdefault((target.parts, position), {})
        if whole:
            texts[target.member] = [text]
            return
        if target.member not in texts:
            start = self._owner(target.parts, position).get(target.member)
            texts[target.member] = [start] if isinstance(start, str) else []
        texts[target.member].append(text)

    def _known(self, parts: str) -> dict[int, dict[str, Any]]:
        if parts not in self._parts:
            present = self.value.get(parts)
            values = present if isinstance(present, list) else ()
            self._parts[parts] = {i: part for i, part in enumerate(values) if isinstance(part, dict)}
        return self._parts[parts]

    def _owner(self, parts: str | None, position: int) -> dict[str, Any]:
        return self.value if parts is None else self._parts[parts][position]

    def finished(self) -> dict[str, Any]:
        for (parts, position), texts in self._texts.items():
            for member, pieces in texts.items():
                self._owner(parts, position)[member] = "".join(pieces)
        for parts, known in self._parts.items():
            self.value[parts] = [known[position] for position in sorted(known)]
        return self.value


class _Items:
    """The output items of a stream under way, found by output index, else by item id."""

    __slots__ = ("_by_id", "_by_order", "_items", "_next")

    def __init__(self) -> None:
        self._next = 0  # order of an item that does not say its own
        self._items: list[_Item] = []
        self._by_order: dict[int, _Item] = {}
        self._by_id: dict[str, _Item] = {}

    def take(self, kind: str, event: dict[str, Any]) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            value = event.get("item")
            if isinstance(value, dict):
                self._whole(event, value, final=kind.endswith("done"))
            return
        stem, _, ending = kind.rpartition(".")
        if stem in _PARTS and ending in ("added", "done"):
            part = event.get("part")
            if isinstance(part, dict):
                parts, index = _PARTS[stem]
                item = self._find(event) or self._open(event, "message" if parts == "content" else "reasoning")
                if not item.final:
                    item.place(parts, event.get(index), part, is_new=ending == "added")
        elif stem in _TARGETS and ending in ("delta", "done"):
            target = _TARGETS[stem]
            text = event.get("delta" if ending == "delta" else target.member)
            item = self._find(event) or self._open(event, target.item_type)
            if isinstance(text, str) and not item.final:
                item.text(target, event.get(target.position), text, whole=ending == "done")

    def _whole(self, event: dict[str, Any], value: dict[str, Any], *, final: bool) -> None:
        found = self._find(event, value.get("id"))
        if found is None:
            self._add(event, value, value.get("id"), final=final)
        elif final or not found.final:
            found.replace(value, final=final)
            self._name(found, value.get("id"))

    def _find(self, event: dict[str, Any], item_id: Any = None) -> _Item | None:
        order = event.get("output_index")
        if isinstance(order, int):
            return self._by_order.get(order)
        item_id = item_id or event.get("item_id")
        if isinstance(item_id, str) and item_id:
            return self._by_id.get(item_id)
        return self._items[-1] if self._items else None

    def _open(self, event: dict[str, Any], item_type: str) -> _Item:
        value = {key: list(v) if isinstance(v, list) else v for key, v in _NEW_ITEMS.get(item_type, {}).items()}
        return self._add(event, value or {"type": item_type}, event.get("item_id"), final=False)

    def _add(self, event: dict[str, Any], value: dict[str, Any], item_id: Any, *, final: bool) -> _Item:
        order = event.get("output_index")
        if not isinstance(order, int):
            order = self._next
        self._next = max(self._next, order + 1)
        item = _Item(order, value, final=final)
        self._items.append(item)
        self._by_order[order] = item
        self._name(item, item_id)
        return item

    def _name(self, item: _Item, item_id: Any) -> None:
        if isinstance(item_id, str) and item_id:
            self._by_id[item_id] = item

    def finished(self) -> list[dict[str, Any]]:
        return [item.finished() for item in sorted(self._items, key=lambda item: item.order)]


def reassemble(objects: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the answer that a stream carried or was building (A96, A97).

    Returns:
        The last terminal envelope, else the last envelope of any event. Its ``output`` is filled from the item events
        when the stream had no terminal envelope or that one lists nothing. None when there is neither.
    """
    terminal = interim = None
    items = _Items()
    for event in objects:
        kind = event.get("type")
        kind = kind if isinstance(kind, str) else ""
        envelope = event.get("response")
        if isinstance(envelope, dict):
            interim = envelope
            if kind in _ENVELOPES:
                terminal = envelope
        items.take(kind, event)
    if terminal is not None and terminal.get("output"):
        return terminal
    result = terminal if terminal is not None else interim
    output = items.finished()
    if not output:
        return result
    return {**(result or {}), "output": output}


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return why an incomplete answer ended (A99)."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def tool_calls(response: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(call id, name, arguments)`` of the function calls, in order (A101)."""
    for item in _objects(response.get("output")):
        if item.get("type") == "function_call":
            yield item.get("call_id") or item.get("id"), item.get("name"), item.get("arguments")


def reasoning_texts(response: dict[str, Any]) -> Iterator[Any]:
    """Yield the texts of reasoning items: their summary, or their content where there is no summary text (A103)."""
    for item in _objects(response.get("output")):
        if item.get("type") != "reasoning":
            continue
        texts = [part.get("text") for part in _objects(item.get("summary"))]
        if not any(isinstance(text, str) and text for text in texts):
            texts = [part.get("text") for part in _objects(item.get("content"))]
        yield from texts


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else iter(())
