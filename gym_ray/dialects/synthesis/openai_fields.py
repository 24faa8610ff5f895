"""What Chat and Responses bodies share: tools, the choice among them, and the answer's format.

Chat nests the facts of a function below ``function`` and those of a schema below ``json_schema``; Responses does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from gym_ray.dialects import fields
from gym_ray.dialects.neutral import ResponseFormat, Tool, ToolChoice

__all__ = ["response_format", "tool_choice", "tools"]


def tools(value: object, *, nested: bool) -> tuple[Tool, ...]:
    """Return the function tools of a body.

    Raises:
        UnsupportedRequestError: One is malformed or of another type; the message names it.
    """
    if value is None:
        return ()
    found = []
    for index, raw in enumerate(fields.as_list(value, "tools")):
        path = f"tools[{index}]"
        item = fields.as_object(raw, path)
        if item.get("type") != "function":
            raise fields.unsupported(f"{path}.type", f"{item.get('type')!r} tools are not supported; use function")
        if nested:
            path = f"{path}.function"
            item = fields.as_object(item.get("function"), path)
        found.append(fields.tool(item.get("name"), item.get("description"), item.get("parameters"), path))
    return tuple(found)


def tool_choice(value: object, *, nested: bool) -> ToolChoice:
    """Return the choice of a body; ``auto`` when it makes none.

    Raises:
        UnsupportedRequestError: It is no choice that can be honoured.
    """
    if value is None or value == "auto":
        return ToolChoice("auto")
    if value == "none":
        return ToolChoice("none")
    if value == "required":
        return ToolChoice("required")
    if isinstance(value, Mapping) and value.get("type") == "function":
        path = "tool_choice.function" if nested else "tool_choice"
        named = fields.as_object(value.get("function"), path) if nested else value
        return ToolChoice("required", fields.as_text(named.get("name"), f"{path}.name"))
    raise fields.unsupported("tool_choice", "should be auto, none, required or a named function")


def response_format(value: object, path: str, *, nested: bool) -> ResponseFormat | None:
    """Return the format that the answer must have, None for text.

    Raises:
        UnsupportedRequestError: It is malformed or unknown; the message names it.
    """
    if value is None:
        return None
    form = fields.as_object(value, path)
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat()
    if kind == "json_schema":
        if nested:
            path = f"{path}.json_schema"
            form = fields.as_object(form.get("json_schema"), path)
        return ResponseFormat(fields.as_json_object(form.get("schema"), f"{path}.schema"))
    raise fields.unsupported(f"{path}.type", f"{kind!r} is none of text, json_object, json_schema")
