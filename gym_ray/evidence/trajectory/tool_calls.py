"""Merges observed tool calls, and gives them the outputs that conversations show (D87, D88)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["merged_tool_calls"]

_Key = tuple[str, str]


def merged_tool_calls(
    produced: Iterable[dict[str, Any]],
    observed: Iterable[Mapping[str, Any]],
    invocations: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Lay observed tool records over a producer's tool calls, by invocation and tool call; others follow.

    Args:
        produced: Tool calls of the producer's trajectory.
        observed: The tool records of the bundle, in order.
        invocations: All invocations of the trajectory; the outputs stand in their conversations.

    Returns:
        The tool calls; an observed one has the last output that its invocation's conversation shows for it.
    """
    merged = list(produced)
    observed = list(observed)
    if not observed:
        return merged
    outputs = _outputs(invocations)
    places: dict[_Key, int] = {}
    for place, call in enumerate(merged):
        places.setdefault(_key(call), place)
    for record in observed:
        key = _key(record)
        if key in places:
            merged[places[key]] = merged[places[key]] | _told(record)
        else:
            places[key] = len(merged)
            merged.append({**record, "output": None})
        if key in outputs:
            merged[places[key]] = merged[places[key]] | {"output": outputs[key]}
    return merged


def _key(call: Mapping[str, Any]) -> _Key:
    return call["invocation_id"], call["tool_call_id"]


def _told(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says; an unknown status says nothing."""
    return {
        name: value
        for name, value in record.items()
        if value is not None and not (name == "status" and value == "unknown")
    }


def _outputs(invocations: Iterable[Mapping[str, Any]]) -> dict[_Key, Any]:
    return {
        (invocation["invocation_id"], item["call_id"]): item.get("output")
        for invocation in invocations
        for item in invocation["conversation"]
        if item.get("type") == "function_call_output"
    }
