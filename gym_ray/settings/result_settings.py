"""What a run writes beside its records, and when it counts as a success (D39, D106 to D117, D163)."""

from __future__ import annotations

from pathlib import Path

from gym_ray.settings.fields import FrozenModel, Name, PositiveCount

__all__ = ["ResultSettings"]


class ResultSettings(FrozenModel):
    """What becomes of finished rollouts.

    Attributes:
        output_jsonl_fpath: Where finished rollouts go.
        require_complete: End with an error unless every row has a result (D39).
        derive_turns: Derive an agent's turns from its model calls where it reported none (D95).
        compact_evidence: Store each distinct item of a rollout's evidence once, beside the records (D163).
        disable_aggregation: Write no metrics.
        metrics_group_by: Dotted path of the field of a row by which metrics are grouped.
        count_failure_classes_as_zero: Failed rollouts of these classes count with reward 0 (D115).
        count_missing_rollouts_as_zero: Rollouts without a record count with reward 0 (D115).
        disable_health_check: Do not judge the records.
        health_check_workers: Processes that judge records when a run is checked as a whole; None for one for each
            processor up to 8, where the output is long enough (D110).
        health_check_ignored_checks: Checks that do not run (D110).
    """

    output_jsonl_fpath: Path | None = None
    require_complete: bool = False
    derive_turns: bool = True
    compact_evidence: bool = False
    disable_aggregation: bool = False
    metrics_group_by: Name = "task_source"
    count_failure_classes_as_zero: tuple[Name, ...] = ()
    count_missing_rollouts_as_zero: bool = False
    disable_health_check: bool = False
    health_check_workers: PositiveCount | None = None
    health_check_ignored_checks: tuple[Name, ...] = ()
