"""What the conversation digest leaves out of an item, so that a second, stricter digest can cover it (W33).

The digest of the contract does not see error flags, names, refusals, reasoning and the content of custom tool items.
Everything that may reach the model is covered here; members that never do, such as cache markers, are left out, since
agents change them from turn to turn.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Final

from gym_ray.token_id_capture.canonical_items import canonical_json
from gym_ray.token_id_capture.response_shapes import TOKEN_FIELDS

__all__ = ["uncovered_json"]

# Bookkeeping of a dialect, and token arrays that an agent echoes: no chat template shows any of it to the model.
_UNSEEN: Final = frozenset({"annotations", "cache_control", "logprobs", "status", *TOKEN_FIELDS})
_HASHED_TYPES: Final = frozenset({"message", "function_call", "function_call_output"})
_OF_A_FUNCTION_CALL: Final = frozenset({"call_id", "name", "namespace", "arguments"})
_OF_A_FUNCTION_OUTPUT: Final = frozenset({"call_id", "output"})
_OF_A_TEXT_BLOCK: Final = frozenset({"type", "text"})
_OF_A_TOOL_BLOCK: Final = {
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "id", "content"}),
}
_TEXT_BLOCKS: Final = frozenset({"text", "input_text", "output_text"})
_PLAIN_MEMBERS: Final = frozenset({"role", "content"})


def uncovered_json(item: dict[str, Any]) -> bytes:
    """Return canonical JSON of what the conversation digest does not cover of an item; empty if nothing is left.

    Raises:
        ValueError: Something in it has no JSON form at all.
    """
    content = item.get("content")
    if item.keys() <= _PLAIN_MEMBERS and not isinstance(content, list):
        return b""
    left = {
        "blocks": _of_list(content, _of_block),
        "calls": _of_list(item.get("tool_calls"), _of_call),
        "item": _without(item, _covered_members(item)),
    }
    left = {name: value for name, value in left.items() if value}
    return _json(left) if left else b""


def _covered_members(item: dict[str, Any]) -> frozenset[str]:
    role, kind = item.get("role"), item.get("type")
    covered = {"role", "content", "tool_calls"}
    if not role or kind in _HASHED_TYPES:
        covered.add("type")
    if kind == "function_call":
        covered |= _OF_A_FUNCTION_CALL
    elif kind == "function_call_output":
        covered |= _OF_A_FUNCTION_OUTPUT
    elif role == "tool":
        covered.add("tool_call_id")
    if role or kind in _HASHED_TYPES or kind == "reasoning" or item.get("call_id"):
        covered.add("id")  # the item's own name, not one that the model is shown
    return frozenset(covered)


def _of_list(values: object, left_of: Any) -> list[list[Any]]:
    if not isinstance(values, list):
        return []
    pairs = [[at, left_of(value)] for at, value in enumerate(values) if isinstance(value, dict)]
    return [pair for pair in pairs if pair[1]]


def _of_block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if isinstance(kind, str) and kind in _OF_A_TOOL_BLOCK:
        return _without(block, _OF_A_TOOL_BLOCK[kind])
    if isinstance(block.get("text"), str) and (not kind or kind in _TEXT_BLOCKS):
        return _without(block, _OF_A_TEXT_BLOCK)
    return {}  # any other block is in the digest as a whole


def _of_call(call: dict[str, Any]) -> dict[str, Any]:
    left = _without(call, ("id", "function", "index"))
    if left.get("type") == "function":
        del left["type"]
    function = call.get("function")
    if isinstance(function, dict) and (of_function := _without(function, ("name", "arguments"))):
        left["function"] = of_function
    return left


def _without(members: dict[str, Any], covered: Container[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in members.items()
        if value is not None and name not in covered and name not in _UNSEEN
    }


def _json(value: object) -> bytes:
    try:
        return canonical_json(value).encode()
    except ValueError:
        pass  # the digest of the contract accepts an item that holds, say, a huge integer where it does not look
    try:
        return json.dumps(value, sort_keys=True, default=repr).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"a conversation item has no JSON form: {error}") from None
