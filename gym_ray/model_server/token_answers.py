"""What token capture has to know about requests and answers of the dialects; pure, so that serving stays readable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.dialects import MESSAGES
from gym_ray.dialects.conversion import messages_to_responses
from gym_ray.errors import UnsupportedRequestError, UnusableTokensError
from gym_ray.token_id_capture.capturing.record_building import ServedAnswer, tokens_of_fields
from gym_ray.token_id_capture.exact_tokens import TokenOutcome, Untrainable
from gym_ray.token_id_capture.records import TOKEN_FIELDS, response_to_output_items
from gym_ray.token_id_capture.request_items import request_items

__all__ = [
    "asks_for_ids",
    "asks_for_several",
    "has_several_choices",
    "items_of",
    "says_something",
    "tokens_in",
    "without_tokens",
]

_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


def items_of(dialect: str, body: Mapping[str, Any]) -> list[object] | None:
    """Return the turns of a request, which lineage is looked up by (B25-B27); None when it cannot be read.

    A Messages request is read in its Responses form. The client's own body is read in every case, whatever it is
    converted to for the engine: a rollout may stream one call and not the next, and its history stays the same.
    """
    if dialect != MESSAGES:
        return request_items(body)
    try:
        return request_items(messages_to_responses.request_to_responses(body, remote_images=True))
    except UnsupportedRequestError:
        return None


def asks_for_several(body: Mapping[str, Any]) -> bool:
    """Whether a request wants more than one choice, of which a rollout can go on with one only."""
    number = body.get("n")
    return isinstance(number, int) and number > 1


def asks_for_ids(dialect: str, body: Mapping[str, Any]) -> bool:
    """Whether the client itself wants token ids in its answer; in the Messages dialect nobody can (B77)."""
    return dialect != MESSAGES and body.get("return_token_ids") is True


def has_several_choices(answer: Mapping[str, Any]) -> bool:
    """Whether an answer has more than one choice."""
    choices = answer.get("choices")
    return isinstance(choices, list) and len(choices) > 1


def says_something(answer: Mapping[str, Any]) -> bool:
    """Whether an answer, of any dialect, whole or cut off, has any content that its client may have used."""
    return any(_has_content(item) for item in response_to_output_items(answer))


def _has_content(item: Mapping[str, Any]) -> bool:
    if item.get("type", "message") != "message":
        return True
    return any(_is_content(item.get(name)) for name in _CONTENT)


def _is_content(value: object) -> bool:
    if isinstance(value, list):
        return any(not isinstance(part, Mapping) or part.get("text") != "" for part in value)
    return bool(value)


def without_tokens(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an answer without token fields, its own, its items' and its choices'; None when there are none."""
    changed: dict[str, Any] = {}
    output, choices = answer.get("output"), answer.get("choices")
    if isinstance(output, list) and any(_carries(item) for item in output):
        changed["output"] = [_stripped(item) for item in output]
    if isinstance(choices, list) and any(_carries(_message_of(choice)) for choice in choices):
        changed["choices"] = [
            {**choice, "message": _stripped(choice["message"])} if _carries(_message_of(choice)) else choice
            for choice in choices
        ]
    return {**_stripped(answer), **changed} if changed or _carries(answer) else None


def tokens_in(answer: Mapping[str, Any]) -> TokenOutcome | None:
    """Return the tokens that an engine's answer carries by itself, as patched workers' do; None when it has none."""
    try:
        fields = ServedAnswer.of(answer, extract=True).token_fields
        return None if fields is None else tokens_of_fields(fields)
    except UnusableTokensError as error:
        return Untrainable(error.reason, error.detail)


def _message_of(choice: object) -> object:
    return choice.get("message") if isinstance(choice, Mapping) else None


def _carries(item: object) -> bool:
    return isinstance(item, Mapping) and any(item.get(name) is not None for name in TOKEN_FIELDS)


def _stripped(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in TOKEN_FIELDS} if _carries(item) else item
