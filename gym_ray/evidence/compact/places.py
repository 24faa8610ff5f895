"""Where a record holds payloads; the same walk takes them out and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD

__all__ = ["CONVERSATION", "Change", "changed"]

CONVERSATION = "conversation"

Change = Callable[[str, Any], Any]
"""Takes the member's name and its value; returns the value that takes its place."""

_Members = Mapping[str, frozenset[str]]
"""List of a section: the members of its objects that hold payloads."""

_CAPTURE: _Members = {"calls": frozenset(("request", "response", "tool_calls", "reasoning_content"))}
_OBSERVATIONS: _Members = {"records": frozenset((CONVERSATION,))}
_TRAJECTORY: _Members = {
    "invocations": frozenset((CONVERSATION,)),
    "turns": frozenset(("question", "answer", "reasoning_content")),
    "model_calls": frozenset(("request", "response")),
    "tool_calls": frozenset(("output",)),
}
_SECTIONS: Mapping[str, _Members] = {
    ATTACHMENT_FIELD: _CAPTURE,
    OBSERVATIONS_FIELD: _OBSERVATIONS,
    TRAJECTORY_FIELD: _TRAJECTORY,
}


def changed(record: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return the record with every payload replaced; nothing of the given one is modified.

    Sections, lists and objects of another shape than the contract's stay as they are.
    """
    result = dict(record)
    for field, members in _SECTIONS.items():
        section = result.get(field)
        if isinstance(section, dict):
            result[field] = {
                key: [_changed_object(item, members[key], change) for item in value]
                if key in members and isinstance(value, list)
                else value
                for key, value in section.items()
            }
    return result


def _changed_object(item: Any, members: frozenset[str], change: Change) -> Any:
    if not isinstance(item, dict) or members.isdisjoint(item):
        return item
    return {key: change(key, value) if key in members else value for key, value in item.items()}
