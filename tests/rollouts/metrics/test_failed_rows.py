from __future__ import annotations

from typing import Any

from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.metrics import FailedRows, RunMetrics


def failure(agent: str) -> RolloutSummary:
    unknown: dict[str, Any] = dict.fromkeys(RolloutSummary.__dataclass_fields__)
    given = {"rollout_id": "0-0", "agent": agent, "task": "0", "masked": False, "gap_codes": ()}
    return RolloutSummary(**{**unknown, **given, "failure_class": "agent_run_error", "latency_ms": 1.0})


def test_a_failure_is_taken_back_once_and_only_where_it_was_counted() -> None:
    metrics = RunMetrics()
    failed = FailedRows(3, metrics)
    failed.requeued(0)  # it failed in an earlier run
    for ordinal, agent in ((0, "a"), (2, "b")):
        metrics.add(failure(agent))
        failed.note(ordinal, agent)
    failed.requeued(1)
    failed.requeued(2)
    failed.requeued(2)
    found = metrics.to_dict()
    assert (found["overall"]["rollouts"]["failed"], found["overall"]["rollouts"]["retried"]) == (1, 1)
    assert (found["agents"]["a"]["rollouts"]["failed"], found["agents"]["b"]["rollouts"]["failed"]) == (1, 0)
    assert found["overall"]["failures"] == {"agent_run_error": 2}, "attempts that failed did fail"
