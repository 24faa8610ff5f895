"""Names that model server and worker keep for each other: no client may send them, and none ever reads them (C1, C328).

A client that could send an admission would write into the storage of another rollout. Tokens, log probabilities and
coordinates in an answer are for the trainer alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.dialects.failures import openai_error_type
from gym_ray.token_id_capture.records import TOKEN_FIELDS
from gym_ray.token_id_capture.staging.constants import NG_CAPTURE_FIELD, NG_COMMIT_COORDS_FIELD, REQUIRED_PREFIX_FIELD

__all__ = ["OFFLOAD_FIELD", "RESERVED_IN_ANSWERS", "shown_refusal", "take_coordinates", "without_reserved"]

_log = logging.getLogger(__name__)

OFFLOAD_FIELD: Final = "offload_params"
"""Where a Megatron worker finds the admission (C245)."""

_NEVER_FROM_CLIENTS: Final = frozenset({NG_CAPTURE_FIELD, NG_COMMIT_COORDS_FIELD, REQUIRED_PREFIX_FIELD})

RESERVED_IN_ANSWERS: Final = frozenset(
    {
        *_NEVER_FROM_CLIENTS,
        *TOKEN_FIELDS,
        "compact_prompt_token_ids",
        "media_spans",
        "prompt_logprobs",
        "token_ids",
    }
)
"""Members that no part of an answer keeps, at whatever depth a worker puts them (C248, C329)."""
_LOG_PROBS: Final = "logprobs"


def without_reserved(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's request without what only this server may say; the request itself stays as it is (C328)."""
    kept = {name: value for name, value in body.items() if name not in _NEVER_FROM_CLIENTS}
    offload = kept.get(OFFLOAD_FIELD)
    if isinstance(offload, Mapping) and NG_CAPTURE_FIELD in offload:
        kept[OFFLOAD_FIELD] = {name: value for name, value in offload.items() if name != NG_CAPTURE_FIELD}
    return kept


def take_coordinates(answer: dict[str, Any]) -> Any:
    """Take every internal member out of a worker's answer, in place, and return the coordinates (C248).

    Args:
        answer: What the worker answered, parsed from JSON.

    Returns:
        What stood under ``ng_commit_coords``, unchecked; None when nothing did.
    """
    coordinates = answer.pop(NG_COMMIT_COORDS_FIELD, None)
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            choice.pop(_LOG_PROBS, None)
    _strip(answer)
    return coordinates


def shown_refusal(status: int, raw: bytes) -> bytes:
    """Return what a client may see of a worker's refusal: servers repeat what they refuse, and internal names with it.

    Args:
        status: The worker's status.
        raw: The body.

    Returns:
        The body itself when it holds no internal name; else the same without those members; an error in plain words,
        when its own words name them.
    """
    if not _names_reserved(raw):
        return raw
    _log.warning("an inference worker answered %d: %s", status, raw[:2000].decode("utf-8", "replace"))
    parsed = exact_json.loads_object(raw)
    if parsed is not None:
        _strip(parsed)
        cleaned = exact_json.dumps(parsed)
        if not _names_reserved(cleaned):
            return cleaned
    message = f"the inference worker answered {status}; its words are in the log of the model server"
    return exact_json.dumps(
        {"error": {"message": message, "type": openai_error_type(status), "param": None, "code": status}}
    )


def _names_reserved(raw: bytes) -> bool:
    return any(name.encode("ascii") in raw for name in RESERVED_IN_ANSWERS)


def _strip(answer: dict[str, Any]) -> None:
    """Remove reserved members at every depth; what a model wrote are texts, never members."""
    waiting: list[Any] = [answer]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name in value.keys() & RESERVED_IN_ANSWERS:
                del value[name]
            waiting.extend(part for part in value.values() if isinstance(part, dict | list))
        else:
            waiting.extend(part for part in value if isinstance(part, dict | list))
