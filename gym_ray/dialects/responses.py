"""Responses: what ends its stream, what the stream adds up to, what an answer says.

The terminal event carries the whole answer. Item events matter when it never came, or came without the items (A97).
Envelopes, items and parts are kept with all their members; ``logprobs`` and annotations that came beside the text are
put where a whole answer has them. Other members of item events (``obfuscation``, ``sequence_number``) are of the
stream, not of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gym_ray.dialects.unknown_members import merge_member

__all__ = [
    "ENVELOPES",
    "TERMINAL_EVENTS",
    "Response",
    "calls_and_thoughts",
    "finish_reason",
    "reasoning_texts",
    "tool_calls",
]

TERMINAL_EVENTS = {
    "response.completed": "complete",
    "response.incomplete": "incomplete",
    "response.failed": "error",
    "error": "error",
}
"""Event names that end a stream (A81)."""

ENVELOPES = ("response.completed", "response.incomplete", "response.failed")
"""Types of the events that carry the whole answer at its end."""


class _Text(NamedTuple):
    """What a text event does: which member it writes, of the item or of one part in a list of the item."""

    parts: str | None  # list of the item that holds the part, None when the text is the item's own
    position: str  # member of the event with the part's position
    part_type: str
    member: str  # member that holds the text, in the part or in the item
    item_type: str  # type of an item that has to be opened
    source: str  # member of the event with the text
    whole: bool  # the event brings all of the text, not a fragment


def _text_events() -> dict[str, _Text]:
    targets = {
        "response.output_text": ("content", "content_index", "output_text", "text", "message"),
        "response.refusal": ("content", "content_index", "refusal", "refusal", "message"),
        "response.reasoning_text": ("content", "content_index", "reasoning_text", "text", "reasoning"),
        "response.reasoning_summary_text": ("summary", "summary_index", "summary_text", "text", "reasoning"),
        "response.function_call_arguments": (None, "", "", "arguments", "function_call"),
        "response.mcp_call_arguments": (None, "", "", "arguments", "mcp_call"),
        "response.custom_tool_call_input": (None, "", "", "input", "custom_tool_call"),
        "response.code_interpreter_call_code": (None, "", "", "code", "code_interpreter_call"),
    }
    deltas = {f"{stem}.delta": _Text(*target, "delta", whole=False) for stem, target in targets.items()}
    return deltas | {f"{stem}.done": _Text(*target, target[3], whole=True) for stem, target in targets.items()}


_TEXTS = _text_events()

# Type of a part event -> (list of the item, member with the position, type of an item to open, whether it is new)
_PARTS = {
    "response.content_part.added": ("content", "content_index", "message", True),
    "response.content_part.done": ("content", "content_index", "message", False),
    "response.reasoning_summary_part.added": ("summary", "summary_index", "reasoning", True),
    "response.reasoning_summary_part.done": ("summary", "summary_index", "reasoning", False),
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
        self._texts: dict[tuple[str | None, int, str], list[str]] = {}

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
        for key in [key for key in self._texts if key[:2] == (parts, index)]:
            del self._texts[key]

    def text(self, rule: _Text, event: dict[str, Any], text: str) -> None:
        """Append a fragment of a text, or set the whole of it."""
        position = event.get(rule.position) if rule.parts is not None else 0
        if not isinstance(position, int):
            position = max(self._known(rule.parts or ""), default=0)
        key = (rule.parts, position, rule.member)
        texts = self._texts.get(key)
        if texts is None:
            texts = self._texts[key] = self._begin(rule, position)
        if rule.whole:
            texts[:] = [text]
        else:
            texts.append(text)
        if event.get("logprobs"):
            self._log_probs(key, event["logprobs"], whole=rule.whole)

    def annotate(self, event: dict[str, Any]) -> None:
        """Add an annotation to the part that the event names."""
        position = event.get("content_index")
        part = self._known("content").get(position if isinstance(position, int) else 0)
        if part is not None:
            merge_member(part, "annotations", [event.get("annotation")])

    def _begin(self, rule: _Text, position: int) -> list[str]:
        if rule.parts is not None:
            self._known(rule.parts).setdefault(position, {"type": rule.part_type, rule.member: ""})
        start = self._owner(rule.parts, position).get(rule.member)
        return [start] if isinstance(start, str) else []

    def _log_probs(self, key: tuple[str | None, int, str], log_probs: Any, *, whole: bool) -> None:
        owner = self._owner(key[0], key[1])
        if whole:
            owner["logprobs"] = log_probs
        else:
            merge_member(owner, "logprobs", log_probs)

    def _known(self, parts: str) -> dict[int, dict[str, Any]]:
        if parts not in self._parts:
            present = self.value.get(parts)
            values = present if isinstance(present, list) else ()
            self._parts[parts] = {i: part for i, part in enumerate(values) if isinstance(part, dict)}
        return self._parts[parts]

    def _owner(self, parts: str | None, position: int) -> dict[str, Any]:
        return self.value if parts is None else self._parts[parts][position]

    def finished(self) -> dict[str, Any]:
        for (parts, position, member), texts in self._texts.items():
            self._owner(parts, position)[member] = "".join(texts)
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
        rule = _TEXTS.get(kind)
        if rule is not None:
            item = self._find(event) or self._open(event, rule.item_type)
            text = event.get(rule.source)
            if isinstance(text, str) and not item.final:
                item.text(rule, event, text)
        elif kind in _PARTS:
            self._take_part(kind, event)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            value = event.get("item")
            if isinstance(value, dict):
                self._whole(event, value, final=kind.endswith("done"))
        elif kind == "response.output_text.annotation.added":
            item = self._find(event) or self._open(event, "message")
            if not item.final:
                item.annotate(event)

    def _take_part(self, kind: str, event: dict[str, Any]) -> None:
        part = event.get("part")
        if isinstance(part, dict):
            parts, position, item_type, is_new = _PARTS[kind]
            item = self._find(event) or self._open(event, item_type)
            if not item.final:
                item.place(parts, event.get(position), part, is_new=is_new)

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


class Response:
    """A Responses answer under way, built from the events of its stream (A96, A97)."""

    __slots__ = ("_interim", "_items", "_terminal")

    def __init__(self) -> None:
        self._interim: dict[str, Any] | None = None
        self._terminal: dict[str, Any] | None = None
        self._items = _Items()

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event; members of unexpected types are passed over."""
        kind = event.get("type")
        if not isinstance(kind, str):
            kind = ""
        envelope = event.get("response")
        if isinstance(envelope, dict):
            self._interim = envelope
            if kind in ENVELOPES:
                self._terminal = envelope
        self._items.take(kind, event)

    def whole(self) -> dict[str, Any] | None:
        """Return the last terminal envelope if it lists output: then nothing that came before it matters."""
        return self._terminal if self._terminal is not None and self._terminal.get("output") else None

    def finished(self) -> dict[str, Any] | None:
        """Return the last terminal envelope, else the last envelope of any event, None when there was neither.

        Its ``output`` is filled from the item events when the stream had no terminal envelope or that one lists
        nothing.
        """
        if (whole := self.whole()) is not None:
            return whole
        result = self._terminal if self._terminal is not None else self._interim
        output = self._items.finished()
        if not output:
            return result
        return {**(result or {}), "output": output}


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return why an incomplete answer ended (A99)."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def tool_calls(response: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(call id, name, arguments)`` of all calls, in order (A101, W20).

    A hosted tool has the name of its item's type, and what it was asked as arguments.
    """
    return iter(calls_and_thoughts(response)[0])


def reasoning_texts(response: dict[str, Any]) -> Iterator[Any]:
    """Yield the texts of reasoning items: their summary, or their content where there is no summary text (A103)."""
    return iter(calls_and_thoughts(response)[1])


def calls_and_thoughts(response: dict[str, Any]) -> tuple[list[tuple[Any, Any, Any]], list[Any]]:
    """Return what :func:`tool_calls` and :func:`reasoning_texts` yield, found in one walk over the items."""
    calls: list[tuple[Any, Any, Any]] = []
    texts: list[Any] = []
    output = response.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        get = item.get
        kind = get("type")
        if kind == "message":
            continue
        if kind == "reasoning":
            texts += _thoughts(item)
        elif isinstance(kind, str) and kind.endswith("_call"):
            asked = get("arguments")
            calls.append(
                (get("call_id") or get("id"), get("name") or kind[:-5], _asked(item) if asked is None else asked)
            )
    return calls, texts


def _asked(item: dict[str, Any]) -> Any:
    for member in ("input", "action"):
        if (asked := item.get(member)) is not None:
            return asked
    return None


def _thoughts(item: dict[str, Any]) -> list[Any]:
    texts: list[Any] = []
    for member in ("summary", "content"):
        parts = item.get(member)
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        for text in texts:
            if isinstance(text, str) and text:
                return texts
    return texts
