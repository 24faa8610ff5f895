"""Says whether a rollout can be trusted: a verdict for each record, and a report over a run (D106-D111, D170)."""

from gym_ray.evidence.health.report import HealthReport, finished_row
from gym_ray.evidence.health.rollout import (
    STATS,
    check_rollout,
    check_stored,
    located,
    partly_unreadable,
    rules_of,
    unreadable_row,
)
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
    "HealthReport",
    "Severity",
    "check_rollout",
    "check_stored",
    "finished_row",
    "located",
    "partly_unreadable",
    "rules_of",
    "unknown_checks",
    "unreadable_row",
]
