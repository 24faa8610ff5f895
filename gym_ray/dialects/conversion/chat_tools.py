"""Tools, the choice among them and the answer's format between Chat and Responses bodies (A164).

Chat nests the facts of a function below ``function`` and those of a schema below ``json_schema``; Responses does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import free_text
from gym_ray.dialects.conversion.carried import shown

__all__ = ["flat_format", "flat_settings", "nested_format", "nested_settings"]

_FUNCTION: Final = ("name", "description", "parameters", "strict")
_SCHEMA: Final = ("name", "description", "schema", "strict")
_MODES: Final = ("auto", "none", "required")


def nested_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a Responses body in the Chat shape.

    Without tools there are none of them, because Chat servers refuse the others then (A164). Custom tools become
    functions with one text argument.

    Raises:
        UnsupportedRequestError: A tool is malformed (422) or runs at a provider (400), or the choice cannot be made;
            the message names it.
    """
    tools = []
    for tool, path in _tools(body.get("tools"), ("function", "custom")):
        custom = tool["type"] == "custom"
        function = free_text.as_function(tool, path) if custom else _members(tool, _FUNCTION, path)
        tools.append({"type": "function", "function": function})
    return _settings(body, tools, _nested_choice)


def flat_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a Chat body in the Responses shape.

    Chat's defaults are written out, because the other dialect's differ: not strict, and no parameters.

    Raises:
        UnsupportedRequestError: A tool is malformed (422) or no function (400), or the choice cannot be made; the
            message names it.
    """
    defaults = {"description": None, "parameters": {"type": "object", "properties": {}}, "strict": False}
    tools = []
    for tool, path in _tools(body.get("tools"), ("function",)):
        place = f"{path}.function"
        function = fields.as_object(tool.get("function"), place)
        tools.append({"type": "function", **defaults, **_members(function, _FUNCTION, place)})
    return _settings(body, tools, _flat_choice)


def _settings(
    body: Mapping[str, Any], tools: list[dict[str, Any]], choice_of: Callable[[object], Any]
) -> dict[str, Any]:
    choice, parallel = body.get("tool_choice"), body.get("parallel_tool_calls")
    if not tools:
        if choice is not None and choice not in ("auto", "none"):
            raise fields.unsupported("tool_choice", f"{_wish(choice)} demands a call, but tools is empty")
        return {}
    wanted: dict[str, Any] = {"tools": tools}
    if choice is not None:
        wanted["tool_choice"] = choice_of(choice)
    if parallel is not None:
        wanted["parallel_tool_calls"] = parallel
    return wanted


def _wish(choice: object) -> str:
    return shown(choice) if isinstance(choice, str) else "a named tool"


def _tools(value: object, kinds: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], str]]:
    for index, raw in enumerate(() if value is None else fields.as_list(value, "tools")):
        path = f"tools[{index}]"
        tool = fields.as_object(raw, path)
        kind = tool.get("type")
        if kind not in kinds:
            problem = f"{shown(kind)} tools have no form in the engine's dialect; use function tools"
            raise fields.unsupported(f"{path}.type", problem)
        yield tool, path


def _members(value: Mapping[str, Any], names: Sequence[str], path: str) -> dict[str, Any]:
    """The members that are set. The name must be a text and a schema an object; what it says the engine judges."""
    fields.as_string(value.get("name"), f"{path}.name")
    for name in ("parameters", "schema"):
        if name in names and value.get(name) is not None:
            fields.as_object(value[name], f"{path}.{name}")
    return {name: value[name] for name in names if value.get(name) is not None}


def _nested_choice(value: object) -> Any:
    named = _named(value, ("function", "custom"))
    if named is None:
        return value
    return {"type": "function", "function": {"name": fields.as_string(named.get("name"), "tool_choice.name")}}


def _flat_choice(value: object) -> Any:
    named = _named(value, ("function",))
    if named is None:
        return value
    function = fields.as_object(named.get("function"), "tool_choice.function")
    return {"type": "function", "name": fields.as_string(function.get("name"), "tool_choice.function.name")}


def _named(value: object, kinds: Sequence[str]) -> Mapping[str, Any] | None:
    """The object of a choice that names a tool; None for a mode."""
    if isinstance(value, str) and value in _MODES:
        return None
    if isinstance(value, Mapping):
        if value.get("type") in kinds:
            return value
        value = value.get("type")
    raise fields.unsupported("tool_choice", f"{shown(value)} is none of {', '.join(_MODES)} or a named function")


def nested_format(value: object) -> dict[str, Any] | None:
    """Return the ``text.format`` of a Responses body as Chat's ``response_format``; None for plain text.

    Raises:
        UnsupportedRequestError: It is malformed (422) or unknown (400).
    """
    form, kind = _format(value, "text.format")
    if kind != "json_schema":
        return None if kind == "text" else {"type": kind}
    return {"type": kind, "json_schema": _members(form, _SCHEMA, "text.format")}


def flat_format(value: object) -> dict[str, Any] | None:
    """Return Chat's ``response_format`` as the ``text.format`` of a Responses body; None for plain text.

    Raises:
        UnsupportedRequestError: It is malformed (422) or unknown (400).
    """
    form, kind = _format(value, "response_format")
    if kind != "json_schema":
        return None if kind == "text" else {"type": kind}
    path = "response_format.json_schema"
    return {"type": kind, **_members(fields.as_object(form.get("json_schema"), path), _SCHEMA, path)}


def _format(value: object, path: str) -> tuple[Mapping[str, Any], str]:
    if value is None:
        return {}, "text"
    form = fields.as_object(value, path)
    kind = form.get("type")
    if isinstance(kind, str) and kind in ("text", "json_object", "json_schema"):
        return form, kind
    raise fields.unsupported(f"{path}.type", f"{shown(kind)} is none of text, json_object, json_schema")
