"""Typed reading of request fields; every complaint names the field by its path in the body.

What a field breaks raises :class:`~gym_ray.errors.UnsupportedRequestError`, from every function here: status 422 where
it is malformed, 400 where it is well-formed and cannot be honoured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray.dialects.neutral import Tool
from gym_ray.errors import UnsupportedRequestError

__all__ = [
    "as_json_object",
    "as_list",
    "as_object",
    "as_string",
    "as_text",
    "malformed",
    "number",
    "refuse",
    "require",
    "stop_texts",
    "text_of",
    "tool",
    "unsupported",
    "whole",
]


def malformed(path: str, problem: str) -> UnsupportedRequestError:
    """Return the error for a field whose form is wrong."""
    return UnsupportedRequestError(f"{path}: {problem}", 422)


def unsupported(path: str, problem: str) -> UnsupportedRequestError:
    """Return the error for a well-formed field that cannot be honoured."""
    return UnsupportedRequestError(f"{path}: {problem}", 400)


def require(body: Mapping[str, Any], key: str) -> Any:
    """Return a field that must be there and not null."""
    value = body.get(key)
    if value is None:
        raise malformed(key, "is required")
    return value


def as_object(value: object, path: str) -> Mapping[str, Any]:
    """Return ``value`` if it is an object."""
    if isinstance(value, Mapping):
        return value
    raise malformed(path, f"should be an object, not {_kind(value)}")


def as_json_object(value: object, path: str) -> Mapping[str, Any]:
    """Return ``value`` if it is an object whose every string UTF-8 can carry, keys included."""
    checked = as_object(value, path)
    try:
        json.dumps(checked, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise malformed(path, "has a lone surrogate in a key or a string") from None
    return checked


def as_list(value: object, path: str) -> Sequence[Any]:
    """Return ``value`` if it is a list."""
    if isinstance(value, list | tuple):
        return value
    raise malformed(path, f"should be a list, not {_kind(value)}")


def as_string(value: object, path: str) -> str:
    """Return ``value`` if it is a string; for text that is only carried, so lone surrogates pass (B41)."""
    if isinstance(value, str):
        return value
    raise malformed(path, f"should be a string, not {_kind(value)}")


def as_text(value: object, path: str) -> str:
    """Return ``value`` if it is a string that UTF-8 can carry."""
    text = as_string(value, path)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise malformed(path, f"has a lone surrogate at character {error.start}") from None
    return text


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def number(body: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    """Return an optional number within bounds, both allowed."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise malformed(key, f"should be a number, not {_kind(value)}")
    if not low <= value <= high:
        raise malformed(key, f"should lie between {low:g} and {high:g}, not {value}")
    return float(value)


def whole(body: Mapping[str, Any], key: str, low: int, high: int = 2**31 - 1) -> int | None:
    """Return an optional whole number within bounds, both allowed."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise malformed(key, f"should be a whole number, not {_kind(value)}")
    if not low <= value <= high:
        raise malformed(key, f"should lie between {low} and {high}, not {value}")
    return value


def stop_texts(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the stop texts of a request: a string, or a list of non-empty strings."""
    value = body.get(key)
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else as_list(value, key)
    texts = tuple(as_text(item, f"{key}[{index}]") for index, item in enumerate(items))
    if "" in texts:
        raise malformed(key, "holds an empty string")
    return texts


def refuse(body: Mapping[str, Any], fields: Mapping[str, tuple[Any, ...]], reason: str) -> None:
    """Refuse each of ``fields`` that is set to anything but null or one of its harmless values."""
    for key, harmless in fields.items():
        value = body.get(key)
        if value is not None and not any(type(value) is type(item) and value == item for item in harmless):
            raise unsupported(key, f"{reason}; leave it out")


def text_of(content: object, path: str, kinds: frozenset[str]) -> str:
    """Return the text of a message's content: a string, or parts of the given kinds joined as they are.

    Raises:
        UnsupportedRequestError: A part is of another kind (images, audio, files …); the message names it.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return as_text(content, path)
    texts = []
    for index, raw in enumerate(as_list(content, path)):
        part, place = as_object(raw, f"{path}[{index}]"), f"{path}[{index}]"
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            raise unsupported(f"{place}.type", f"{kind!r} parts are not supported; the embedded model reads text only")
        key = "refusal" if kind == "refusal" else "text"
        texts.append(as_text(part.get(key), f"{place}.{key}"))
    return "".join(texts)


def tool(name: object, description: object, parameters: object, path: str) -> Tool:
    """Return a checked function tool."""
    text = as_text(name, f"{path}.name")
    if not text:
        raise malformed(f"{path}.name", "is empty")
    return Tool(
        name=text,
        description="" if description is None else as_text(description, f"{path}.description"),
        parameters={} if parameters is None else as_json_object(parameters, f"{path}.parameters"),
    )
