"""What every dialect's tool choice must satisfy."""

from __future__ import annotations

from collections.abc import Sequence

from gym_ray.dialects import fields
from gym_ray.dialects.neutral import Tool, ToolChoice

__all__ = ["checked_choice"]


def checked_choice(choice: ToolChoice, tools: Sequence[Tool]) -> ToolChoice:
    """Return ``choice`` if the tools can satisfy it.

    Raises:
        UnsupportedRequestError: A call is demanded without tools, a named tool is not declared, or two tools share a
            name; the message names the field.
    """
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise fields.malformed("tools", f"two tools are called {name!r}")
    if choice.mode == "required" and not tools:
        raise fields.malformed("tool_choice", "demands a call, but tools is empty")
    if choice.name is not None and choice.name not in names:
        raise fields.malformed("tool_choice", f"names {choice.name!r}, which is not among tools: {', '.join(names)}")
    return choice
