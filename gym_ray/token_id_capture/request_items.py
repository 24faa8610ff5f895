"""The items of a request that a conversation is recognised by (B25-B27)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

__all__ = ["REQUEST_ENVELOPE_ROLE", "RequestItems", "is_text_turn", "request_items", "text_input_of", "text_turn"]

REQUEST_ENVELOPE_ROLE: Final = "_ng_request_envelope"

_TEXT_BLOCKS: Final = ("input_text", "text")


class RequestItems(list[object]):
    """The items of a request, equal to the plain list, with the text that a text ``input`` was.

    Such a text has no item (B25), and its client goes on with a list in which it is the user's turn. Carried beside the
    items, it says which turn that must be (W33).

    Args:
        items: The items; a text that they carry is carried on.
        text_input: The text, if the request has one.

    Attributes:
        text_input: The text, None for a request with a list.
    """

    __slots__ = ("text_input",)

    def __init__(self, items: Iterable[object] = (), text_input: str | None = None) -> None:
        super().__init__(items)
        self.text_input = text_input_of(items) if text_input is None else text_input


def text_input_of(items: object) -> str | None:
    """Return the text ``input`` that request items carry, None if they carry none."""
    return items.text_input if isinstance(items, RequestItems) else None


def text_turn(text: str) -> dict[str, Any]:
    """Return the user's turn that a text ``input`` stands for."""
    return {"role": "user", "content": text}


def is_text_turn(item: object) -> bool:
    """Whether an item is a user's message of one text, in any spelling of it."""
    if not isinstance(item, dict) or item.get("role") != "user" or item.get("type") not in (None, "message"):
        return False
    content = item.get("content")
    if not isinstance(content, list):
        return isinstance(content, str)
    block = content[0] if len(content) == 1 else None
    return isinstance(block, dict) and block.get("type") in _TEXT_BLOCKS and isinstance(block.get("text"), str)


def request_items(body: Mapping[str, Any] | None) -> RequestItems:
    """Return the turns of a Chat Completions or Responses request, in order, sharing them with ``body``.

    ``messages`` if it is a list, else ``input`` if it is one; a text ``input`` has no item (B25) and is carried beside
    them. Tools and instructions stand in front as one pseudo-turn, so that changing them changes the context (B26).
    Requests in the Messages dialect are converted to Responses first (B27).
    """
    if not body:
        return RequestItems()
    items = _turns(body)
    instructions, tools = body.get("instructions"), body.get("tools")
    if instructions or tools:
        envelope = {"instructions": instructions, "tools": tools}
        text = json.dumps(envelope, sort_keys=True, default=str)
        items.insert(0, {"role": REQUEST_ENVELOPE_ROLE, "content": text})
    return items


def _turns(body: Mapping[str, Any]) -> RequestItems:
    messages, given = body.get("messages"), body.get("input")
    if isinstance(messages, list):
        return RequestItems(map(_plain, messages))
    if isinstance(given, list):
        return RequestItems(_plain(item) for item in given if item is not None)
    return RequestItems((), given if isinstance(given, str) else None)


def _plain(item: object) -> object:
    return item.model_dump(mode="json") if isinstance(item, BaseModel) else item
