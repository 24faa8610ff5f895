"""Reads the conversation of a Messages body as Responses input items (A156, A158)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.ascii_json import ascii_json
from gym_ray.dialects.conversion.answer_parts import function_call_item, message_item, text_part
from gym_ray.dialects.conversion.carried import shown
from gym_ray.dialects.conversion.messages_images import image_url
from gym_ray.dialects.conversion.messages_thinking import redacted_item, signed_item

__all__ = ["input_items", "joined_text"]

_ROLES: Final = ("user", "assistant", "system")
_OWNERS: Final = {
    "image": "user",
    "tool_result": "user",
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}
"""Kind of block -> the only role that may send it; text is anyone's."""


def input_items(messages: object, *, remote_images: bool) -> list[dict[str, Any]]:
    """Return the input items of ``messages``, in order; a missing list is an empty input (A155).

    Raises:
        UnsupportedRequestError: A role, block or member is malformed (422) or has no Responses form (400); the message
            names its path.
    """
    items: list[dict[str, Any]] = []
    for index, raw in enumerate([] if messages is None else fields.as_list(messages, "messages")):
        path = f"messages[{index}]"
        items += _Message(fields.as_object(raw, path), path, remote_images).items()
    return items


def joined_text(content: object, path: str) -> str:
    """Return a string, or the non-empty texts of text blocks joined with LF (A155).

    Raises:
        UnsupportedRequestError: A block is malformed (422) or no text (400); the message names its path.
    """
    if isinstance(content, str):
        return content
    texts = []
    for index, raw in enumerate(fields.as_list(content, path)):
        place = f"{path}[{index}]"
        block = fields.as_object(raw, place)
        if block.get("type") != "text":
            raise fields.unsupported(
                f"{place}.type", f"{shown(block.get('type'))} blocks are not supported here; use text"
            )
        texts.append(fields.as_string(block.get("text"), f"{place}.text"))
    return "\n".join(text for text in texts if text)


class _Message:
    """One message under way: neighbouring text and images gather until another block ends them."""

    def __init__(self, message: Mapping[str, Any], path: str, remote_images: bool) -> None:
        role = message.get("role")
        if role not in _ROLES:
            raise fields.malformed(f"{path}.role", f"{shown(role)} is none of {', '.join(_ROLES)}")
        self._role = str(role)
        self._content = message.get("content")
        self._path = f"{path}.content"
        self._remote_images = remote_images
        self._parts: list[dict[str, Any]] = []
        self._items: list[dict[str, Any]] = []

    def items(self) -> list[dict[str, Any]]:
        if isinstance(self._content, str):
            return [_plain_message(self._role, self._content)]
        for index, raw in enumerate(fields.as_list(self._content, self._path)):
            path = f"{self._path}[{index}]"
            self._take(fields.as_object(raw, path), path)
        self._flush()
        return self._items

    def _take(self, block: Mapping[str, Any], path: str) -> None:
        kind = block.get("type")
        if isinstance(kind, str) and _OWNERS.get(kind, self._role) != self._role:
            raise fields.malformed(f"{path}.type", f"{shown(kind)} blocks are not the {self._role}'s to send")
        if kind in ("text", "image"):
            self._parts.append(_part(block, path, remote_images=self._remote_images))
            return
        self._flush()
        self._items.append(self._item(kind, block, path))

    def _item(self, kind: object, block: Mapping[str, Any], path: str) -> dict[str, Any]:
        if kind == "tool_use":
            return _call(block, path)
        if kind == "tool_result":
            return _tool_result(block, path, remote_images=self._remote_images)
        if kind == "thinking":
            signature = block.get("signature")
            return signed_item(
                fields.as_string(block.get("thinking"), f"{path}.thinking"),
                "" if signature is None else fields.as_string(signature, f"{path}.signature"),
            )
        if kind == "redacted_thinking":
            return redacted_item(fields.as_string(block.get("data"), f"{path}.data"))
        raise fields.unsupported(f"{path}.type", f"{shown(kind)} blocks are not supported by this server's engine")

    def _flush(self) -> None:
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        if len(parts) == 1 and parts[0]["type"] == "input_text":
            self._items.append(_plain_message(self._role, parts[0]["text"]))
        elif self._role == "assistant":
            self._items.append(message_item([text_part(part["text"]) for part in parts]))
        else:
            self._items.append({"type": "message", "role": self._role, "content": parts})


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = fields.as_string(block.get("id"), f"{path}.id")
    name = fields.as_string(block.get("name"), f"{path}.name")
    try:
        arguments = ascii_json(fields.as_object(block.get("input"), f"{path}.input"))
    except ValueError:
        raise fields.malformed(f"{path}.input", "is nested too deeply") from None
    return function_call_item(call_id, name, arguments)


def _plain_message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def _part(block: Mapping[str, Any], path: str, *, remote_images: bool) -> dict[str, Any]:
    if block.get("type") == "text":
        return {"type": "input_text", "text": fields.as_string(block.get("text"), f"{path}.text")}
    source = fields.as_object(block.get("source"), f"{path}.source")
    url = image_url(source, f"{path}.source", remote=remote_images)
    return {"type": "input_image", "detail": "auto", "image_url": url}


def _tool_result(block: Mapping[str, Any], path: str, *, remote_images: bool) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": "function_call_output",
        "call_id": fields.as_string(block.get("tool_use_id"), f"{path}.tool_use_id"),
        "output": _tool_output(block.get("content"), f"{path}.content", remote_images=remote_images),
    }
    is_error = block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise fields.malformed(f"{path}.is_error", f"should be true or false, not {shown(is_error)}")
    if is_error:
        item["status"] = "incomplete"  # the one member of this item that can say that the tool did not succeed
    return item


def _tool_output(content: object, path: str, *, remote_images: bool) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for index, raw in enumerate(fields.as_list(content, path)):
        place = f"{path}[{index}]"
        block = fields.as_object(raw, place)
        if block.get("type") not in ("text", "image"):
            raise fields.unsupported(f"{place}.type", f"{shown(block.get('type'))} results are not supported; use text")
        parts.append(_part(block, place, remote_images=remote_images))
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts
