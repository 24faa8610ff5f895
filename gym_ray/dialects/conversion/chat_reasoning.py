"""Reasoning between Chat and Responses: ``<think>`` tags, fields of a message, reasoning items (A163, A166, B26).

Chat has no field of its own for reasoning. Servers use ``reasoning_content``, ``reasoning``, ``reasoning_details`` or
tags in the text; all are read, and ``reasoning_content`` is written. What a provider signed or encrypted travels in
``reasoning_details``, because a provider refuses a history that lost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gym_ray.dialects.conversion.answer_parts import reasoning_item, reasoning_texts
from gym_ray.dialects.conversion.carried import name_of, objects
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["message_fields", "reasoning_items", "split", "tagged"]

_OPEN, _CLOSE = "<think>", "</think>"


def split(content: str) -> tuple[list[str], str]:
    """Return the ``<think>`` sections of a text, and the text without them, otherwise unchanged.

    A section that an answer cut short left open counts only where no word of the answer precedes it; a tag further on
    may be what the model talks about.
    """
    sections: list[str] = []
    kept: list[str] = []
    position = 0
    while (start := content.find(_OPEN, position)) >= 0:
        end = content.find(_CLOSE, start)
        if end < 0:
            if "".join(kept).strip() or content[position:start].strip():
                break
            end = len(content)
        kept.append(content[position:start])
        sections.append(content[start + len(_OPEN) : end])
        position = end + len(_CLOSE)
    kept.append(content[position:])
    return sections, "".join(kept)


def tagged(texts: Iterable[str]) -> str:
    """Return each text in ``<think>`` tags."""
    return "".join(f"{_OPEN}{text}{_CLOSE}" for text in texts)


def reasoning_items(message: Mapping[str, Any], sections: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the reasoning items of a Chat message.

    Args:
        message: An assistant's message, in a request or in an answer.
        sections: ``<think>`` sections that were cut from its text.

    Returns:
        One item with all that is open; more only where details were signed or encrypted one by one. The same text in
        two places is taken once (B26).
    """
    items = _from_details(message.get("reasoning_details"))
    told = [text for item in items for text in reasoning_texts(item)]
    field = name_of(message.get("reasoning_content"), message.get("reasoning"))
    texts = [field] if field and not told else []
    known = {text.strip() for text in (*told, field) if text}
    texts += [section for section in sections if section.strip() not in known]
    if not texts:
        return items
    if items and not told:  # the details hold what is encrypted, the field its readable side
        return [reasoning_item(texts, items[0]["encrypted_content"], items[0]["id"]), *items[1:]]
    return [*items, reasoning_item(texts)]


def _from_details(details: object) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for detail in objects(details):
        text = name_of(detail.get("text"), detail.get("summary"))
        sealed = name_of(detail.get("signature"), detail.get("data"))
        item_id = name_of(detail.get("id"))
        if not text and not sealed:
            continue
        last = items[-1] if items else None
        if last is not None and not sealed and "encrypted_content" not in last and item_id in ("", last["id"]):
            last["summary"].append({"type": "summary_text", "text": text})
        else:
            items.append(reasoning_item([text] if text else [], sealed, item_id))
    return items


def message_fields(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that carry reasoning items in a Chat message; :func:`reasoning_items` reads them back."""
    found: dict[str, Any] = {}
    joined = "\n".join(text for item in items for text in reasoning_texts(item) if text)
    if joined:
        found["reasoning_content"] = joined
    if any(name_of(item.get("encrypted_content")) for item in items):
        found["reasoning_details"] = [_detail(item) for item in items]
    return found


def _detail(item: Mapping[str, Any]) -> dict[str, Any]:
    text, sealed = "\n".join(reasoning_texts(item)), name_of(item.get("encrypted_content"))
    head = {"id": name_of(item.get("id")) or fresh_id("rs_")}
    if not sealed:
        return {**head, "type": "reasoning.summary", "summary": text}
    if text:
        return {**head, "type": "reasoning.text", "text": text, "signature": sealed}
    return {**head, "type": "reasoning.encrypted", "data": sealed}
