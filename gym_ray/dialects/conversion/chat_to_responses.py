"""Asks a Responses engine what a Chat client asked, and tells in Responses what a Chat engine answered.

What the engine wrote is never repaired: arguments stay the text they are, only ``<think>`` sections move (A166, B27).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gym_ray.dialects import fields
from gym_ray.dialects.conversion import chat_reasoning, chat_tools, free_text
from gym_ray.dialects.conversion.answer_parts import (
    custom_call_item,
    function_call_item,
    message_item,
    response_object,
    text_part,
)
from gym_ray.dialects.conversion.carried import (
    CARRIED_SETTINGS,
    SHARED_SETTINGS,
    answer_objects,
    answer_text,
    argument_text,
    broken,
    moment,
    name_of,
    objects,
    refuse_failure,
    shown,
    wordless,
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
    wanted.update({key: body[key] for key in SHARED_SETTINGS if body.get(key) is not None})
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
    found = {key: body[key] for key in CARRIED_SETTINGS if body.get(key) is not None and body[key] != {}}
    found.pop("stop", None)
    stop = fields.stop_texts(body, "stop")
    return {"stop": list(stop), **found} if stop else found


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
        The answer. A text that stopped the engine stands under ``gym_ray`` as ``stop_sequence``, for Messages clients;
        parts of the message that are no text stand there as ``unconverted``.

    Raises:
        EngineError: The completion failed or is none; status 502.
    """
    choice = _first_choice(completion)
    reason = choice.get("finish_reason")
    cut = _CUT.get(reason) if isinstance(reason, str) else None
    response = response_object(
        request,
        model=name_of(completion.get("model")),
        output=_output(choice, _custom_names(request), split_think=split_think),
        incomplete=None if cut is None else {"reason": cut},
        usage=responses_usage(completion.get("usage")),
        response_id=name_of(completion.get("id")) if keep_id else "",
        created_at=moment(completion.get("created")),
    )
    tier, stop = name_of(completion.get("service_tier")), choice.get("stop_reason")
    if tier:
        response["service_tier"] = tier
    aside: dict[str, Any] = {}
    if isinstance(stop, str) and reason == "stop":
        aside["stop_sequence"] = stop
    unconverted = wordless(choice["message"].get("content"))
    if unconverted:
        aside["unconverted"] = unconverted
    return {**response, "gym_ray": aside} if aside else response


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


def _output(choice: Mapping[str, Any], custom: Collection[str], *, split_think: bool) -> list[dict[str, Any]]:
    message = choice["message"]
    path = "choices[0].message"
    said = _said(message.get("content"), f"{path}.content")
    refusal = answer_text(message.get("refusal"), f"{path}.refusal")
    sections, said = chat_reasoning.split(said) if split_think else ([], said)
    items = chat_reasoning.reasoning_items(message, sections)
    calls = _calls(message, path, custom)
    if said or refusal or not (items or calls):
        parts = [text_part(said)] if said or not refusal else []
        items.append(message_item([*parts, {"type": "refusal", "refusal": refusal}] if refusal else parts))
    return items + calls


def _custom_names(request: Mapping[str, Any]) -> frozenset[str]:
    custom = [tool for tool in objects(request.get("tools")) if tool.get("type") == "custom"]
    return frozenset(name_of(tool.get("name")) for tool in custom)


def _said(content: object, path: str) -> str:
    """The text of an answer; some servers send it in parts."""
    if not isinstance(content, list):
        return answer_text(content, path)
    parts = enumerate(answer_objects(content, path))
    return "".join(answer_text(part.get("text"), f"{path}[{index}].text") for index, part in parts)


def _calls(message: Mapping[str, Any], path: str, custom: Collection[str]) -> list[dict[str, Any]]:
    calls = answer_objects(message.get("tool_calls"), f"{path}.tool_calls")
    if calls:
        return [_call(call, f"{path}.tool_calls[{index}]", custom) for index, call in enumerate(calls)]
    legacy = message.get("function_call")
    return [] if legacy is None else [_call({"function": legacy}, f"{path}.function_call", custom)]


def _call(call: Mapping[str, Any], path: str, custom: Collection[str]) -> dict[str, Any]:
    call_id = name_of(call.get("id")) or fresh_id("call_")
    if isinstance(call.get("custom"), Mapping) and call.get("type") == "custom":
        place, given = f"{path}.custom", call["custom"]
        name = answer_text(given.get("name"), f"{place}.name")
        return custom_call_item(call_id, name, argument_text(given.get("input"), f"{place}.input"))
    place, given = f"{path}.function", call.get("function")
    if not isinstance(given, Mapping):
        raise broken(place, f"should be an object, not {shown(given)}")
    name = answer_text(given.get("name"), f"{place}.name")
    arguments = argument_text(given.get("arguments"), f"{place}.arguments")
    if name in custom:
        return custom_call_item(call_id, name, free_text.as_input(arguments))
    return function_call_item(call_id, name, arguments)
