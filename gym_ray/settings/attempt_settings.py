"""How rollouts are driven: how many at once, how long, how often, and what a resumed run does (D32, D40 to D57)."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from gym_ray.settings.fields import FrozenModel, PositiveCount, PositiveSeconds, Seconds

__all__ = ["AttemptSettings"]


class AttemptSettings(FrozenModel):
    """How attempts start, end, and are tried again.

    Attributes:
        num_samples_in_parallel: Bound on rollouts that run at the same time (D40).
        max_resident_rollout_tasks: Bound on rollouts in hand, those that are being stored included (D40); None takes
            twice those that run.
        run_timeout_s: Longest that one rollout may take; None has no bound (D32).
        dispatch_budget_s: Time in which rollouts may start; the rest is left for a resumed run (D43).
        drain_margin_s: Part of that time that must be left for a start; None learns it from the rollouts that ended.
        dispatch_longest_first: In a resumed run, start rows first that took longest when they failed (D44).
        num_rollout_workers: Worker processes; None lets the cluster choose.
        resume_from_cache: Go on with the run that wrote this output; its rows are the rows, whatever the input says
            now (D49). Without such a run a fresh one begins.
        salvage: In a resumed run, move damaged lines aside instead of refusing to go on (D51).
        max_rollout_attempts: Failed attempts after which a row is given up (D53).
        retry_terminal_timeouts: Try again what ended in a time limit or in a fault of its surroundings, even where the
            agent called it final (D54).
        retry_invalid_judge_responses: In a resumed run, try rows again whose judge answered nonsense (D57).
        route_failures_to_sidecar: Accepted; a failed rollout is always recorded and never ends a run (D34).
        retain_results_in_memory: Accepted; records are never kept in memory (D42, D162).
    """

    num_samples_in_parallel: PositiveCount | None = None
    max_resident_rollout_tasks: PositiveCount | None = None
    run_timeout_s: PositiveSeconds | None = 600.0
    dispatch_budget_s: Seconds | None = None
    drain_margin_s: Seconds | None = None
    dispatch_longest_first: bool = False
    num_rollout_workers: PositiveCount | None = None
    resume_from_cache: bool = False
    salvage: bool = False
    max_rollout_attempts: PositiveCount = 3
    retry_terminal_timeouts: bool = False
    retry_invalid_judge_responses: bool = False
    route_failures_to_sidecar: bool = True
    retain_results_in_memory: bool = False

    @field_validator("dispatch_budget_s")
    @classmethod
    def _budget_has_slots(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("num_samples_in_parallel") is None:
            raise ValueError("needs num_samples_in_parallel; set both")
        return value
