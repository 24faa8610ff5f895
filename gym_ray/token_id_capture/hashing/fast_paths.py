"""Fast paths from the item shapes that clients really send to the bytes that are hashed.

Every item of every request is hashed, most have one of a few shapes, and the general path (``item_bytes``) costs
several times as much. A fast path checks the names of the members and the type of every value that it uses. It gives
exactly the bytes of the general path, or None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from gym_ray.token_id_capture.hashing.canonical_items import canonicalize_tool_arguments

__all__ = ["FIELD", "FastPath", "fast_path"]

FIELD: Final = struct.Struct(">BQ").pack
FastPath: TypeAlias = Callable[[dict[str, Any]], tuple[bytes | None, bytes] | None]

_TEXT_IN_SPINE: Final = FIELD(0x00, 4) + b"text"
_TEXT_IN_CONTEXT: Final = FIELD(0x01, 4) + b"text"
_LABELS: Final = {
    label: FIELD(0x00, len(label)) + label.encode()
    for label in ("assistant", "developer", "function_call", "function_call_output", "system", "tool", "user")
}
_BLOCK_MEMBERS: Final = frozenset({"type", "text", "annotations", "logprobs"})
_BLOCK_TYPES: Final = ("input_text", "output_text", "text")
_CALL_MEMBERS: Final = frozenset({"id", "type", "function"})
_FUNCTION_MEMBERS: Final = frozenset({"name", "arguments"})


def fast_path(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    """Return the bytes that an item adds to the fingerprint (None if the model did not write it) and to the digest.

    Returns:
        None for an item that needs the general path. An item that has a fast path holds nothing that the conversation
        digest leaves out.

    Raises:
        ValueError: A text has no UTF-8 form, or tool arguments have no canonical JSON.
    """
    path = _PATHS.get(frozenset(item))
    return None if path is None else path(item)


def _message(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    role, content = item["role"], item["content"]
    if type(role) is not str or role == "tool" or role not in _LABELS or item.get("type", "message") != "message":
        return None
    texts = (content,) if type(content) is str else _block_texts(content)
    if texts is None:
        return None
    spine, context = list[bytes](), [_LABELS[role]]
    for text in texts:
        if text:
            encoded = text.encode()
            size = len(encoded)
            context += (_TEXT_IN_CONTEXT, FIELD(0x02, size), encoded)
            spine += (_TEXT_IN_SPINE, FIELD(0x01, size), encoded)
    return b"".join(spine) if role == "assistant" else None, b"".join(context)


def _block_texts(blocks: object) -> list[str] | None:
    if type(blocks) is not list:
        return None
    texts = [block["text"] for block in blocks if type(block) is dict and _is_text(block)]
    return texts if len(texts) == len(blocks) else None


def _is_text(block: dict[str, Any]) -> bool:
    return block.get("type") in _BLOCK_TYPES and type(block.get("text")) is str and block.keys() <= _BLOCK_MEMBERS


def _chat_calls(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    content, listed = item["content"], item["tool_calls"]
    if item["role"] != "assistant" or type(listed) is not list or not listed:
        return None
    spine, context = list[bytes](), [_LABELS["assistant"]]
    if content:
        if type(content) is not str:
            return None
        encoded = content.encode()
        context += (_TEXT_IN_CONTEXT, FIELD(0x02, len(encoded)), encoded)
        spine += (_TEXT_IN_SPINE, FIELD(0x01, len(encoded)), encoded)
    elif content is not None and content != "":
        return None
    for call in listed:
        if type(call) is not dict or call.keys() != _CALL_MEMBERS or call["type"] != "function":
            return None
        function = call["function"]
        if type(function) is not dict or function.keys() != _FUNCTION_MEMBERS:
            return None
        if not _add_call(spine, context, call["id"], function["name"], function["arguments"]):
            return None
    return b"".join(spine), b"".join(context)


def _tool_result(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    identity, content = item["tool_call_id"], item["content"]
    if item["role"] != "tool" or type(identity) is not str or type(content) is not str or not content:
        return None
    call, text = identity.encode(), content.encode()
    size = len(text)
    pieces = (_LABELS["tool"], _TEXT_IN_CONTEXT, FIELD(0x02, size), text, FIELD(0x06, len(call)), call)
    return None, b"".join((*pieces, FIELD(0x07, size), text))


def _function_call(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    if item["type"] != "function_call" or not item["call_id"]:
        return None
    spine, context = list[bytes](), [_LABELS["function_call"]]
    if not _add_call(spine, context, item["call_id"], item["name"], item["arguments"]):
        return None
    return b"".join(spine), b"".join(context)


def _function_output(item: dict[str, Any]) -> tuple[bytes | None, bytes] | None:
    identity, output = item["call_id"], item["output"]
    if item["type"] != "function_call_output" or type(identity) is not str or not identity or type(output) is not str:
        return None
    call, text = identity.encode(), output.encode()
    pieces = (_LABELS["function_call_output"], FIELD(0x06, len(call)), call, FIELD(0x07, len(text)), text)
    return None, b"".join(pieces)


def _add_call(spine: list[bytes], context: list[bytes], identity: object, name: object, arguments: object) -> bool:
    if type(identity) is not str or type(name) is not str or type(arguments) is not str:
        return False
    one, two, three = identity.encode(), name.encode(), canonicalize_tool_arguments(arguments).encode()
    first, second, third = len(one), len(two), len(three)
    context += (FIELD(0x03, first), one, FIELD(0x04, second), two, FIELD(0x05, third), three)
    spine += (FIELD(0x02, first), one, FIELD(0x03, second), two, FIELD(0x04, third), three)
    return True


def _with_own_names(path: FastPath, *members: str) -> Iterable[tuple[frozenset[str], FastPath]]:
    """Yield the names of a Responses item's members, also with the two that are never hashed: its id and its status."""
    for more in ((), ("id",), ("status",), ("id", "status")):
        yield frozenset({*members, *more}), path


_PATHS: Final[Mapping[frozenset[str], FastPath]] = {
    frozenset({"role", "content"}): _message,
    frozenset({"role", "content", "tool_calls"}): _chat_calls,
    frozenset({"role", "content", "tool_call_id"}): _tool_result,
    **dict(_with_own_names(_message, "type", "role", "content")),
    **dict(_with_own_names(_function_call, "type", "call_id", "name", "arguments")),
    **dict(_with_own_names(_function_output, "type", "call_id", "output")),
}
