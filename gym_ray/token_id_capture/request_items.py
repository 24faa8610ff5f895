"""The items of a request that a conversation is recognised by (B25-B27)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

__all__ = ["REQUEST_ENVELOPE_ROLE", "request_items"]

REQUEST_ENVELOPE_ROLE: Final = "_ng_request_envelope"


def request_items(body: Mapping[str, Any] | None) -> list[object]:
    """Return the turns of a Chat Completions or Responses request, in order, sharing them with ``body``.

    ``messages`` if it is a list, else ``input`` if it is one; a text ``input`` has no item (B25). Tools and
    instructions stand in front as one pseudo-turn, so that changing them changes the context (B26). Requests in the
    Messages dialect are converted to Responses first (B27).
    """
    if not body:
        return []
    items = _turns(body)
    instructions, tools = body.get("instructions"), body.get("tools")
    if instructions or tools:
        envelope = {"instructions": instructions, "tools": tools}
        text = json.dumps(envelope, sort_keys=True, default=str)
        items.insert(0, {"role": REQUEST_ENVELOPE_ROLE, "content": text})
    return items


def _turns(body: Mapping[str, Any]) -> list[object]:
    messages, given = body.get("messages"), body.get("input")
    if isinstance(messages, list):
        return [_plain(item) for item in messages]
    if isinstance(given, list):
        return [_plain(item) for item in given if item is not None]
    return []


def _plain(item: object) -> object:
    return item.model_dump(mode="json") if isinstance(item, BaseModel) else item
