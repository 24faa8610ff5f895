"""Asks a Responses engine what a Chat client asked, and tells in Responses what a Chat engine answered.

What the engine wrote is never repaired: arguments stay the text they are, only ``<think>`` sections move (A166, B27).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import chat_tools, thoughts
from gym_ray.dialects.conversion.carried import (
    answer_objects,
    answer_text,
    argument_text,
    broken,
    moment,
    name_of,
    objects,
    refuse_failure,
    shown,
)
from gym_ray.dialects.conversion.chat_input import items_of
from gym_ray.dialects.conversion.chat_usage import responses_usage
from gym_ray.dialects.synthesis.writer import fresh_id

__all__ = ["answer_to_responses", "carried_settings", "request_to_responses"]

_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template_kwargs": ({},),
    "thinking": (),
    "output_config": ({},),
}
_SAME: Final = (
    "model",
    "metadata",
    "temperature",
    "top_p",
    "user",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
_CARRIED: Final = ("top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user")
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
_CUT: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BROKEN: Final = ("error", "abort")


def request_to_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Responses request that asks what a Chat request asks.

    Streaming is not carried: the engine is asked for a complete answer (A132). Settings that Responses cannot say are
    in :func:`carried_settings`.

    Raises:
        UnsupportedRequestError: A field is missing or malformed (422) or cannot be carried (400); the message names it.
    """
    fields.refuse(body, _REFUSED, "has no form in the engine's dialect")
    wanted: dict[str, Any] = {"input": items_of(fields.require(body, "messages"))}
    if not wanted["input"]:
        raise fields.malformed("messages", "is empty")
    wanted.update({key: body[key] for key in _SAME if body.get(key) is not None})
    for key in ("max_completion_tokens", "max_tokens"):
        if body.get(key) is not None:
            wanted["max_output_tokens"] = body[key]
            break
    if body.get("reasoning_effort") is not None:
        wanted["reasoning"] = {"effort": body["reasoning_effort"]}
    form = chat_tools.flat_format(body.get("response_format"))
    text = {} if form is None else {"format": form}
    if body.get("verbosity") is not None:
        text["verbosity"] = body["verbosity"]
    if text:
        wanted["text"] = text
    return {**wanted, **chat_tools.flat_settings(body)}


def carried_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the set settings of a Chat request that Responses cannot say, by neutral name.

    ``stop`` is a list of texts; ``top_k``, ``seed``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias`` and
    ``user`` are as they came.

    Raises:
        UnsupportedRequestError: ``stop`` is malformed; status 422.
    """
    carried = {key: body[key] for key in _CARRIED if body.get(key) is not None and body[key] != {}}
    stop = fields.stop_texts(body, "stop")
    return {**({"stop": list(stop)} if stop else {}), **carried}


def answer_to_responses(
    completion: Mapping[str, Any], request: Mapping[str, Any], *, split_think: bool = True, keep_id: bool = False
) -> dict[str, Any]:
    """Return a ``chat.completion`` as a Responses answer (A166-A169).

    Args:
        completion: The engine's complete answer; only its first choice is taken, and it is not changed.
        request: The request in the Responses shape; its model and settings are echoed.
        split_think: Make ``<think>`` sections of the text a reasoning item.
        keep_id: Keep the engine's id, by which a captured call is found (A169); else the id is new.

    Returns:
        The answer. A text that stopped the engine stands under ``gym_ray`` as ``stop_sequence``, for Messages clients.

    Raises:
        EngineError: The completion failed or is none; status 502.
    """
    choice = _first_choice(completion)
    reason = choice.get("finish_reason")
    cut = _CUT.get(reason) if isinstance(reason, str) else None
    engine_id = name_of(completion.get("id")) if keep_id else ""
    stop = choice.get("stop_reason")  # some engines tell the stop text that ended the answer
    tier = name_of(completion.get("service_tier"))
    echoed = {key: default if request.get(key) is None else request[key] for key, default in _ECHOED.items()}
    return {
        **echoed,
        **({"service_tier": tier} if tier else {}),
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool} for tool in objects(request.get("tools"))
        ],
        "id": engine_id or fresh_id("resp_"),
        "object": "response",
        "created_at": moment(completion.get("created")),
        "status": "completed" if cut is None else "incomplete",
        "error": None,
        "incomplete_details": None if cut is None else {"reason": cut},
        "model": name_of(request.get("model"), completion.get("model")),
        "output": _output(choice, split_think=split_think),
        "usage": responses_usage(completion.get("usage")),
        **({"gym_ray": {"stop_sequence": stop}} if isinstance(stop, str) and reason == "stop" else {}),
    }


def _first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    refuse_failure(completion)
    choices = answer_objects(completion.get("choices"), "choices")
    if not choices:
        raise broken("choices", "is missing or empty: this is no answer")
    choice = choices[0]
    refuse_failure(choice, "choices[0].")
    if choice.get("finish_reason") in _BROKEN:
        raise broken("choices[0].finish_reason", f"is {shown(choice['finish_reason'])}: no finished answer")
    if not isinstance(choice.get("message"), Mapping):
        raise broken("choices[0].message", f"should be an object, not {shown(choice.get('message'))}")
    return choice


def _output(choice: Mapping[str, Any], *, split_think: bool) -> list[dict[str, Any]]:
    message = choice["message"]
    path = "choices[0].message"
    said = _said(message.get("content"), f"{path}.content")
    refusal = answer_text(message.get("refusal"), f"{path}.refusal")
    sections, said = thoughts.split(said) if split_think else ([], said)
    items = thoughts.reasoning_items(message, sections)
    calls = _calls(message, path)
    if said or refusal or not (items or calls):
        items.append(_message_item(said, refusal))
    return items + calls


def _said(content: object, path: str) -> str:
    """The text of an answer; some servers send it in parts."""
    if not isinstance(content, list):
        return answer_text(content, path)
    parts = enumerate(answer_objects(content, path))
    return "".join(answer_text(part.get("text"), f"{path}[{index}].text") for index, part in parts)


def _message_item(said: str, refusal: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if said or not refusal:
        content.append({"type": "output_text", "text": said, "annotations": []})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    return {
        "id": fresh_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def _calls(message: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    calls = answer_objects(message.get("tool_calls"), f"{path}.tool_calls")
    if calls:
        return [_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)]
    legacy = message.get("function_call")
    if legacy is None:
        return []
    if not isinstance(legacy, Mapping):
        raise broken(f"{path}.function_call", f"should be an object, not {shown(legacy)}")
    return [_call({"function": legacy}, path)]


def _call(call: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = name_of(call.get("id")) or fresh_id("call_")
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, Mapping):
        return {
            "id": call_id,
            "type": "custom_tool_call",
            "call_id": call_id,
            "name": answer_text(custom.get("name"), f"{path}.custom.name"),
            "input": argument_text(custom.get("input"), f"{path}.custom.input"),
        }
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise broken(f"{path}.function", f"should be an object, not {shown(function)}")
    return {
        "id": call_id,
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": answer_text(function.get("name"), f"{path}.function.name"),
        "arguments": argument_text(function.get("arguments"), f"{path}.function.arguments"),
    }
