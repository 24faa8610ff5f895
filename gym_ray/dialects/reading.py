"""Reads an answer of any dialect: tool calls, reasoning, why it ended.

The shape of an answer decides how it is read, not the route it came from (A100): servers answer in each other's shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from gym_ray import exact_json
from gym_ray.dialects import chat, messages, responses

__all__ = ["finish_reason", "parse_arguments", "read_answer", "reasoning", "tool_calls"]

_DEEPEST_LEVELS = 240
"""Arguments that nest deeper, as those of a model that loops do, could not be stored in a record, which adds seven."""


def _dialect_of(response: dict[str, Any]) -> ModuleType | None:
    if isinstance(response.get("output"), list):
        return responses
    if isinstance(response.get("choices"), list):
        return chat
    return messages if isinstance(response.get("content"), list) else None


def read_answer(response: dict[str, Any]) -> tuple[str | None, list[dict[str, Any]], str | None]:
    """Return finish reason, tool calls and reasoning of an answer, as the functions of these names do.

    Every call that is captured comes through here, so it walks over an answer once.
    """
    reason = finish_reason(response)
    if isinstance(response.get("output"), list):
        calls, texts = responses.calls_and_thoughts(response)
        return reason, _tool_calls(calls) if calls else [], _joined(texts) if texts else None
    dialect = _dialect_of(response)
    if dialect is None:
        return reason, [], None
    return reason, _tool_calls(dialect.tool_calls(response)), _joined(dialect.reasoning_texts(response))


def finish_reason(response: dict[str, Any]) -> str | None:
    """Return the first of stop reason, first choice's finish reason, and reason of incompleteness (A99)."""
    get = response.get
    if get("stop_reason") is None and get("choices") is None and get("incomplete_details") is None:
        return None  # as most answers of the Responses dialect, for less than it takes to ask each dialect
    return messages.finish_reason(response) or chat.finish_reason(response) or responses.finish_reason(response)


def tool_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tool calls of an answer, in order, as ``{"call_id", "name", "arguments"}`` (A101, A102)."""
    dialect = _dialect_of(response)
    return [] if dialect is None else _tool_calls(dialect.tool_calls(response))


def reasoning(response: dict[str, Any]) -> str | None:
    """Return the reasoning texts of an answer joined with LF, None when there are none (A103)."""
    dialect = _dialect_of(response)
    return None if dialect is None else _joined(dialect.reasoning_texts(response))


def _tool_calls(calls: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "call_id": call_id if isinstance(call_id, str) else None,
            "name": name if isinstance(name, str) else None,
            "arguments": parse_arguments(arguments),
        }
        for call_id, name, arguments in calls
    ]


def _joined(texts: Iterable[Any]) -> str | None:
    return "\n".join([text for text in texts if isinstance(text, str) and text]) or None


def parse_arguments(arguments: Any) -> dict[str, Any]:
    """Return tool arguments as an object (A102).

    An object stays, the text of an object is parsed, and empty or missing arguments are ``{}``. Any other text is kept
    under ``_raw``, unrepaired; so is an object that nests too deeply for a record.
    """
    if not isinstance(arguments, str):
        return arguments if isinstance(arguments, dict) else {}
    if not arguments:
        return {}
    parsed = exact_json.loads_object(arguments.encode("utf-8", "surrogatepass"))
    if parsed is None or (len(arguments) > _DEEPEST_LEVELS and exact_json.nests_deeper(parsed, _DEEPEST_LEVELS)):
        return {"_raw": arguments}
    return parsed
