"""Writes Chat messages as Responses input items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import chat_reasoning
from gym_ray.dialects.conversion.answer_parts import message_item, text_part
from gym_ray.dialects.conversion.carried import shown

__all__ = ["items_of"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_NOT_CARRIED: Final[Mapping[str, tuple[Any, ...]]] = {"audio": (), "function_call": ()}


def items_of(messages: object) -> list[dict[str, Any]]:
    """Return the input items of a Chat request's messages.

    An assistant's message becomes its reasoning, its text and its calls, in this order. Reasoning is found in
    ``reasoning_content``, ``reasoning``, ``reasoning_details`` and ``<think>`` sections. The ``name`` of a speaker has
    no place there and is left out.

    Raises:
        UnsupportedRequestError: A message is malformed (422) or cannot be carried (400); the message names it.
    """
    items: list[dict[str, Any]] = []
    for index, raw in enumerate(fields.as_list(messages, "messages")):
        path = f"messages[{index}]"
        message = fields.as_object(raw, path)
        role = message.get("role")
        if role == "function":
            raise fields.unsupported(f"{path}.role", "'function' messages are not supported; use tool_calls and tool")
        if role not in _ROLES:
            raise fields.malformed(f"{path}.role", f"{shown(role)} is none of {', '.join(_ROLES)}")
        if role == "assistant":
            items += _assistant(message, path)
        elif role == "tool":
            items.append(_tool_result(message, path))
        else:
            items.append({"type": "message", "role": role, "content": _content(message, path)})
    return items


def _tool_result(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        "type": "function_call_output",
        "call_id": fields.as_string(message.get("tool_call_id"), f"{path}.tool_call_id"),
        "output": _content(message, path),
    }


def _content(message: Mapping[str, Any], path: str) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    place = f"{path}.content"
    parts = enumerate(fields.as_list(content, place))
    return [_part(fields.as_object(part, f"{place}[{index}]"), f"{place}[{index}]") for index, part in parts]


def _part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": fields.as_string(part.get("text"), f"{path}.text")}
    if kind == "image_url":
        image = fields.as_object(part.get("image_url"), f"{path}.image_url")
        detail = image.get("detail")
        return {
            "type": "input_image",
            "image_url": fields.as_string(image.get("url"), f"{path}.image_url.url"),
            "detail": "auto" if detail is None else fields.as_string(detail, f"{path}.image_url.detail"),
        }
    if kind == "file":
        file = fields.as_object(part.get("file"), f"{path}.file")
        given = {key: file[key] for key in ("file_data", "file_id", "filename") if file.get(key) is not None}
        return {
            "type": "input_file",
            **{key: fields.as_string(value, f"{path}.file.{key}") for key, value in given.items()},
        }
    raise fields.unsupported(f"{path}.type", f"{shown(kind)} parts are not supported; use text, image_url or file")


def _assistant(message: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    for key in _NOT_CARRIED:
        if message.get(key) is not None:
            raise fields.unsupported(f"{path}.{key}", "has no form in the engine's dialect; use content and tool_calls")
    said, refusal = _said(message, path)
    sections, said = chat_reasoning.split(said)
    items = chat_reasoning.reasoning_items(message, sections)
    calls = message.get("tool_calls")
    places = enumerate(() if calls is None else fields.as_list(calls, f"{path}.tool_calls"))
    called = [_call(call, f"{path}.tool_calls[{index}]") for index, call in places]
    if refusal:
        items.append(_refused(said, refusal))
    elif said or not (items or called):
        items.append({"type": "message", "role": "assistant", "content": said})
    return items + called


def _said(message: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Text and refusal of an assistant's message; its parts are one text."""
    content = message.get("content")
    refused = message.get("refusal")
    refusals = [] if refused is None else [fields.as_string(refused, f"{path}.refusal")]
    if content is None or isinstance(content, str):
        return content or "", "".join(refusals)
    texts = []
    for index, raw in enumerate(fields.as_list(content, f"{path}.content")):
        place = f"{path}.content[{index}]"
        part = fields.as_object(raw, place)
        kind = part.get("type")
        if kind == "text":
            texts.append(fields.as_string(part.get("text"), f"{place}.text"))
        elif kind == "refusal":
            refusals.append(fields.as_string(part.get("refusal"), f"{place}.refusal"))
        else:
            raise fields.unsupported(f"{place}.type", f"{shown(kind)} parts are not supported; use text")
    return "".join(texts), "".join(refusals)


def _refused(said: str, refusal: str) -> dict[str, Any]:
    """A message as the engine would have made it: input messages of the short form cannot hold a refusal."""
    return message_item([*([text_part(said)] if said else []), {"type": "refusal", "refusal": refusal}])


def _call(raw: object, path: str) -> dict[str, Any]:
    call = fields.as_object(raw, path)
    kind = call.get("type")
    if kind is not None and kind != "function":
        raise fields.unsupported(f"{path}.type", f"{shown(kind)} calls are not supported; use function")
    function = fields.as_object(call.get("function"), f"{path}.function")
    return {
        "type": "function_call",
        "call_id": fields.as_string(call.get("id"), f"{path}.id"),
        "name": fields.as_string(function.get("name"), f"{path}.function.name"),
        "arguments": fields.as_string(function.get("arguments"), f"{path}.function.arguments"),
        "status": "completed",
    }
