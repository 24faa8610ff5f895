"""Tells a whole chat completion as its stream (A137, A138)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gym_ray.dialects.frames import DONE, event_frame, json_text

__all__ = ["replay"]

# Members of a message that streams have no rule for; a client would miss them, so they follow as they are.
_FURTHER: Final = ("reasoning_details", "annotations", "audio", "function_call")


def replay(answer: Mapping[str, Any], *, include_usage: bool) -> list[bytes]:
    """Return the chunks of an answer; see :func:`gym_ray.dialects.replay.replay_frames`."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return [DONE]
    told = [choice for index, value in enumerate(choices) for choice in _told(index, value)]
    aside = {"gym_ray": answer["gym_ray"]} if answer.get("gym_ray") else {}  # what Chat cannot say comes with the head
    chunks = [_chunk(answer, [choice], **({} if position else aside)) for position, choice in enumerate(told)]
    usage = answer.get("usage")
    if include_usage and usage:
        chunks.append(_chunk(answer, [], usage=usage))
    return [*chunks, DONE]


def _chunk(answer: Mapping[str, Any], choices: list[dict[str, Any]], **members: Any) -> bytes:
    fingerprint = answer.get("system_fingerprint")
    return event_frame(
        {
            "id": answer.get("id"),
            "object": "chat.completion.chunk",
            "created": answer.get("created"),
            "model": answer.get("model"),
            "choices": choices,
            **({} if fingerprint is None else {"system_fingerprint": fingerprint}),
            **members,
        }
    )


def _told(index: int, choice: Any) -> Iterator[dict[str, Any]]:
    """Yield what the chunks say about one choice, which is numbered by its position."""
    if not isinstance(choice, Mapping):
        return
    message = choice.get("message")
    deltas = list(_deltas(message if isinstance(message, Mapping) else {}))
    # Log probabilities go with the words they belong to, else with the end.
    log_probs = {} if choice.get("logprobs") is None else {"logprobs": choice["logprobs"]}
    worded = next((i for i, delta in enumerate(deltas) if "content" in delta or "refusal" in delta), None)
    for position, delta in enumerate(deltas):
        there = log_probs if position == worded else {}
        yield {"index": index, "delta": delta, "finish_reason": None, **there}
    yield {
        "index": index,
        "delta": {},
        "finish_reason": choice.get("finish_reason"),
        **(log_probs if worded is None else {}),
    }


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": message.get("role") or "assistant"}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        yield {"reasoning_content": reasoning}
    for name in ("content", "refusal"):
        if message.get(name):
            yield {name: message[name]}
    listed = message.get("tool_calls")
    calls = [call for call in listed if isinstance(call, Mapping)] if isinstance(listed, list) else []
    if calls:
        yield {"tool_calls": [_call(index, call) for index, call in enumerate(calls)]}
    for name in _FURTHER:
        if message.get(name):
            yield {name: message[name]}


def _call(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    told = {**call, "index": index, "id": call.get("id"), "type": call.get("type") or "function"}
    function = call.get("function")
    if told["type"] == "function" or isinstance(function, Mapping):
        named: Mapping[str, Any] = function if isinstance(function, Mapping) else {}
        told["function"] = {**named, "name": named.get("name"), "arguments": _arguments(named.get("arguments"))}
    return told


def _arguments(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)
