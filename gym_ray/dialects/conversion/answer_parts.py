"""The Responses answer and its items, with every field that strict clients demand.

Answers of other dialects are dressed with these parts; request settings are echoed as the client sent them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_ray.dialects.conversion.carried import name_of, objects
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = [
    "custom_call_item",
    "function_call_item",
    "message_item",
    "reasoning_item",
    "reasoning_texts",
    "response_object",
    "text_part",
]

_ECHOED: Final[Mapping[str, Any]] = {
    "background": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": None,
    "temperature": None,
    "text": None,
    "tool_choice": "auto",
    "top_logprobs": None,
    "top_p": None,
    "truncation": None,
    "user": None,
}
"""Setting of a request -> what an answer says when the request does not set it."""

_TOOL: Final[Mapping[str, Any]] = {"description": None, "parameters": None, "strict": None}


def text_part(text: str) -> dict[str, Any]:
    """Return a text part of an assistant message."""
    return {"type": "output_text", "text": text, "annotations": []}


def message_item(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an assistant message with a fresh id."""
    return {
        "id": fresh_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": list(parts),
    }


def function_call_item(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a function call; its id is the call id (A156, A166)."""
    return {
        "id": call_id,
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def custom_call_item(call_id: str, name: str, text: str) -> dict[str, Any]:
    """Return a call of a custom tool, whose input is free text."""
    return {
        "id": call_id,
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "input": text,
    }


def reasoning_item(texts: Sequence[str], encrypted: str = "", item_id: str = "") -> dict[str, Any]:
    """Return a reasoning item with one summary entry a text."""
    item: dict[str, Any] = {
        "id": item_id or fresh_id("rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in texts],
    }
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """Return the texts of a reasoning item: its summary, or its content where the summary has no text (A103)."""
    for member in ("summary", "content"):
        texts = [part["text"] for part in objects(item.get(member)) if isinstance(part.get("text"), str)]
        if any(texts):
            return texts
    return []


def response_object(
    request: Mapping[str, Any],
    *,
    model: str,
    output: list[dict[str, Any]],
    incomplete: Mapping[str, Any] | None,
    usage: Mapping[str, Any] | None,
    response_id: str = "",
    created_at: float | None = None,
) -> dict[str, Any]:
    """Return a finished Responses answer to ``request``.

    Args:
        request: The Responses-shaped request, whose settings are echoed (A167).
        model: Name to answer with when the request has none.
        output: The items, in order.
        incomplete: ``incomplete_details``; None for a completed answer.
        usage: Usage in the Responses shape, None when unknown.
        response_id: Id of the answer; an empty one is replaced by a fresh one (A169).
        created_at: Seconds since 1970; None is now.
    """
    return {
        **{key: default if request.get(key) is None else request[key] for key, default in _ECHOED.items()},
        "tools": [
            {**_TOOL, **tool} if tool.get("type") == "function" else tool for tool in objects(request.get("tools"))
        ],
        "id": response_id or fresh_id("resp_"),
        "object": "response",
        "created_at": int(time.time()) if created_at is None else created_at,
        "status": "completed" if incomplete is None else "incomplete",
        "error": None,
        "incomplete_details": incomplete,
        "model": name_of(request.get("model"), model),
        "output": output,
        "usage": usage,
    }
