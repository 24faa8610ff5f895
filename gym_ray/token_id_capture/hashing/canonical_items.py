"""Reads one conversation item into content parts, tool calls and tool results, as canonical text (B32-B39).

The same content gives the same parts in every dialect. An item without an exact text form is refused: a conversation
that is hashed loosely could be mistaken for another.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import orjson

from gym_ray import exact_json

__all__ = [
    "Call",
    "Part",
    "Result",
    "as_text",
    "canonical_json",
    "canonicalize_tool_arguments",
    "content_parts",
    "is_model_authored",
    "item_of",
    "tool_calls",
    "tool_results",
]

Part: TypeAlias = tuple[str, str]
Call: TypeAlias = tuple[str, str, str]
Result: TypeAlias = tuple[str, str]

_TEXT_BLOCKS: Final = ("", "text", "input_text", "output_text")
_TOOL_BLOCKS: Final = ("tool_use", "tool_result")


def item_of(value: object) -> dict[str, Any]:
    """Return a conversation item as the object that it must be.

    Raises:
        ValueError: It is none (B31).
    """
    if isinstance(value, dict):
        return value
    raise ValueError(f"a conversation item must be an object, not {type(value).__name__}")


def is_model_authored(item: object) -> bool:
    """Whether the model wrote an item: an assistant message or a function call (B30)."""
    return isinstance(item, dict) and (item.get("role") == "assistant" or item.get("type") == "function_call")


def canonical_json(value: object) -> str:
    """Return the JSON of a value with sorted keys and no spaces; non-finite numbers are null (B33).

    Raises:
        ValueError: It has a key that is no text, an integer beyond 64 bits, a lone surrogate, bytes, or is too deep.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"a value has no canonical JSON: {error}") from None


def canonicalize_tool_arguments(value: object) -> str:
    """Return tool arguments so that two spellings of the same JSON agree (B35).

    Raises:
        ValueError: They have no canonical JSON.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return canonical_json(value)
    try:
        parsed = exact_json.loads(value.encode())
    except ValueError:
        return value.strip()
    return canonical_json(parsed)


def content_parts(item: dict[str, Any]) -> list[Part]:
    """Return the parts of an item's content as (type, payload), tool blocks left out (B32).

    Raises:
        ValueError: The content is neither text nor a list, or a block is neither text, text block nor typed.
    """
    content = item.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, list):
        raise ValueError(f"content must be text or a list of blocks, not {type(content).__name__}")  # noqa: TRY004 - B32
    parts = [_part(block) for block in content]
    return [part for part in parts if part is not None]


def tool_calls(item: dict[str, Any]) -> list[Call]:
    """Return the tool calls of an item as (id, name, canonical arguments) (B34).

    Raises:
        ValueError: A call is no object, or its arguments have no canonical JSON.
    """
    calls = []
    if item.get("type") == "function_call":
        calls.append(_function_call(item))
    content = item.get("content")
    if isinstance(content, list):
        calls += [
            (as_text(block.get("id")), as_text(block.get("name")), canonicalize_tool_arguments(block.get("input")))
            for block in _blocks(content, "tool_use")
        ]
    listed = item.get("tool_calls")
    if not listed:
        return calls
    if not isinstance(listed, list):
        raise ValueError(f"tool_calls must be a list, not {type(listed).__name__}")  # noqa: TRY004 - B34
    return calls + [_chat_call(call) for call in listed]


def tool_results(item: dict[str, Any]) -> list[Result]:
    """Return the tool results of an item as (call id, payload) (B38).

    Raises:
        ValueError: A payload has no canonical JSON.
    """
    results = []
    content = item.get("content")
    if item.get("type") == "function_call_output":
        results.append((as_text(item.get("call_id") or item.get("id")), _payload(item.get("output"))))
    elif item.get("role") == "tool":
        results.append((as_text(item.get("tool_call_id")), _payload(content)))
    if isinstance(content, list):
        results += [
            (as_text(block.get("tool_use_id") or block.get("id")), _payload(block.get("content")))
            for block in _blocks(content, "tool_result")
        ]
    return results


def as_text(value: object) -> str:
    """Return a label (role, type, id, name) as text; null is empty."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _payload(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _part(block: object) -> Part | None:
    if isinstance(block, str):
        return ("text", block) if block else None
    if not isinstance(block, dict):
        raise ValueError(f"a content block must be text or an object, not {type(block).__name__}")  # noqa: TRY004 - B32
    kind, text = block.get("type") or "", block.get("text")
    if isinstance(text, str) and kind in _TEXT_BLOCKS:
        return ("text", text) if text else None
    if kind in _TOOL_BLOCKS:
        return None
    if not kind:
        raise ValueError("a content block has neither a type nor a text")
    return as_text(kind), canonical_json(block)


def _blocks(content: list[Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict) and block.get("type") == kind]


def _function_call(item: dict[str, Any]) -> Call:
    name, namespace = as_text(item.get("name")), item.get("namespace")
    joined = f"{as_text(namespace)}__{name}" if namespace else name
    return as_text(item.get("call_id") or item.get("id")), joined, canonicalize_tool_arguments(item.get("arguments"))


def _chat_call(call: object) -> Call:
    members = _object_or_empty(call, "a tool call")
    function = _object_or_empty(members.get("function"), "the function of a tool call")
    arguments = canonicalize_tool_arguments(function.get("arguments"))
    return as_text(members.get("id")), as_text(function.get("name")), arguments


def _object_or_empty(value: object, what: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    raise ValueError(f"{what} must be an object, not {type(value).__name__}")
