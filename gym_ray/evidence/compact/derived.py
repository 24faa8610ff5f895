"""Members of a trajectory's calls that only repeat what the attachment says about the same call (D90).

They are optional in the trajectory's schema, so a compact record leaves out those that can be derived, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact.places import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD

__all__ = ["dropped_derived", "restored_derived"]

_ALL = (
    "model_call_id",
    "started_at",
    "completed_at",
    "duration_ms",
    "request",
    "response",
    "response_metadata",
    "token_stats",
)
_METADATA = (
    "response_id",
    "model_ref",
    "model",
    "dialect",
    "status_code",
    "response_status",
    "finish_reason",
    "upstream_attempted",
    "response_source",
    "upstream_status_code",
    "local_response_reason",
    "error_category",
    "latency_ttft_ms",
)
_TOKENS = {
    "prompt_tokens": "tokens_in",
    "completion_tokens": "tokens_out",
    "reasoning_tokens": "tokens_reasoning",
    "total_tokens": "tokens_total",
    "cached_tokens": "cached_tokens",
}


def _derived(captured: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "started_at": captured.get("started_at"),
        "completed_at": captured.get("completed_at"),
        "duration_ms": captured.get("latency_total_ms"),
        "response_metadata": {key: captured.get(key) for key in _METADATA},
        "token_stats": {key: captured.get(source) for key, source in _TOKENS.items()},
    }


def dropped_derived(record: dict[str, Any]) -> bool:
    """Leave out what can be derived; returns whether calls must be restored.

    ``record`` gets a new trajectory; calls that are no full dumps, or have no name of their own, all stay as they are.
    """
    trajectory, captured = record.get(TRAJECTORY_FIELD), _captured(record)
    if not isinstance(trajectory, dict):
        return False
    calls = trajectory.get("model_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) and tuple(call) == _ALL for call in calls):
        return False
    record[TRAJECTORY_FIELD] = {**trajectory, "model_calls": [_without(call, captured) for call in calls]}
    return True


def _without(call: dict[str, Any], captured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    known = captured.get(call["model_call_id"] or "")
    if known is None:
        return call
    derived = _derived(known)
    repeated = {key for key, value in derived.items() if exact_json.dumps(value) == exact_json.dumps(call[key])}
    return {key: value for key, value in call.items() if key not in repeated}


def restored_derived(record: dict[str, Any], place: str) -> None:
    """Give ``record`` a new trajectory whose calls have all their members again.

    Raises:
        DamagedRecordError: A call lacks a member, and the attachment does not hold that call.
    """
    trajectory, captured = record[TRAJECTORY_FIELD], _captured(record)
    calls = [_with(call, captured, place) for call in trajectory["model_calls"]]
    record[TRAJECTORY_FIELD] = {**trajectory, "model_calls": calls}


def _with(call: dict[str, Any], captured: Mapping[str, Mapping[str, Any]], place: str) -> dict[str, Any]:
    if len(call) == len(_ALL):
        return call
    known = captured.get(call.get("model_call_id") or "")
    if known is None:
        raise DamagedRecordError(
            f"{place}: call {call.get('model_call_id')} of the trajectory is not in the attachment"
        )
    whole = _derived(known) | call
    return {key: whole[key] for key in _ALL}


def _captured(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the attachment's calls by id, without those whose id is not their own."""
    attachment = record.get(ATTACHMENT_FIELD)
    calls = attachment.get("calls") if isinstance(attachment, dict) else None
    found: dict[str, Mapping[str, Any]] = {}
    twice: set[str] = set()
    for call in calls if isinstance(calls, list) else ():
        name = call.get("model_call_id") if isinstance(call, dict) else None
        if isinstance(name, str):
            (twice.add(name) if name in found else found.__setitem__(name, call))
    return {name: call for name, call in found.items() if name not in twice}
