"""Says whether a rollout can be trusted: a verdict for each record, and a report over a run (D106-D111, D170)."""

from gym_ray.evidence.health.rollout import STATS, check_line, check_rollout, check_stored
from gym_ray.evidence.health.rules import (
    CHECKS,
    PEER_RULES,
    RULES_VERSION,
    SEVERITIES,
    Severity,
    unknown_checks,
)

__all__ = [
    "CHECKS",
    "PEER_RULES",
    "RULES_VERSION",
    "SEVERITIES",
    "STATS",
    "Severity",
    "check_line",
    "check_rollout",
    "check_stored",
    "unknown_checks",
]
