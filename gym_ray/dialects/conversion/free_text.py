"""Custom tools, whose input is free text, for engines that know functions only: one text argument called ``input``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.dialects import fields

__all__ = ["as_arguments", "as_function", "as_input"]

_GRAMMAR: Final = ("syntax", "definition")


def as_function(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the facts of the function that stands for a custom tool; a grammar is told in its description.

    Raises:
        UnsupportedRequestError: The tool is malformed; status 422.
    """
    function: dict[str, Any] = {"name": fields.as_string(tool.get("name"), f"{path}.name")}
    told = [] if tool.get("description") is None else [fields.as_string(tool["description"], f"{path}.description")]
    form = fields.as_object({} if tool.get("format") is None else tool["format"], f"{path}.format")
    if form.get("type") == "grammar":
        syntax, definition = (fields.as_string(form.get(key), f"{path}.format.{key}") for key in _GRAMMAR)
        told.append(f"The input must follow this {syntax} grammar:\n{definition}")
    if told:
        function["description"] = "\n\n".join(told)
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {**function, "parameters": schema}


def as_arguments(text: str) -> str:
    """Return the arguments of the function's call for the input of a custom call."""
    return exact_json.dumps({"input": text}).decode("utf-8")


def as_input(arguments: str) -> str:
    """Return the input of a custom call for the arguments of the function's call; unfit ones are the input as is."""
    parsed = exact_json.loads_object(arguments.encode("utf-8", "surrogatepass"))
    text = None if parsed is None else parsed.get("input")
    return text if isinstance(text, str) else arguments
