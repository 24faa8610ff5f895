"""Names the health checks, how bad a finding of each is, and which gaps make a check blind (D107, D110, D170).

A check that could not see what it needs is unobserved and never passed: silence is no success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from gym_ray.evidence.observations.gaps import MODEL_CALLS_UNAVAILABLE, TURNS_UNAVAILABLE
from gym_ray.model_call_capture.attachment import (
    CALLS_MISSING,
    INCOMPLETE,
    OPEN_CALLS,
    RECORDS_UNREADABLE,
    TRAJECTORY_PROJECTION_FAILED,
    UNREADABLE,
    WRITER_UNREACHABLE,
)

__all__ = [
    "CALLS_UNSEEN",
    "CHECKS",
    "PEER_RULES",
    "RULES_VERSION",
    "SEVERITIES",
    "TASK_CHECKS",
    "TRAJECTORY_UNSEEN",
    "TURNS_UNSEEN",
    "Severity",
    "unknown_checks",
]

Severity = Literal["error", "warning"]

PEER_RULES: Final = 1
"""Rules whose token comparison sums the calls that turns name."""
RULES_VERSION: Final = 2
"""Rules whose token comparison sums every owned call (D111); what a report uses unless it is told otherwise."""

SEVERITIES: Final[Mapping[str, Severity]] = MappingProxyType(
    {
        "check_execution_error": "error",
        "record_unreadable": "error",
        "rollout_duplicate_identity": "error",
        "rollout_missing_agent_turns": "error",
        "rollout_ended_on_failed_model_call": "error",
        "agent_turn_hollow": "warning",
        "model_call_zero_completion_tokens": "warning",
        "model_call_missing_token_counts": "warning",
        "trajectory_capture_mismatch": "error",
        "model_call_failed": "error",
        "rollout_token_count_mismatch": "error",
        "model_call_runaway_generation": "warning",
        # It may be warnings alone that make every repeat unhealthy.
        "task_consistently_unhealthy": "warning",
        "task_no_successful_model_calls": "error",
    }
)
"""How bad a finding of each check is (D170)."""

CHECKS: Final[tuple[str, ...]] = tuple(SEVERITIES)
"""Ids of all checks, in the order of reports."""
TASK_CHECKS: Final = CHECKS[-2:]
"""Checks that look at all repeats of a task."""
TRAJECTORY_UNSEEN: Final = frozenset({TRAJECTORY_PROJECTION_FAILED})
TURNS_UNSEEN: Final = frozenset({TURNS_UNAVAILABLE})
# The last three say that the capture is not known to be whole, as the first ones do; only this project writes them.
CALLS_UNSEEN: Final = frozenset(
    {
        MODEL_CALLS_UNAVAILABLE,
        INCOMPLETE,
        RECORDS_UNREADABLE,
        UNREADABLE,
        OPEN_CALLS,
        WRITER_UNREACHABLE,
        CALLS_MISSING,
    }
)


def unknown_checks(ids: Iterable[str]) -> list[str]:
    """Return the ids that name no check, sorted."""
    return sorted(set(ids) - SEVERITIES.keys())
