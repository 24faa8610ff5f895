"""Reads a Responses body into the neutral request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.neutral import (
    PromptRequest,
    Sampling,
    ToolCall,
    Turn,
    merge_turns,
)
from gym_ray.dialects.synthesis import openai_fields
from gym_ray.dialects.synthesis.choices import checked_choice

__all__ = ["read_request"]

_PARTS: Final = frozenset({"input_text", "output_text", "text", "refusal"})
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "previous_response_id": ("",),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "context_management": (),
    "top_logprobs": (0,),
    "max_tool_calls": (),
}


def read_request(body: Mapping[str, Any]) -> PromptRequest:
    """Return the neutral form of a Responses request.

    Raises:
        UnsupportedRequestError: A field is missing, malformed (422) or cannot be honoured (400); the message names it.
    """
    fields.refuse(body, _REFUSED, "is not supported by the embedded model")
    turns = []
    instructions = body.get("instructions")
    if instructions is not None and instructions != "":
        turns.append(Turn("system", fields.as_text(instructions, "instructions")))
    turns.extend(_turns(fields.require(body, "input")))
    if not turns:
        raise fields.malformed("input", "is empty")
    text = fields.as_object({} if body.get("text") is None else body["text"], "text")
    tools = openai_fields.tools(body.get("tools"), nested=False)
    return PromptRequest(
        turns=merge_turns(turns),
        tools=tools,
        tool_choice=checked_choice(openai_fields.tool_choice(body.get("tool_choice"), nested=False), tools),
        response_format=openai_fields.response_format(text.get("format"), "text.format", nested=False),
        sampling=Sampling(
            max_tokens=fields.whole(body, "max_output_tokens", 1),
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=fields.number(body, "top_p", 0, 1),
            top_k=fields.whole(body, "top_k", 0),
            seed=fields.whole(body, "seed", -(2**63), 2**63 - 1),
            stop=fields.stop_texts(body, "stop"),
        ),
    )


def _turns(value: object) -> list[Turn]:
    if isinstance(value, str):
        return [Turn("user", fields.as_text(value, "input"))]
    turns = []
    for index, raw in enumerate(fields.as_list(value, "input")):
        turn = _turn(fields.as_object(raw, f"input[{index}]"), f"input[{index}]")
        if turn is not None:
            turns.append(turn)
    return turns


def _turn(item: Mapping[str, Any], path: str) -> Turn | None:
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise fields.malformed(f"{path}.role", f"{item.get('role')!r} is none of {', '.join(_ROLES)}")
        return Turn(role, fields.text_of(item.get("content"), f"{path}.content", _PARTS))  # type: ignore[arg-type]
    if kind == "function_call":
        call = ToolCall(*(fields.as_text(item.get(key), f"{path}.{key}") for key in ("call_id", "name", "arguments")))
        return Turn("assistant", tool_calls=(call,))
    if kind == "function_call_output":
        fields.as_text(item.get("call_id"), f"{path}.call_id")
        return Turn("tool", fields.text_of(item.get("output"), f"{path}.output", _PARTS))
    if kind == "reasoning":
        return None  # the embedded model has no reasoning channel; past reasoning is not shown to it
    raise fields.unsupported(f"{path}.type", f"{kind!r} items are not supported by the embedded model")
