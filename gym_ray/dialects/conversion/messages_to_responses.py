"""Messages requests as Responses requests, and Messages answers as Responses answers (A155-A158, W16).

A request is refused where it is wrong or cannot be honoured. An answer is never refused for a part of it that Responses
cannot say: what has no form there is kept aside, under ``gym_ray`` of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.ascii_json import ascii_json
from gym_ray.dialects.conversion import answer_parts as items
from gym_ray.dialects.conversion import free_text
from gym_ray.dialects.conversion.carried import broken, name_of, objects, refuse_failure, shown
from gym_ray.dialects.conversion.messages_input import input_items, joined_text
from gym_ray.dialects.conversion.messages_thinking import redacted_item, signed_item
from gym_ray.dialects.conversion.messages_usage import responses_usage
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["answer_to_responses", "carried_settings", "request_to_responses"]

_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_UNFINISHED: Final[Mapping[str, str | None]] = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": None,
}
"""Stop reason -> reason of incompleteness; every other stop reason is a completed answer."""


def request_to_responses(body: Mapping[str, Any], *, remote_images: bool = False) -> dict[str, Any]:
    """Return a Messages request as a Responses request (A155-A158).

    Args:
        body: The request; it is not changed, and parts of it are shared with the result.
        remote_images: Whether images may be named by a URL that the engine has to fetch.

    Returns:
        The request; ``stream`` and what :func:`carried_settings` tells are not in it.

    Raises:
        UnsupportedRequestError: A field is malformed (422) or has no Responses form (400); the message names it.
    """
    result: dict[str, Any] = {"input": input_items(body.get("messages"), remote_images=remote_images)}
    system = body.get("system")
    instructions = "" if system is None else joined_text(system, "system")
    if instructions:
        result["instructions"] = instructions
    if body.get("model") is not None:
        result["model"] = fields.as_string(body["model"], "model")
    max_tokens = fields.whole(body, "max_tokens", 0)
    if max_tokens is not None:
        result["max_output_tokens"] = max_tokens
    for key in ("temperature", "top_p"):
        if fields.number(body, key, 0, 2) is not None:
            result[key] = body[key]
    if body.get("tools") is not None:
        result["tools"] = [_tool(raw, f"tools[{i}]") for i, raw in enumerate(fields.as_list(body["tools"], "tools"))]
    if body.get("tool_choice") is not None:
        result.update(_tool_choice(fields.as_object(body["tool_choice"], "tool_choice")))
    if body.get("output_config") is not None:
        result.update(_output_settings(fields.as_object(body["output_config"], "output_config")))
    return result


def carried_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Messages request that Responses cannot say, under neutral names.

    Returns:
        ``stop`` (list of strings), ``top_k`` and ``user``, each only when the request sets it.

    Raises:
        UnsupportedRequestError: One of them is malformed; status 422.
    """
    settings: dict[str, Any] = {}
    if body.get("stop_sequences") is not None:
        stops = fields.as_list(body["stop_sequences"], "stop_sequences")
        texts = [fields.as_string(stop, f"stop_sequences[{index}]") for index, stop in enumerate(stops)]
        if texts:
            settings["stop"] = texts
    top_k = fields.whole(body, "top_k", 0)
    if top_k is not None:
        settings["top_k"] = top_k
    if body.get("metadata") is not None:
        user = fields.as_object(body["metadata"], "metadata").get("user_id")
        if user is not None:
            settings["user"] = fields.as_string(user, "metadata.user_id")
    return settings


def answer_to_responses(
    answer: Mapping[str, Any], request: Mapping[str, Any], *, keep_id: bool = False
) -> dict[str, Any]:
    """Return a complete Messages answer as a Responses answer (W16).

    Args:
        answer: The engine's answer; it is not changed, and parts of it are shared with the result.
        request: The Responses-shaped request that it answers; its settings are echoed, and a call of one of its custom
            tools comes back as such.
        keep_id: Keep the engine's id instead of making a fresh one (A169).

    Returns:
        The answer. What Responses cannot say stands under ``gym_ray``: the ``stop_sequence`` that ended the answer, and
        ``unconverted`` blocks such as those of tools that the engine runs itself.

    Raises:
        EngineError: It is an error, or no message at all; status 502.
    """
    stop_reason = answer.get("stop_reason")
    output, unconverted = _output(_blocks(answer), _custom_names(request))
    if not output and not unconverted:
        output = [items.message_item([items.text_part("")])]
    cut = isinstance(stop_reason, str) and stop_reason in _UNFINISHED
    if cut and output and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    result = items.response_object(
        request,
        response_id=name_of(answer.get("id")) if keep_id else "",
        model=name_of(answer.get("model")),
        output=output,
        incomplete={"reason": _UNFINISHED[str(stop_reason)]} if cut else None,
        usage=responses_usage(answer.get("usage")),
    )
    aside: dict[str, Any] = {}
    if stop_reason == "stop_sequence" and isinstance(answer.get("stop_sequence"), str):
        aside["stop_sequence"] = answer["stop_sequence"]
    if unconverted:
        aside["unconverted"] = unconverted
    return {**result, "gym_ray": aside} if aside else result


def _tool(raw: object, path: str) -> dict[str, Any]:
    tool = fields.as_object(raw, path)
    if tool.get("type") not in (None, "custom"):
        raise fields.unsupported(f"{path}.type", f"{shown(tool.get('type'))} tools are not supported; use custom")
    description, schema = tool.get("description"), tool.get("input_schema")
    return {
        "type": "function",
        "name": fields.as_string(tool.get("name"), f"{path}.name"),
        "description": None if description is None else fields.as_string(description, f"{path}.description"),
        "parameters": {"type": "object", "properties": {}}
        if schema is None
        else fields.as_object(schema, f"{path}.input_schema"),
        "strict": tool.get("strict") is True,
    }


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    result: dict[str, Any] = {}
    if kind == "tool":
        name = fields.as_string(choice.get("name"), "tool_choice.name")
        result["tool_choice"] = {"type": "function", "name": name}
    elif isinstance(kind, str) and kind in _CHOICES:
        result["tool_choice"] = _CHOICES[kind]
    else:
        raise fields.unsupported("tool_choice.type", f"{shown(kind)} is none of auto, none, any, tool")
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise fields.malformed("tool_choice.disable_parallel_tool_use", f"should be true or false, not {shown(alone)}")
    if alone:
        result["parallel_tool_calls"] = False
    return result


def _output_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    effort, form = config.get("effort"), config.get("format")
    if effort is not None:
        if effort not in _EFFORTS:
            raise fields.unsupported("output_config.effort", f"{shown(effort)} is none of {', '.join(_EFFORTS)}")
        result["reasoning"] = {"effort": effort}
    if form is not None:
        path = "output_config.format"
        form = fields.as_object(form, path)
        if form.get("type") != "json_schema":
            raise fields.unsupported(f"{path}.type", f"{shown(form.get('type'))} is not supported; use json_schema")
        schema = fields.as_object(form.get("schema"), f"{path}.schema")
        result["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    return result


def _blocks(answer: Mapping[str, Any]) -> list[Any]:
    content = answer.get("content")
    refuse_failure(answer)
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise broken("content", f"should be a list of blocks, not {shown(content)}")
    return content


def _custom_names(request: Mapping[str, Any]) -> frozenset[str]:
    custom = (tool for tool in objects(request.get("tools")) if tool.get("type") == "custom")
    return frozenset(name_of(tool.get("name")) for tool in custom)


def _output(blocks: list[Any], custom: frozenset[str]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the output items, neighbouring texts as parts of one message, and the blocks without a form."""
    output: list[dict[str, Any]] = []
    unconverted: list[Any] = []
    message: dict[str, Any] | None = None
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text" and isinstance(block.get("text"), str):
            if message is None:
                message = items.message_item([])
                output.append(message)
            message["content"].append(items.text_part(block["text"]))
            continue
        item = _output_item(kind, block, custom)
        if item is None:
            unconverted.append(block)
        else:
            message = None
            output.append(item)
    return output, unconverted


def _output_item(kind: object, block: Any, custom: frozenset[str]) -> dict[str, Any] | None:
    if kind == "tool_use" and isinstance(block.get("name"), str):
        return _call_item(block, custom)
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        signature = block.get("signature")
        return signed_item(block["thinking"], signature if isinstance(signature, str) else "")
    if kind == "redacted_thinking" and isinstance(block.get("data"), str):
        return redacted_item(block["data"])
    return None


def _call_item(block: Mapping[str, Any], custom: frozenset[str]) -> dict[str, Any]:
    name, value = block["name"], block.get("input")
    call_id = name_of(block.get("id")) or fresh_id("call_")
    try:
        arguments = value if isinstance(value, str) else ascii_json({} if value is None else value)
    except ValueError:
        raise broken(f"the input of the call {call_id}", "is nested too deeply") from None
    if name in custom:
        return items.custom_call_item(call_id, name, free_text.as_input(arguments))
    return items.function_call_item(call_id, name, arguments)
