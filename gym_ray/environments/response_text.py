"""The texts of a Responses object, as a verifier reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["message_texts"]


def message_texts(response: Mapping[str, Any]) -> list[str]:
    """Return the output texts of the response's messages, one per message, in order; other items have none (D151)."""
    output = response.get("output")
    items = output if isinstance(output, list) else []
    return [_text(item.get("content")) for item in items if isinstance(item, Mapping) and item.get("type") == "message"]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "output_text"]
    return "".join(text for text in texts if isinstance(text, str))
