"""Collects what the conversation digest leaves out of an item, for a second, stricter digest to cover (W33).

The contract's digest does not cover error flags, names, refusals, reasoning and the content of custom tool items. The
strict digest covers everything that may reach the model. Members that never reach it, such as cache markers, stay out,
because agents change them from turn to turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from gym_ray.token_id_capture.hashing.canonical_items import canonical_json
from gym_ray.token_id_capture.response_shapes import TOKEN_FIELDS

__all__ = ["uncovered_json"]

# Bookkeeping of a dialect, and token arrays that an agent echoes: no chat template shows any of it to the model.
_UNSEEN: Final = frozenset({"annotations", "cache_control", "logprobs", "status", *TOKEN_FIELDS})
_OF_ANY_ITEM: Final = _UNSEEN | {"role", "content", "tool_calls"}
_OF_A_ROLE: Final = _OF_ANY_ITEM | {"id"}  # the item's own name, not one that the model is shown
_OF_A_TOOL_ROLE: Final = _OF_A_ROLE | {"tool_call_id"}
_OF_A_TYPE: Final = _OF_ANY_ITEM | {"type"}
_OF_A_KIND: Final = {
    "message": _OF_A_TYPE | {"id"},
    "reasoning": _OF_A_TYPE | {"id"},
    "function_call": _OF_A_TYPE | {"id", "call_id", "name", "namespace", "arguments"},
    "function_call_output": _OF_A_TYPE | {"id", "call_id", "output"},
}
_OF_A_TEXT_BLOCK: Final = _UNSEEN | {"type", "text"}
_OF_A_TOOL_BLOCK: Final = {
    "tool_use": _UNSEEN | {"type", "id", "name", "input"},
    "tool_result": _UNSEEN | {"type", "tool_use_id", "id", "content"},
}
_OF_A_CALL: Final = _UNSEEN | {"id", "function", "index"}
_OF_A_FUNCTION_CALL: Final = _OF_A_CALL | {"type"}
_OF_A_FUNCTION: Final = frozenset({"name", "arguments"})
_TEXT_BLOCKS: Final = (None, "", "text", "input_text", "output_text")


def uncovered_json(item: dict[str, Any]) -> bytes:
    """Return canonical JSON of what the conversation digest does not cover of an item; empty if nothing is left.

    Raises:
        ValueError: Something in it has no JSON form at all.
    """
    content, calls = item.get("content"), item.get("tool_calls")
    blocks_left = _each(content, _left_of_block) if isinstance(content, list) else []
    calls_left = _each(calls, _left_of_call) if isinstance(calls, list) else []
    item_left = _without(item, _covered_members(item))
    if not (blocks_left or calls_left or item_left):
        return b""
    return _json({"blocks": blocks_left, "calls": calls_left, "item": item_left})


def _covered_members(item: dict[str, Any]) -> frozenset[str]:
    role, kind = item.get("role"), item.get("type")
    covered = _OF_A_KIND.get(kind) if isinstance(kind, str) else None
    if covered is None:
        covered = _OF_A_ROLE if role else _OF_A_TYPE
        if item.get("call_id"):
            covered |= {"id"}
    if role == "tool" and kind != "function_call_output":
        return _OF_A_TOOL_ROLE if covered is _OF_A_ROLE else covered | {"tool_call_id"}
    return covered


def _each(values: list[Any], left_of: Callable[[dict[str, Any]], dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    pairs = [(at, left_of(value)) for at, value in enumerate(values) if isinstance(value, dict)]
    return [pair for pair in pairs if pair[1]]


def _left_of_block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if isinstance(block.get("text"), str) and kind in _TEXT_BLOCKS:
        return _without(block, _OF_A_TEXT_BLOCK)
    if isinstance(kind, str) and kind in _OF_A_TOOL_BLOCK:
        return _without(block, _OF_A_TOOL_BLOCK[kind])
    return {}  # any other block is in the digest as a whole


def _left_of_call(call: dict[str, Any]) -> dict[str, Any]:
    left = _without(call, _OF_A_FUNCTION_CALL if call.get("type") == "function" else _OF_A_CALL)
    function = call.get("function")
    if isinstance(function, dict) and (of_function := _without(function, _OF_A_FUNCTION)):
        left["function"] = of_function
    return left


def _without(members: dict[str, Any], covered: frozenset[str]) -> dict[str, Any]:
    if members.keys() <= covered:
        return {}
    return {name: value for name, value in members.items() if name not in covered and value is not None}


def _json(value: object) -> bytes:
    try:
        return canonical_json(value).encode()
    except ValueError:
        pass  # the digest of the contract accepts an item that holds, say, a huge integer where it does not look
    try:
        return json.dumps(value, sort_keys=True, default=repr).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"a conversation item has no JSON form: {error}") from None
