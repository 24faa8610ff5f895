"""Reads a Chat Completions body into the neutral request."""

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

_PARTS: Final = frozenset({"text", "refusal"})
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "audio": (),
    "functions": ([],),
    "function_call": (),
    "prediction": (),
    "web_search_options": (),
}


def read_request(body: Mapping[str, Any]) -> PromptRequest:
    """Return the neutral form of a Chat request.

    Raises:
        UnsupportedRequestError: A field is missing, malformed (422) or cannot be honoured (400); the message names it.
    """
    fields.refuse(body, _REFUSED, "is not supported by the embedded model")
    if body.get("modalities") not in (None, ["text"]):
        raise fields.unsupported("modalities", 'the embedded model answers in text only; use ["text"]')
    messages = fields.as_list(fields.require(body, "messages"), "messages")
    if not messages:
        raise fields.malformed("messages", "is empty")
    turns = [
        _turn(fields.as_object(raw, f"messages[{index}]"), f"messages[{index}]") for index, raw in enumerate(messages)
    ]
    tools = openai_fields.tools(body.get("tools"), nested=True)
    limit = fields.whole(body, "max_completion_tokens", 1)
    return PromptRequest(
        turns=merge_turns(turns),
        tools=tools,
        tool_choice=checked_choice(openai_fields.tool_choice(body.get("tool_choice"), nested=True), tools),
        response_format=openai_fields.response_format(body.get("response_format"), "response_format", nested=True),
        sampling=Sampling(
            max_tokens=fields.whole(body, "max_tokens", 1) if limit is None else limit,
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=fields.number(body, "top_p", 0, 1),
            top_k=fields.whole(body, "top_k", 0),
            seed=fields.whole(body, "seed", -(2**63), 2**63 - 1),
            presence_penalty=fields.number(body, "presence_penalty", -2, 2),
            frequency_penalty=fields.number(body, "frequency_penalty", -2, 2),
            stop=fields.stop_texts(body, "stop"),
        ),
    )


def _turn(message: Mapping[str, Any], path: str) -> Turn:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise fields.malformed(f"{path}.role", f"{message.get('role')!r} is none of {', '.join(_ROLES)}")
    text = fields.text_of(message.get("content"), f"{path}.content", _PARTS)
    if role == "tool":
        fields.as_text(message.get("tool_call_id"), f"{path}.tool_call_id")
    calls = message.get("tool_calls")
    if role != "assistant" or calls is None:
        return Turn(role, text)  # type: ignore[arg-type]
    read = tuple(
        _tool_call(fields.as_object(raw, f"{path}.tool_calls[{index}]"), f"{path}.tool_calls[{index}]")
        for index, raw in enumerate(fields.as_list(calls, f"{path}.tool_calls"))
    )
    return Turn("assistant", text, read)


def _tool_call(call: Mapping[str, Any], path: str) -> ToolCall:
    if call.get("type", "function") != "function":
        raise fields.unsupported(f"{path}.type", f"{call.get('type')!r} calls are not supported; use function")
    function = fields.as_object(call.get("function"), f"{path}.function")
    return ToolCall(
        call_id=fields.as_text(call.get("id"), f"{path}.id"),
        name=fields.as_text(function.get("name"), f"{path}.function.name"),
        arguments=fields.as_text(function.get("arguments"), f"{path}.function.arguments"),
    )
