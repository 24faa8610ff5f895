"""Puts the parent's exact tokens into a request, and checks that the answer proves their use (B94, B95, W35).

Only the prompt ids that the engine reports are proof. Without it the call fails or its rollout is marked, as the call's
context says; it never counts as a continuation.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from gym_ray.errors import RequiredPrefixError
from gym_ray.token_id_capture.capturing.capture_context import CaptureContext
from gym_ray.token_id_capture.reasons import PREFIX_NOT_APPLIED, PREFIX_REMOVED, PREFIX_UNPROVEN
from gym_ray.token_id_capture.token_arrays import pack_token_ids, starts_with

__all__ = [
    "REQUIRED_PREFIX_FIELD",
    "prefix_problem",
    "put_prefix",
]

REQUIRED_PREFIX_FIELD: Final = "required_prefix_token_ids"


def put_prefix(context: CaptureContext, body: MutableMapping[str, Any]) -> bool:
    """Put the proven parent's tokens into a request, and return whether there were any (B94)."""
    parent = context.parent
    if parent is None:
        return False
    body[REQUIRED_PREFIX_FIELD] = parent.token_ids.tolist()
    context.prefix_requested = True
    return True


def prefix_problem(
    context: CaptureContext, body: Mapping[str, Any], response: Mapping[str, Any]
) -> RequiredPrefixError | None:
    """Return why an answer does not prove the prefix that its request asked for, None if it does (B95)."""
    parent = context.parent
    required = body.get(REQUIRED_PREFIX_FIELD)
    if parent is None or required is None:
        return RequiredPrefixError(PREFIX_REMOVED, f"{REQUIRED_PREFIX_FIELD} did not stay in the request")
    prompt = _prompt_ids(response)
    if prompt is None:
        return RequiredPrefixError(PREFIX_UNPROVEN, "the answer has no list of prompt token ids")
    try:
        packed = pack_token_ids(prompt)
    except ValueError as error:
        return RequiredPrefixError(PREFIX_UNPROVEN, f"prompt token ids: {error}")
    wanted = parent.token_ids
    if starts_with(packed, wanted):
        return None
    detail = f"the engine's prompt of {packed.size} tokens does not begin with the {wanted.size} that went in"
    return RequiredPrefixError(PREFIX_NOT_APPLIED, detail)


def _prompt_ids(response: Mapping[str, Any]) -> list[int] | None:
    """Return the prompt ids of the first choice's message, else the answer's own."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    in_message = message.get("prompt_token_ids") if isinstance(message, Mapping) else None
    found = response.get("prompt_token_ids") if in_message is None else in_message
    return found if isinstance(found, list) else None
