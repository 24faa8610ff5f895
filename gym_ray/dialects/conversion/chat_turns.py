"""Writes Responses input items as Chat messages (A163)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import chat_reasoning, free_text
from gym_ray.dialects.conversion.answer_parts import reasoning_texts
from gym_ray.dialects.conversion.carried import shown

__all__ = ["messages_of"]

_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_ROLES: Final = ("user", "assistant", "system", "developer")
_INSTRUCTING: Final = ("system", "developer")
_PARAGRAPH: Final = "\n\n"


class _Turn:
    """One assistant message under way: neighbouring reasoning, messages and calls are one turn of the model."""

    __slots__ = ("_calls", "_refusals", "_spoke", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._spoke = False

    def think(self, item: Mapping[str, Any]) -> None:
        self._texts.append(chat_reasoning.tagged(reasoning_texts(item)))

    def say(self, content: object, path: str) -> None:
        self._spoke = True
        if isinstance(content, str):
            self._texts.append(content)
            return
        for part, place in _parts(content, path):
            if part.get("type") == "refusal":
                self._refusals.append(fields.as_string(part.get("refusal"), f"{place}.refusal"))
            else:
                self._texts.append(_text_part(part, place))

    def call(self, item: Mapping[str, Any], path: str) -> None:
        if item.get("namespace") is not None:
            raise fields.unsupported(f"{path}.namespace", "chat calls have no namespace; join it with the name")
        call_id, name = (fields.as_string(item.get(key), f"{path}.{key}") for key in ("call_id", "name"))
        if item.get("type") == "custom_tool_call":
            arguments = free_text.as_arguments(fields.as_string(item.get("input"), f"{path}.input"))
        else:
            arguments = fields.as_string(item.get("arguments"), f"{path}.arguments")
        function = {"name": name, "arguments": arguments}
        self._calls.append({"id": call_id, "type": "function", "function": function})

    def messages(self) -> list[dict[str, Any]]:
        """The finished message; none where the turn holds only reasoning that is encrypted or empty."""
        content, refusal = "".join(self._texts), "".join(self._refusals)
        if not (content or refusal or self._calls or self._spoke):
            return []
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if not content and (refusal or self._calls):
            message["content"] = None
        if refusal:
            message["refusal"] = refusal
        if self._calls:
            message["tool_calls"] = self._calls
        return [message]


def messages_of(items: object, instructions: object) -> list[dict[str, Any]]:
    """Return the Chat messages of a Responses request.

    Args:
        items: Its ``input``: a text, or a list of items.
        instructions: Its ``instructions``; with them, the system and developer messages at the start join them.

    Raises:
        UnsupportedRequestError: An item is malformed (422) or has no Chat form (400); the message names it.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": [{"type": "input_text", "text": items}]}]
    given = fields.as_list(items, "input")
    start = _leading(given) if instructions else 0
    messages = _messages(given, start)
    if not instructions:
        return messages
    texts = [fields.as_string(instructions, "instructions")]
    for index in range(start):
        texts.extend(_texts(given[index].get("content"), f"input[{index}].content"))
    return [{"role": "system", "content": _PARAGRAPH.join(part for part in texts if part)}, *messages]


def _leading(items: Sequence[Any]) -> int:
    """How many system and developer messages stand before anything else."""
    for index, item in enumerate(items):
        plain = isinstance(item, Mapping) and item.get("type") in (None, "message") and item.get("phase") is None
        if not plain or item.get("role") not in _INSTRUCTING:
            return index
    return len(items)


def _messages(items: Sequence[Any], start: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    turn = _Turn()
    for index in range(start, len(items)):
        path = f"input[{index}]"
        item = fields.as_object(items[index], path)
        if _continues(turn, item, path):
            continue
        messages += turn.messages()
        turn = _Turn()
        messages.append(_message(item, path))
    return messages + turn.messages()


def _continues(turn: _Turn, item: Mapping[str, Any], path: str) -> bool:
    """Add an item that the assistant made to its turn; False for any other."""
    kind = item.get("type")
    if kind == "reasoning":
        turn.think(item)
    elif kind in ("function_call", "custom_tool_call"):
        turn.call(item, path)
    elif kind in (None, "message") and item.get("role") == "assistant":
        _without_phase(item, path)
        turn.say(item.get("content"), f"{path}.content")
    else:
        return False
    return True


def _message(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = item.get("type")
    if kind in ("function_call_output", "custom_tool_call_output"):
        output, place = item.get("output"), f"{path}.output"
        return {
            "role": "tool",
            "tool_call_id": fields.as_string(item.get("call_id"), f"{path}.call_id"),
            "content": output if isinstance(output, str) else [_plain(part, at) for part, at in _parts(output, place)],
        }
    if kind not in (None, "message"):
        raise fields.unsupported(f"{path}.type", f"{shown(kind)} items have no chat form")
    role, content, place = item.get("role"), item.get("content"), f"{path}.content"
    if role not in _ROLES:
        raise fields.malformed(f"{path}.role", f"{shown(role)} is none of {', '.join(_ROLES)}")
    _without_phase(item, path)
    read = _user_part if role == "user" else _plain
    return {
        "role": role,
        "content": content if isinstance(content, str) else [read(part, at) for part, at in _parts(content, place)],
    }


def _without_phase(item: Mapping[str, Any], path: str) -> None:
    if item.get("phase") is not None:
        raise fields.unsupported(f"{path}.phase", "chat messages have no phase; leave it out")


def _parts(content: object, path: str) -> list[tuple[Mapping[str, Any], str]]:
    parts = enumerate(fields.as_list(content, path))
    return [(fields.as_object(part, f"{path}[{index}]"), f"{path}[{index}]") for index, part in parts]


def _texts(content: object, path: str) -> list[str]:
    return [content] if isinstance(content, str) else [_text_part(part, at) for part, at in _parts(content, path)]


def _text_part(part: Mapping[str, Any], path: str) -> str:
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise fields.unsupported(f"{path}.type", f"{shown(kind)} parts have no chat form here")
    return fields.as_string(part.get("text"), f"{path}.text")


def _plain(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {"type": "text", "text": _text_part(part, path)}


def _user_part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "input_image":
        return {"type": "image_url", "image_url": _image(part, path)}
    if kind == "input_file":
        return {"type": "file", "file": _file(part, path)}
    return _plain(part, path)


def _image(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    if part.get("file_id") is not None:
        raise fields.unsupported(f"{path}.file_id", "images by file id have no chat form; send a URL or a data URL")
    image = {"url": fields.as_string(part.get("image_url"), f"{path}.image_url")}
    detail = part.get("detail")
    if detail is None:
        return image
    if detail == "original":
        raise fields.unsupported(f"{path}.detail", "'original' has no chat form; use auto, low or high")
    return {**image, "detail": fields.as_string(detail, f"{path}.detail")}


def _file(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    for key in ("file_id", "file_url"):
        if part.get(key) is not None:
            raise fields.unsupported(f"{path}.{key}", "files by reference have no chat form; send file_data")
    data = {"file_data": fields.as_string(part.get("file_data"), f"{path}.file_data")}
    name = part.get("filename")
    return data if name is None else {**data, "filename": fields.as_string(name, f"{path}.filename")}
