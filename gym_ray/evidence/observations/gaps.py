"""The names of what evidence may lack, beyond a capture's own gaps in ``gym_ray.model_call_capture.attachment``.

The vocabulary is open: an agent may report a gap under a name of its own, and it is carried on as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "AGENT_OBSERVATIONS_INVALID",
    "CAPTURE_GAP_INVALID",
    "CONVERSATION_UNAVAILABLE",
    "GAP_CODES",
    "MODEL_CALLS_UNAVAILABLE",
    "MULTIMODAL_HISTORY_REDACTED",
    "OWNERSHIP_UNAVAILABLE",
    "PAYLOADS_BY_REFERENCE",
    "PRODUCER_TRAJECTORY_IDENTITY_MISMATCH",
    "PRODUCER_TRAJECTORY_INVALID",
    "REFERENCE_AMBIGUOUS",
    "REFERENCE_CONFLICT",
    "REFERENCE_UNAVAILABLE",
    "REFERENCE_UNMATCHED",
    "RESOLUTION_UNAVAILABLE",
    "TURNS_UNAVAILABLE",
    "TURN_MODEL_CALL_SCOPE_INCOMPLETE",
    "distinct",
    "gap",
]

REFERENCE_UNMATCHED = "model_call_reference_unmatched"
"""No captured call of the rollout is what a reference names (D77)."""
REFERENCE_AMBIGUOUS = "model_call_reference_ambiguous"
"""Several captured calls are what a reference names (D77)."""
REFERENCE_CONFLICT = "model_call_reference_conflict"
"""The call that a reference names belongs to somebody else already (D77 to D79)."""
OWNERSHIP_UNAVAILABLE = "model_call_ownership_unavailable"
"""A captured call belongs to no invocation (D78, D80)."""
REFERENCE_UNAVAILABLE = "model_call_reference_unavailable"
"""The agent made a call whose answer had no id, so it cannot refer to it (D145)."""
RESOLUTION_UNAVAILABLE = "resolution_unavailable"
"""Nobody said whether the task was resolved (D145)."""

CAPTURE_GAP_INVALID = "model_call_capture_gap_invalid"
"""A capture listed something under its gaps that is none (D92)."""
AGENT_OBSERVATIONS_INVALID = "agent_observations_invalid"
"""The reply's observations break their rules; none of them was used (D86)."""
PRODUCER_TRAJECTORY_INVALID = "producer_trajectory_invalid"
"""The reply's trajectory breaks its rules; none of it was used (D85)."""
PRODUCER_TRAJECTORY_IDENTITY_MISMATCH = "producer_trajectory_identity_mismatch"
"""The reply's trajectory named another task or rollout than the one that ran (D85)."""

MODEL_CALLS_UNAVAILABLE = "model_calls_unavailable"
"""A trajectory knows no model call (D97)."""
TURNS_UNAVAILABLE = "turns_unavailable"
"""A trajectory has no turn (D97)."""
CONVERSATION_UNAVAILABLE = "conversation_unavailable"
"""No invocation of a trajectory has a conversation (D97), or that of one cannot be shown."""

MULTIMODAL_HISTORY_REDACTED = "multimodal_history_redacted"
"""The producer asked that no payload of its model calls leave the capture (D68, D100)."""
TURN_MODEL_CALL_SCOPE_INCOMPLETE = "turn_model_call_scope_incomplete"
"""The producer does not know every model call of a turn."""
PAYLOADS_BY_REFERENCE = "payloads_by_reference"
"""Payloads are stored beside the record, each distinct part once."""

GAP_CODES = frozenset(
    {
        REFERENCE_UNMATCHED,
        REFERENCE_AMBIGUOUS,
        REFERENCE_CONFLICT,
        OWNERSHIP_UNAVAILABLE,
        REFERENCE_UNAVAILABLE,
        RESOLUTION_UNAVAILABLE,
        CAPTURE_GAP_INVALID,
        AGENT_OBSERVATIONS_INVALID,
        PRODUCER_TRAJECTORY_INVALID,
        PRODUCER_TRAJECTORY_IDENTITY_MISMATCH,
        MODEL_CALLS_UNAVAILABLE,
        TURNS_UNAVAILABLE,
        CONVERSATION_UNAVAILABLE,
        MULTIMODAL_HISTORY_REDACTED,
        TURN_MODEL_CALL_SCOPE_INCOMPLETE,
        PAYLOADS_BY_REFERENCE,
    }
)
"""Every code of this module."""


def gap(code: str, invocation_id: str | None = None, detail: str | None = None) -> dict[str, str | None]:
    """Return a gap as bundles and trajectories hold it: all three members, null where nothing is known (D71)."""
    return {"code": code, "invocation_id": invocation_id, "detail": detail}


def distinct(gaps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the gaps without those that say what an earlier one said (D82, D98)."""
    found: dict[tuple[str, str | None, str | None], dict[str, Any]] = {}
    for each in gaps:
        found.setdefault((each["code"], each["invocation_id"], each["detail"]), each)
    return list(found.values())
