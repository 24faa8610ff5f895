"""Which ids a token store takes: those that a column of text holds exactly and a marker can be named after."""

from __future__ import annotations

from typing import Final

from gym_ray.errors import RefusedRecordError, RolloutIdError
from gym_ray.token_id_capture.staging.parquet.segments.layout import frozen_name

__all__ = ["check_call_id", "check_rollout_id"]

_LONGEST_NAME: Final = 200


def check_rollout_id(rollout_id: object) -> str:
    """Return a rollout id that rows and a marker can have; spaces, slashes and letters of any script are fine.

    Raises:
        RolloutIdError: It is no text, empty, no Unicode, or too long to name a marker; the message shows it.
    """
    if not isinstance(rollout_id, str) or not rollout_id:
        raise RolloutIdError(f"{rollout_id!r} cannot be a rollout id; use a text that is not empty")
    if not _is_text(rollout_id):
        raise RolloutIdError(f"{rollout_id!r} cannot be a rollout id; it holds half of a surrogate pair")
    marker = frozen_name(rollout_id).rpartition("/")[2]
    if len(marker) > _LONGEST_NAME:
        problem = f"its percent-encoded form names a marker of {len(marker)} characters, use at most {_LONGEST_NAME}"
        raise RolloutIdError(f"{rollout_id[:80]!r}... cannot be a rollout id; {problem}")
    return rollout_id


def check_call_id(rollout_id: str, model_call_id: object) -> str:
    """Return a call id that a row can have; empty is allowed, for what is about no call.

    Raises:
        RefusedRecordError: It is no text, or no Unicode.
    """
    if not isinstance(model_call_id, str) or not _is_text(model_call_id):
        raise RefusedRecordError(f"{rollout_id}: {model_call_id!r} cannot be kept as the id of a call")
    return model_call_id


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
