"""The events of a Responses stream, for answers that are still growing and for those that are whole (A141, W25).

Helpers of SDKs build an answer from ``added``, ``delta`` and ``done`` events and look at running numbers. So every text
of an item is opened, told and closed, and the whole item follows; an item or a part of a kind that is unknown here
travels whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gym_ray.dialects.frames import typed_frame

__all__ = ["ResponseFrames"]


class _Text(NamedTuple):
    """How a text is told."""

    event: str  # stem of its delta and done events
    member: str  # member of its owner that holds it, and of the done event


# Type of an item -> its own text.
_ITEM_TEXTS: Final[Mapping[str, _Text]] = {
    "function_call": _Text("response.function_call_arguments", "arguments"),
    "mcp_call": _Text("response.mcp_call_arguments", "arguments"),
    "custom_tool_call": _Text("response.custom_tool_call_input", "input"),
}
# Type of a part -> its text.
_PART_TEXTS: Final[Mapping[str, _Text]] = {
    "output_text": _Text("response.output_text", "text"),
    "refusal": _Text("response.refusal", "refusal"),
    "summary_text": _Text("response.reasoning_summary_text", "text"),
    "reasoning_text": _Text("response.reasoning_text", "text"),
}
# Type of an item -> its lists of parts.
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {"message": ("content",), "reasoning": ("summary", "content")}
# List of parts -> stem of the events of a part, member of every event that holds the part's place in the list.
_PARTS: Final = {
    "content": ("response.content_part", "content_index"),
    "summary": ("response.reasoning_summary_part", "summary_index"),
}


class ResponseFrames:
    """Writes the events of one stream and counts them; an instance serves one stream.

    A place is what says where an event belongs: ``item_id``, ``output_index`` and, for a part, its index in its list.
    """

    __slots__ = ("_sequence",)

    def __init__(self) -> None:
        self._sequence = 0

    def frame(self, kind: str, **members: Any) -> bytes:
        """Return one event with the next ``sequence_number``."""
        number = self._sequence
        self._sequence += 1
        return typed_frame(kind, sequence_number=number, **members)

    def begin(self, response: Mapping[str, Any]) -> list[bytes]:
        """Return the two events that open a stream, with the answer as it is before its first item."""
        return [self.frame(kind, response=response) for kind in ("response.created", "response.in_progress")]

    def item(self, index: int, item: Mapping[str, Any]) -> list[bytes]:
        """Return all events of a whole item, which has an ``id``."""
        place = {"item_id": item["id"], "output_index": index}
        own = _told(_ITEM_TEXTS, item)
        lists = [name for name in _LISTS.get(_kind(item), ()) if isinstance(item.get(name), list)]
        frames = [self.item_added(index, _shell(item, own, lists))]
        if own is not None:
            frames += self._own_text(own, place, item)
        for name in lists:
            for position, part in enumerate(item[name]):
                frames += self._part(name, {**place, _PARTS[name][1]: position}, part)
        return [*frames, self.item_done(index, item)]

    def item_added(self, index: int, shell: Mapping[str, Any]) -> bytes:
        """Return the event that opens an item; the shell lacks what is going to be told."""
        return self.frame("response.output_item.added", output_index=index, item=shell)

    def item_done(self, index: int, item: Mapping[str, Any]) -> bytes:
        """Return the event that closes an item."""
        return self.frame("response.output_item.done", output_index=index, item=item)

    def part_added(self, parts: str, place: Mapping[str, Any], shell: Mapping[str, Any]) -> bytes:
        """Return the event that opens a part in the list ``parts`` of its item."""
        return self.frame(f"{_PARTS[parts][0]}.added", **place, part=shell)

    def part_delta(self, place: Mapping[str, Any], part: Mapping[str, Any], text: str) -> bytes:
        """Return the event that adds ``text`` to a part that has a text."""
        return self.frame(f"{_PART_TEXTS[part['type']].event}.delta", **place, delta=text, **_log_probs(part))

    def part_done(self, parts: str, place: Mapping[str, Any], part: Mapping[str, Any]) -> list[bytes]:
        """Return the events that close the text of a part, if it has one, and the part."""
        told = _told(_PART_TEXTS, part)
        frames = []
        if told is not None:
            text = {told.member: part[told.member]}
            frames.append(self.frame(f"{told.event}.done", **place, **text, **_log_probs(part)))
        return [*frames, self.frame(f"{_PARTS[parts][0]}.done", **place, part=part)]

    def _own_text(self, own: _Text, place: Mapping[str, Any], item: Mapping[str, Any]) -> list[bytes]:
        text = item[own.member]
        name = {"name": item.get("name")} if item["type"] == "function_call" else {}
        deltas = [self.frame(f"{own.event}.delta", **place, delta=text)] if text else []
        return [*deltas, self.frame(f"{own.event}.done", **place, **name, **{own.member: text})]

    def _part(self, parts: str, place: Mapping[str, Any], part: Any) -> list[bytes]:
        if not isinstance(part, Mapping):
            return []  # no part at all: only the whole item can carry it
        told = _told(_PART_TEXTS, part)
        if told is None:
            return [self.part_added(parts, place, part), *self.part_done(parts, place, part)]
        frames = [self.part_added(parts, place, _part_shell(part, told))]
        if part[told.member]:
            frames.append(self.part_delta(place, part, part[told.member]))
        for index, annotation in enumerate(_list_in(part, "annotations")):
            about = {"annotation_index": index, "annotation": annotation}
            frames.append(self.frame("response.output_text.annotation.added", **place, **about))
        return frames + self.part_done(parts, place, part)


def _kind(owner: Mapping[str, Any]) -> str:
    kind = owner.get("type")
    return kind if isinstance(kind, str) else ""


def _told(texts: Mapping[str, _Text], owner: Mapping[str, Any]) -> _Text | None:
    told = texts.get(_kind(owner))
    return told if told is not None and isinstance(owner.get(told.member), str) else None


def _shell(item: Mapping[str, Any], own: _Text | None, lists: Sequence[str]) -> dict[str, Any]:
    shell: dict[str, Any] = {**item, **{name: [] for name in lists}}
    if own is not None:
        shell[own.member] = ""
    if item.get("status") is not None:
        shell["status"] = "in_progress"
    return shell


def _part_shell(part: Mapping[str, Any], told: _Text) -> dict[str, Any]:
    shell = {**part, told.member: ""}
    if _kind(part) == "output_text":
        shell["annotations"] = []  # clients append to it, so it is there even where the part has none
    if "logprobs" in part:
        shell["logprobs"] = []
    return shell


def _log_probs(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"logprobs": _list_in(part, "logprobs")} if _kind(part) == "output_text" else {}


def _list_in(owner: Mapping[str, Any], name: str) -> list[Any]:
    value = owner.get(name)
    return value if isinstance(value, list) else []
