"""Asks a Chat engine what a Responses client asked, and answers a Chat client with what a Responses engine said.

Chat knows less than Responses: a request that needs what Chat lacks is refused by name, never served without it (A165).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import chat_reasoning, chat_tools
from gym_ray.dialects.conversion.carried import (
    CARRIED_SETTINGS,
    SHARED_SETTINGS,
    answer_objects,
    answer_text,
    argument_text,
    broken,
    moment,
    name_of,
    refuse_failure,
    set_aside,
    shown,
    wordless,
)
from gym_ray.dialects.conversion.chat_turns import messages_of
from gym_ray.dialects.conversion.chat_usage import chat_usage
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["answer_to_chat", "request_to_chat"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "previous_response_id": ("",),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast")
_CONVERTED: Final = ("message", "reasoning", "function_call", "custom_tool_call")
_UNFINISHED: Final = ("failed", "cancelled", "queued", "in_progress")


def request_to_chat(body: Mapping[str, Any], *, carried: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Return the Chat request that asks what a Responses request asks (A163, A164).

    Streaming is not carried: the engine is asked for a complete answer (A132).

    Args:
        body: The Responses request; it is not changed.
        carried: Settings of the client's own dialect that Responses cannot say, by neutral name: ``stop``, ``top_k``,
            ``seed``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias``, ``user``.

    Raises:
        UnsupportedRequestError: A field is missing or malformed (422) or has no Chat form (400, A165); the message
            names it.
    """
    fields.refuse(body, _REFUSED, "has no form in the engine's dialect")
    chat: dict[str, Any] = {"messages": messages_of(fields.require(body, "input"), body.get("instructions"))}
    chat.update({key: body[key] for key in SHARED_SETTINGS if body.get(key) is not None})
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    chat.update(_effort(body.get("reasoning")))
    chat.update(_text(body.get("text")))
    chat.update(chat_tools.nested_settings(body))
    return {**{key: carried[key] for key in CARRIED_SETTINGS if carried.get(key) is not None}, **chat}


def _effort(value: object) -> dict[str, Any]:
    reasoning = {} if value is None else fields.as_object(value, "reasoning")
    for key, setting in reasoning.items():
        if key != "effort" and setting is not None:
            raise fields.unsupported("reasoning", f"{shown(key)} has no form in the engine's dialect; leave it out")
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _text(value: object) -> dict[str, Any]:
    text = {} if value is None else fields.as_object(value, "text")
    wanted: dict[str, Any] = {}
    form = chat_tools.nested_format(text.get("format"))
    if form is not None:
        wanted["response_format"] = form
    if text.get("verbosity") is not None:
        wanted["verbosity"] = text["verbosity"]
    return wanted


def answer_to_chat(response: Mapping[str, Any], *, model: str | None = None) -> dict[str, Any]:
    """Return a Responses answer as a ``chat.completion`` with one choice.

    Output items and parts that Chat cannot say (searches of a hosted tool and the like) stand under ``gym_ray`` as
    ``unconverted``. The id is the engine's, so that the client's answer names the engine's.

    Args:
        response: The engine's complete answer; it is not changed.
        model: The name that the client asked for; None for the one the engine tells.

    Raises:
        EngineError: The answer failed, is not finished, or is none; status 502.
    """
    _check_outcome(response)
    items = answer_objects(response.get("output"), "output")
    message = _message(items)
    unconverted = set_aside(response) + _unconverted(items)
    tier = response.get("service_tier")
    completion = {
        "id": name_of(response.get("id")) or fresh_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(moment(response.get("created_at"))),
        "model": name_of(model, response.get("model")),
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": _finish_reason(response, called="tool_calls" in message),
            }
        ],
        "service_tier": tier if tier in _TIERS else None,
        "system_fingerprint": None,
        "usage": chat_usage(response.get("usage")),
    }
    return {**completion, "gym_ray": {"unconverted": unconverted}} if unconverted else completion


def _check_outcome(response: Mapping[str, Any]) -> None:
    refuse_failure(response)
    status = response.get("status")
    if status in _UNFINISHED:
        raise broken("status", f"is {status}: no finished answer")
    if response.get("output") is None:
        raise broken("output", "is missing: this is no answer")


def _message(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    said, refused = [], []
    reasoning, calls = [], []
    for index, item in enumerate(items):
        path, kind = f"output[{index}]", item.get("type")
        if kind == "message":
            texts, refusals = _content(item, path)
            said += texts
            refused += refusals
        elif kind == "reasoning":
            reasoning.append(item)
        elif kind in ("function_call", "custom_tool_call"):
            calls.append(_call(item, path))
    content, refusal = "".join(said), "".join(refused)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal or None}
    if not content and (refusal or calls):
        message["content"] = None
    message.update(chat_reasoning.message_fields(reasoning))
    if calls:
        message["tool_calls"] = calls
    return message


def _content(item: Mapping[str, Any], path: str) -> tuple[list[str], list[str]]:
    content = item.get("content")
    if isinstance(content, str):
        return [content], []
    texts, refusals = [], []
    for index, part in enumerate(answer_objects(content, f"{path}.content")):
        place = f"{path}.content[{index}]"
        if part.get("type") == "refusal":
            refusals.append(answer_text(part.get("refusal"), f"{place}.refusal"))
        else:
            texts.append(answer_text(part.get("text"), f"{place}.text"))
    return texts, refusals


def _unconverted(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    left: list[Mapping[str, Any]] = []
    for item in items:
        if item.get("type") not in _CONVERTED:
            left.append(item)
        elif item.get("type") == "message":
            left += wordless(item.get("content"))
    return left


def _call(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    head = {"id": name_of(item.get("call_id"), item.get("id")) or fresh_id("call_")}
    name = answer_text(item.get("name"), f"{path}.name")
    if item.get("type") == "custom_tool_call":
        custom = {"name": name, "input": argument_text(item.get("input"), f"{path}.input")}
        return {**head, "type": "custom", "custom": custom}
    arguments = argument_text(item.get("arguments"), f"{path}.arguments")
    return {**head, "type": "function", "function": {"name": name, "arguments": arguments}}


def _finish_reason(response: Mapping[str, Any], *, called: bool) -> str:
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    if response.get("status") == "incomplete" or reason is not None:
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if called else "stop"
