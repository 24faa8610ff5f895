"""Responses requests as Messages requests, and Responses answers as Messages answers (A159-A162, W13, W16, W25).

A request is refused where it is wrong or asks for what Messages cannot do. An answer is never refused for a part of it
that Messages cannot say: what has no form there is kept aside, under ``gym_ray`` of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gym_ray.dialects import fields, reading
from gym_ray.dialects.conversion import free_text
from gym_ray.dialects.conversion.carried import broken, name_of, objects, refuse_failure, set_aside, shown
from gym_ray.dialects.conversion.messages_thinking import thinking_block
from gym_ray.dialects.conversion.messages_turns import Conversation
from gym_ray.dialects.conversion.messages_usage import messages_usage
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["answer_to_messages", "request_to_messages"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "previous_response_id": ("",),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_INCLUDED: Final = "reasoning.encrypted_content"
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
_EFFORTS: Final = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
_STOPS: Final = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
_UNFINISHED: Final = ("failed", "cancelled", "queued", "in_progress")


def request_to_messages(
    body: Mapping[str, Any],
    *,
    default_max_tokens: int = 4096,
    carried: Mapping[str, Any] = _NOTHING,
    remote_images: bool = False,
    unsigned_thinking: bool = True,
) -> dict[str, Any]:
    """Return a Responses request as a Messages request.

    Args:
        body: The request; it is not changed, and parts of it are shared with the result.
        default_max_tokens: ``max_tokens``, which Messages demands, when the request bounds nothing.
        carried: What ``carried_settings`` read from the client's own dialect; seed, penalties and ``logit_bias`` have
            no form in Messages and are left out.
        remote_images: Whether images may be named by a URL that the engine has to fetch.
        unsigned_thinking: Whether reasoning without a signature is told to the engine; one that signs refuses it.

    Raises:
        UnsupportedRequestError: A field is malformed (422) or has no form in Messages (400); the message names it.
    """
    fields.refuse(body, _REFUSED, "has no form in the engine's dialect")
    _check_include(body.get("include"))
    conversation = Conversation(remote_images=remote_images, unsigned_thinking=unsigned_thinking)
    if body.get("instructions") is not None:
        conversation.instruct(fields.as_string(body["instructions"], "instructions"))
    conversation.take(fields.require(body, "input"))
    max_tokens = fields.whole(body, "max_output_tokens", 0)
    result: dict[str, Any] = {
        "max_tokens": default_max_tokens if max_tokens is None else max_tokens,
        "messages": conversation.messages,
    }
    if body.get("model") is not None:
        result["model"] = fields.as_string(body["model"], "model")
    if conversation.system:
        result["system"] = conversation.system
    for key in ("temperature", "top_p"):
        if fields.number(body, key, 0, 2) is not None:
            result[key] = body[key]
    return {**result, **_tool_settings(body), **_output_config(body), **_carried(body, carried)}


def answer_to_messages(response: Mapping[str, Any], *, model: str | None) -> dict[str, Any]:
    """Return a complete Responses answer as a Messages answer (A159-A162).

    Args:
        response: The answer; it is not changed, and parts of it are shared with the result.
        model: The name that the client asked for; None takes the answer's.

    Returns:
        The message. Arguments that are no JSON object stand under ``_raw`` of the input, unrepaired; output items that
        Messages cannot say, such as calls of hosted tools, under ``unconverted`` of ``gym_ray`` (W16).

    Raises:
        EngineError: The answer failed, is still being made, or is no answer at all.
    """
    output = _finished_output(response)
    content: list[dict[str, Any]] = []
    unconverted = set_aside(response)
    for item in output:
        blocks, left = _item_blocks(item)
        content += blocks
        unconverted += left
    stop_reason, stop_sequence = _stop(response, content)
    message = {
        "id": name_of(response.get("id")) or fresh_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": name_of(model, response.get("model")),
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": messages_usage(response.get("usage")),
    }
    return {**message, "gym_ray": {"unconverted": unconverted}} if unconverted else message


def _check_include(value: object) -> None:
    for index, name in enumerate([] if value is None else fields.as_list(value, "include")):
        if name != _INCLUDED:
            raise fields.unsupported(f"include[{index}]", f"{shown(name)} is not to be had; only {_INCLUDED} is")


def _tool_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = [] if body.get("tools") is None else fields.as_list(body["tools"], "tools")
    choice = _tool_choice(body.get("tool_choice"))
    if not tools:
        if choice is not None and choice["type"] in ("any", "tool"):
            raise fields.malformed("tool_choice", "demands a call, but tools is empty")
        return {}
    alone = body.get("parallel_tool_calls")
    if alone is not None and not isinstance(alone, bool):
        raise fields.malformed("parallel_tool_calls", f"should be true or false, not {shown(alone)}")
    if alone is False and (choice is None or choice["type"] != "none"):
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    converted = [_tool(raw, f"tools[{index}]") for index, raw in enumerate(tools)]
    return {"tools": converted} if choice is None else {"tools": converted, "tool_choice": choice}


def _tool(raw: object, path: str) -> dict[str, Any]:
    tool = fields.as_object(raw, path)
    kind = tool.get("type")
    if kind == "custom":
        tool = free_text.as_function(tool, path)
    elif kind != "function":
        raise fields.unsupported(f"{path}.type", f"{shown(kind)} tools have no form in the engine's dialect")
    description, schema = tool.get("description"), tool.get("parameters")
    result: dict[str, Any] = {"name": fields.as_string(tool.get("name"), f"{path}.name")}
    if description is not None:
        result["description"] = fields.as_string(description, f"{path}.description")
    result["input_schema"] = (
        {"type": "object", "properties": {}} if schema is None else fields.as_object(schema, f"{path}.parameters")
    )
    return result


def _tool_choice(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str) and value in _CHOICES:
        return {"type": _CHOICES[value]}
    if isinstance(value, Mapping) and value.get("type") in ("function", "custom"):
        return {"type": "tool", "name": fields.as_string(value.get("name"), "tool_choice.name")}
    raise fields.unsupported("tool_choice", "should be auto, none, required or a named function")


def _output_config(body: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    reasoning = {} if body.get("reasoning") is None else fields.as_object(body["reasoning"], "reasoning")
    effort = reasoning.get("effort")
    if effort not in (None, "none"):
        if not isinstance(effort, str) or effort not in _EFFORTS:
            raise fields.unsupported("reasoning.effort", f"{shown(effort)} is none of none, {', '.join(_EFFORTS)}")
        config["effort"] = _EFFORTS[effort]
    text = {} if body.get("text") is None else fields.as_object(body["text"], "text")
    form = {} if text.get("format") is None else fields.as_object(text["format"], "text.format")
    kind = form.get("type", "text")
    if kind == "json_schema":
        schema = fields.as_object(form.get("schema"), "text.format.schema")
        config["format"] = {"type": "json_schema", "schema": schema}
    elif kind != "text":
        raise fields.unsupported("text.format.type", f"{shown(kind)} is not supported; use text or json_schema")
    return {"output_config": config} if config else {}


def _carried(body: Mapping[str, Any], carried: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if carried.get("stop"):
        result["stop_sequences"] = carried["stop"]
    if carried.get("top_k") is not None:
        result["top_k"] = carried["top_k"]
    user = name_of(carried.get("user"), body.get("safety_identifier"), body.get("user"))
    if user:
        result["metadata"] = {"user_id": user}
    return result


def _finished_output(response: Mapping[str, Any]) -> list[Any]:
    refuse_failure(response)
    status, output = response.get("status"), response.get("output")
    if status in _UNFINISHED:
        raise broken("status", f"is {shown(status)}: this is no finished answer")
    if not isinstance(output, list):
        raise broken("output", f"should be a list of items, not {shown(output)}")
    return output


def _item_blocks(item: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the blocks of an output item, and what of it has no form in Messages."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind == "message":
        return _message_blocks(item)
    if kind == "reasoning":
        block = thinking_block(item)
        return ([] if block is None else [block]), []
    if kind not in ("function_call", "custom_tool_call") or not name_of(item.get("name")):
        return [], [item]
    call_id = name_of(item.get("call_id"), item.get("id")) or fresh_id("call_")
    custom = kind == "custom_tool_call"
    value = {"input": item.get("input")} if custom else reading.parse_arguments(item.get("arguments"))
    return [{"type": "tool_use", "id": call_id, "name": item["name"], "input": value}], []


def _message_blocks(item: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}], []
    if not isinstance(content, list):
        return [], [] if content is None else [item]
    blocks: list[dict[str, Any]] = []
    left: list[Any] = []
    for part in content:
        told = part if isinstance(part, Mapping) else {}
        text = told.get("refusal" if told.get("type") == "refusal" else "text")
        if isinstance(text, str):
            blocks.append({"type": "text", "text": text})
        else:
            left.append(part)
    return blocks, left


def _stop(response: Mapping[str, Any], content: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Return ``stop_reason`` and ``stop_sequence`` (A160); only refusing is a refusal too (W20)."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    if isinstance(reason, str) and reason in _STOPS:
        return _STOPS[reason], None
    if any(block["type"] == "tool_use" for block in content):
        return "tool_use", None
    parts = [part for item in objects(response.get("output")) for part in objects(item.get("content"))]
    said = [part.get("type") for part in parts if part.get("text") or part.get("refusal")]
    if said and all(kind == "refusal" for kind in said):
        return "refusal", None
    aside = response.get("gym_ray")
    sequence = aside.get("stop_sequence") if isinstance(aside, Mapping) else None
    return ("stop_sequence", sequence) if isinstance(sequence, str) else ("end_turn", None)
