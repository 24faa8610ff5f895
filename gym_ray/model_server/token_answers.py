"""Reads what token capture needs out of requests and answers, and takes tokens out of answers. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gym_ray.dialects import MESSAGES
from gym_ray.dialects.conversion import messages_to_responses
from gym_ray.errors import UnsupportedRequestError, UnusableTokensError
from gym_ray.token_id_capture.capturing.record_building import ServedAnswer, tokens_of_fields
from gym_ray.token_id_capture.exact_tokens import TokenOutcome, Untrainable
from gym_ray.token_id_capture.records import TOKEN_FIELDS
from gym_ray.token_id_capture.request_items import request_items

__all__ = [
    "asks_for_ids",
    "asks_for_several",
    "has_several_choices",
    "items_of",
    "tokens_in",
    "without_tokens",
]

_TOKEN_MEMBERS: Final = (*TOKEN_FIELDS, "token_ids")
"""Token fields, and what a stock server has in a choice."""


def items_of(dialect: str, body: Mapping[str, Any]) -> list[object] | None:
    """Return the turns of a request, which lineage is looked up by (B25-B27); None when it cannot be read.

    A Messages request is read in its Responses form. It is always the client's own body that is read, never what is
    sent to the engine: a conversation is recognised however its single calls are served, streamed or not.
    """
    if dialect != MESSAGES:
        return request_items(body)
    try:
        return request_items(messages_to_responses.request_to_responses(body, remote_images=True))
    except UnsupportedRequestError:
        return None


def asks_for_several(body: Mapping[str, Any]) -> bool:
    """Whether a request wants more than one choice; a rollout can continue only one."""
    number = body.get("n")
    return isinstance(number, int) and number > 1


def asks_for_ids(dialect: str, body: Mapping[str, Any]) -> bool:
    """Whether the client itself wants token ids in its answer; the Messages dialect has no such option (B77)."""
    return dialect != MESSAGES and body.get("return_token_ids") is True


def has_several_choices(answer: Mapping[str, Any]) -> bool:
    """Whether an answer has more than one choice."""
    choices = answer.get("choices")
    return isinstance(choices, list) and len(choices) > 1


def without_tokens(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an answer without tokens, its own, its items', its blocks' and its choices'; None when it has none."""
    changed: dict[str, Any] = {}
    for name, stripped in (("output", _stripped), ("content", _stripped), ("choices", _stripped_choice)):
        items = answer.get(name)
        if not isinstance(items, list):
            continue
        shown = list(map(stripped, items))
        if any(new is not old for new, old in zip(shown, items, strict=True)):
            changed[name] = shown
    own = _stripped(answer)
    return {**own, **changed} if changed or own is not answer else None


def tokens_in(answer: Mapping[str, Any]) -> TokenOutcome | None:
    """Return the tokens that an engine's answer carries by itself, as patched workers' do; None when it has none."""
    try:
        fields = ServedAnswer.of(answer, extract=True).token_fields
        return None if fields is None else tokens_of_fields(fields)
    except UnusableTokensError as error:
        return Untrainable(error.reason, error.detail)


def _stripped(item: Any) -> Any:
    """Return an object without its tokens; the value itself if it has none or is no object."""
    if not isinstance(item, Mapping) or all(item.get(name) is None for name in _TOKEN_MEMBERS):
        return item
    return {name: value for name, value in item.items() if name not in _TOKEN_MEMBERS}


def _stripped_choice(choice: Any) -> Any:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    shown, stripped = _stripped(message), _stripped(choice)
    return stripped if shown is message else {**stripped, "message": shown}
