"""Reads an Anthropic Messages body into the neutral request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.neutral import (
    PromptRequest,
    ResponseFormat,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    Turn,
    merge_turns,
)
from gym_ray.dialects.synthesis.choices import checked_choice

__all__ = ["read_request"]

_TEXT: Final = frozenset({"text"})
_UNSEEN: Final = ("thinking", "redacted_thinking")


def read_request(body: Mapping[str, Any]) -> PromptRequest:
    """Return the neutral form of a Messages request.

    Raises:
        UnsupportedRequestError: A field is missing, malformed (422) or cannot be honoured (400); the message names it.
    """
    messages = fields.as_list(fields.require(body, "messages"), "messages")
    if not messages:
        raise fields.malformed("messages", "is empty")
    fields.require(body, "max_tokens")
    turns = []
    system = _system(body.get("system"))
    if system:
        turns.append(Turn("system", system))
    for index, raw in enumerate(messages):
        turns.extend(_turns(fields.as_object(raw, f"messages[{index}]"), f"messages[{index}]"))
    if not turns:
        raise fields.malformed("messages", "holds nothing the model can read")
    if turns[-1].role == "assistant":
        raise fields.unsupported(
            f"messages[{len(messages) - 1}]",
            "begins the answer for the model, which is not supported; end with the user",
        )
    tools = _tools(body.get("tools"))
    return PromptRequest(
        turns=merge_turns(turns),
        tools=tools,
        tool_choice=checked_choice(_tool_choice(body.get("tool_choice")), tools),
        response_format=_response_format(body.get("output_config")),
        sampling=Sampling(
            max_tokens=fields.whole(body, "max_tokens", 1),
            temperature=fields.number(body, "temperature", 0, 1),
            top_p=fields.number(body, "top_p", 0, 1),
            top_k=fields.whole(body, "top_k", 0),
            stop=fields.stop_texts(body, "stop_sequences"),
        ),
    )


def _system(value: object) -> str:
    if value is None or isinstance(value, str):
        return "" if value is None else fields.as_text(value, "system")
    blocks = fields.as_list(value, "system")
    return "\n".join(fields.text_of([block], f"system[{index}]", _TEXT) for index, block in enumerate(blocks))


def _turns(message: Mapping[str, Any], path: str) -> list[Turn]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise fields.malformed(f"{path}.role", f"{role!r} is none of user, assistant")
    if isinstance(content, str):
        return [Turn(role, fields.as_text(content, f"{path}.content"))]
    turns: list[Turn] = []
    texts: list[str] = []
    for index, raw in enumerate(fields.as_list(content, f"{path}.content")):
        place = f"{path}.content[{index}]"
        block = fields.as_object(raw, place)
        kind = block.get("type")
        if kind == "text":
            texts.append(fields.as_text(block.get("text"), f"{place}.text"))
            continue
        if kind in _UNSEEN:
            continue  # the embedded model has no reasoning channel; past reasoning is not shown to it (W16)
        turn = _tool_turn(str(role), str(kind), block, place)
        if texts:
            turns.append(Turn(role, "\n".join(texts)))
            texts = []
        turns.append(turn)
    if texts:
        turns.append(Turn(role, "\n".join(texts)))
    return turns


def _tool_turn(role: str, kind: str, block: Mapping[str, Any], place: str) -> Turn:
    if kind == "tool_use" and role == "assistant":
        arguments = fields.as_json_object(block.get("input"), f"{place}.input")
        return Turn(
            "assistant",
            tool_calls=(
                ToolCall(
                    call_id=fields.as_text(block.get("id"), f"{place}.id"),
                    name=fields.as_text(block.get("name"), f"{place}.name"),
                    # The same spacing as the tool grammar's, so that a call reads back as it was generated.
                    arguments=json.dumps(arguments, ensure_ascii=False),
                ),
            ),
        )
    if kind == "tool_result" and role == "user":
        fields.as_text(block.get("tool_use_id"), f"{place}.tool_use_id")
        return Turn("tool", fields.text_of(block.get("content"), f"{place}.content", _TEXT))
    raise fields.unsupported(f"{place}.type", f"{kind!r} blocks of the {role} are not supported by the embedded model")


def _tools(value: object) -> tuple[Tool, ...]:
    if value is None:
        return ()
    tools = []
    for index, raw in enumerate(fields.as_list(value, "tools")):
        path = f"tools[{index}]"
        item = fields.as_object(raw, path)
        if item.get("type", "custom") not in ("custom", None):
            raise fields.unsupported(f"{path}.type", f"{item.get('type')!r} tools are not supported; use custom")
        tools.append(fields.tool(item.get("name"), item.get("description"), item.get("input_schema"), path))
    return tuple(tools)


def _tool_choice(value: object) -> ToolChoice:
    if value is None:
        return ToolChoice("auto")
    choice = fields.as_object(value, "tool_choice")
    kind = choice.get("type")
    if kind == "auto":
        return ToolChoice("auto")
    if kind == "none":
        return ToolChoice("none")
    if kind == "any":
        return ToolChoice("required")
    if kind == "tool":
        return ToolChoice("required", fields.as_text(choice.get("name"), "tool_choice.name"))
    raise fields.unsupported("tool_choice.type", f"{kind!r} is none of auto, none, any, tool")


def _response_format(value: object) -> ResponseFormat | None:
    if value is None:
        return None
    form = fields.as_object(value, "output_config").get("format")
    if form is None:
        return None
    form = fields.as_object(form, "output_config.format")
    if form.get("type") != "json_schema":
        raise fields.unsupported("output_config.format.type", f"{form.get('type')!r} is not supported; use json_schema")
    return ResponseFormat(fields.as_json_object(form.get("schema"), "output_config.format.schema"))
