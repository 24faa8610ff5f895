"""What of a rollout's end is scored: its reply, a zero in its place, or nothing (D115)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.scores.numbers import finite
from gym_ray.rollouts.metrics.outcome_table import RolloutOutcome

__all__ = ["AggregationOptions", "group_of", "scored_reply"]

_LONGEST_GROUP = 200


@dataclass(frozen=True, slots=True)
class AggregationOptions:
    """How a run is aggregated.

    Attributes:
        count_failure_classes_as_zero: Classes whose failures count as reward 0, in the metrics only (D115).
        count_missing_rollouts_as_zero: Rows that left no record anywhere count as reward 0.
        group_by: Dotted path in a row (in a record, where there are no rows) whose value is the task's group.
    """

    count_failure_classes_as_zero: frozenset[str] = frozenset()
    count_missing_rollouts_as_zero: bool = False
    group_by: str = "task_source"


def scored_reply(task: Any, rollout: RolloutOutcome, options: AggregationOptions) -> dict[str, Any] | None:
    """Return the verify response that metrics count for a rollout, None when they count none.

    A failure of a listed class counts with its reward, or 0 where it has none; nothing says any more that it failed.
    """
    if rollout.state == "done":
        return rollout.reply
    if rollout.reply is None:
        if not options.count_missing_rollouts_as_zero:
            return None
        ref = {"agent_ref": {"name": rollout.agent}} if rollout.agent else {}
        key = {"_ng_task_index": task, "_ng_rollout_index": rollout.repeat}
        return {**key, **ref, "mask_sample": False, "reward": 0.0}
    failure_class = rollout.reply.get("_ng_failure_class")
    if not isinstance(failure_class, str) or failure_class not in options.count_failure_classes_as_zero:
        return None
    kept = {key: value for key, value in rollout.reply.items() if not key.startswith("_ng_failure_")}
    reward = kept.get("reward")
    return {**kept, "mask_sample": False, "reward": reward if finite(reward) is not None else 0.0}


def group_of(keyed: Mapping[str, Any], path: str) -> str | None:
    """Return the group that a row or a record names at a dotted path, None when it names none."""
    value: Any = keyed
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    if value is None:
        return None
    name = value if isinstance(value, str) else exact_json.dumps(value).decode("utf-8", "replace")
    return name if len(name) <= _LONGEST_GROUP else name[:_LONGEST_GROUP] + "…"
