"""One conversation item as the bytes that are hashed, laid out as the contract fixes them (B28).

A field is a tag, the length of its text in eight bytes, and the text. This is the general path, which works for every
item; the fast paths must give the same bytes.
"""

from __future__ import annotations

from typing import Any, Final

from gym_ray.token_id_capture.hashing.canonical_items import (
    Call,
    Part,
    as_text,
    content_parts,
    is_model_authored,
    tool_calls,
    tool_results,
)
from gym_ray.token_id_capture.hashing.fast_paths import FIELD, fast_path
from gym_ray.token_id_capture.hashing.strict_items import uncovered_json

__all__ = ["context_bytes", "item_bytes", "spine_bytes"]

# Raw Anthropic history echoes them inside a message; the recorded output holds them as reasoning items (W34).
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})


def spine_bytes(item: dict[str, Any]) -> bytes:
    """Return what an item that the model wrote adds to the fingerprint.

    Raises:
        ValueError: It cannot be hashed exactly (B32-B35).
    """
    return _spine(content_parts(item), tool_calls(item))


def context_bytes(item: dict[str, Any]) -> bytes:
    """Return what an item adds to the conversation digest.

    Raises:
        ValueError: It cannot be hashed exactly (B32-B38).
    """
    return _context(item, content_parts(item), tool_calls(item))


def item_bytes(item: dict[str, Any]) -> tuple[bytes | None, bytes, bytes]:
    """Return all three parts of an item: its spine bytes, its context bytes, and what neither of them covers (W33).

    The spine bytes are None if the model did not write the item. The third part is empty for most items.

    Raises:
        ValueError: The item cannot be hashed exactly (B32-B38).
    """
    pair = fast_path(item)
    if pair is not None:
        return *pair, b""
    parts, calls = content_parts(item), tool_calls(item)
    context = _context(item, parts, calls)
    return _spine(parts, calls) if is_model_authored(item) else None, context, uncovered_json(item)


def _spine(parts: list[Part], calls: list[Call]) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        if part[0] not in _THINKING:
            _add_pair(pieces, 0x00, *part)
    for identity, name, arguments in calls:
        _add_pair(pieces, 0x02, identity, name)
        _add(pieces, 0x04, arguments)
    return b"".join(pieces)


def _context(item: dict[str, Any], parts: list[Part], calls: list[Call]) -> bytes:
    pieces: list[bytes] = []
    _add(pieces, 0x00, as_text(item.get("role") or item.get("type") or ""))
    for part in parts:
        _add_pair(pieces, 0x01, *part)
    for identity, name, arguments in calls:
        _add_pair(pieces, 0x03, identity, name)
        _add(pieces, 0x05, arguments)
    for result in tool_results(item):
        _add_pair(pieces, 0x06, *result)
    return b"".join(pieces)


def _add(pieces: list[bytes], tag: int, text: str) -> None:
    encoded = text.encode()  # a lone surrogate has no UTF-8 form: UnicodeEncodeError is a ValueError
    pieces += (FIELD(tag, len(encoded)), encoded)


def _add_pair(pieces: list[bytes], tag: int, first: str, second: str) -> None:
    one, two = first.encode(), second.encode()
    pieces += (FIELD(tag, len(one)), one, FIELD(tag + 1, len(two)), two)
