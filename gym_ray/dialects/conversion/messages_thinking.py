"""Reasoning items of Responses and thinking blocks of Messages, each as the other.

A thinking block is signed by the engine that made it and must come back as it went out, so the signature travels as the
item's encrypted content. Redacted thinking has nothing but such a content: a mark in front of it tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects.conversion.answer_parts import reasoning_item, reasoning_texts
from gym_ray.dialects.conversion.carried import name_of

__all__ = ["redacted_item", "signed_item", "thinking_block"]

_REDACTED: Final = "redacted_thinking:"


def signed_item(text: str, signature: str) -> dict[str, Any]:
    """Return the reasoning item of a thinking block; an empty signature is none (A156)."""
    return reasoning_item([text] if text else [], signature)


def redacted_item(data: str) -> dict[str, Any]:
    """Return the opaque reasoning item of a redacted thinking block (W16)."""
    return signed_item("", _REDACTED + data)


def thinking_block(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the thinking block of a reasoning item, None when it holds neither text nor signature (A159).

    The texts of one item are joined with LF, as the call record joins them (A103): a signature covers one block.
    """
    text = "\n".join(part for part in reasoning_texts(item) if part)
    signature = name_of(item.get("encrypted_content"))
    if not text and signature.startswith(_REDACTED):
        return {"type": "redacted_thinking", "data": signature.removeprefix(_REDACTED)}
    if not text and not signature:
        return None
    return {"type": "thinking", "thinking": text, "signature": signature}
