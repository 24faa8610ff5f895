"""One conversation item as the text that is hashed: its content, its tool calls and its tool results.

All dialects come to the same parts where they say the same (B32-B39). What cannot be put into words exactly is refused:
a conversation that is hashed loosely could be taken for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from gym_ray import exact_json

__all__ = [
    "as_text",
    "canonical_json",
    "canonicalize_tool_arguments",
    "content_parts",
    "is_model_authored",
    "item_of",
    "tool_calls",
    "tool_results",
]

_TEXT_BLOCKS: Final = frozenset({"", "text", "input_text", "output_text"})
_TOOL_BLOCKS: Final = frozenset({"tool_use", "tool_result"})


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


def content_parts(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of an item's content as (type, payload), tool blocks left out (B32).

    Raises:
        ValueError: The content is neither text nor a list, or a block is neither text, text block nor typed.
    """
    content = item.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [("text", content)] if content else []
    if not isinstance(content, list):
        raise ValueError(f"content must be text or a list of blocks, not {type(content).__name__}")  # noqa: TRY004 - B32
    return [part for block in content for part in _block_part(block)]


def tool_calls(item: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the tool calls of an item as (id, name, canonical arguments) (B34).

    Raises:
        ValueError: A call is no object, or its arguments have no canonical JSON.
    """
    calls = []
    if item.get("type") == "function_call":
        name, namespace = as_text(item.get("name")), item.get("namespace")
        joined = f"{as_text(namespace)}__{name}" if namespace else name
        arguments = canonicalize_tool_arguments(item.get("arguments"))
        calls.append((as_text(item.get("call_id") or item.get("id")), joined, arguments))
    calls += [
        (as_text(block.get("id")), as_text(block.get("name")), canonicalize_tool_arguments(block.get("input")))
        for block in _blocks(item, "tool_use")
    ]
    listed = item.get("tool_calls")
    if listed:
        calls += [_chat_call(call) for call in _list_of(listed, "tool_calls")]
    return calls


def tool_results(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the tool results of an item as (call id, payload) (B38).

    Raises:
        ValueError: A payload has no canonical JSON.
    """
    results = []
    if item.get("type") == "function_call_output":
        results.append((as_text(item.get("call_id") or item.get("id")), _payload(item.get("output"))))
    elif item.get("role") == "tool":
        results.append((as_text(item.get("tool_call_id")), _payload(item.get("content"))))
    results += [
        (as_text(block.get("tool_use_id") or block.get("id")), _payload(block.get("content")))
        for block in _blocks(item, "tool_result")
    ]
    return results


def as_text(value: object) -> str:
    """Return a label (role, type, id, name) as text; null is empty."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _payload(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _block_part(block: object) -> Iterator[tuple[str, str]]:
    if isinstance(block, str):
        if block:
            yield "text", block
        return
    if not isinstance(block, dict):
        raise ValueError(f"a content block must be text or an object, not {type(block).__name__}")  # noqa: TRY004 - B32
    kind, text = block.get("type") or "", block.get("text")
    if isinstance(kind, str) and kind in _TOOL_BLOCKS:
        return
    if isinstance(text, str) and isinstance(kind, str) and kind in _TEXT_BLOCKS:
        if text:
            yield "text", text
    elif kind:
        yield as_text(kind), canonical_json(block)
    else:
        raise ValueError("a content block has neither a type nor a text")


def _blocks(item: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    content = item.get("content")
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict) and block.get("type") == kind]


def _list_of(value: object, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"{what} must be a list, not {type(value).__name__}")


def _object_or_empty(value: object, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise ValueError(f"{what} must be an object, not {type(value).__name__}")


def _chat_call(call: object) -> tuple[str, str, str]:
    members = _object_or_empty(call, "a tool call")
    function = _object_or_empty(members.get("function"), "the function of a tool call")
    arguments = canonicalize_tool_arguments(function.get("arguments"))
    return as_text(members.get("id")), as_text(function.get("name")), arguments
