"""How a run is driven: what a collection is told besides its rows (D32, D40 to D43, D53, D54)."""

from __future__ import annotations

from dataclasses import dataclass

from gym_ray.rollouts.row_states.retry_rules import DEFAULT_MAX_ATTEMPTS

__all__ = ["CollectionSettings"]


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """How a run is driven.

    Attributes:
        num_samples_in_parallel: Runs at once, None for what the workers can take (D40).
        max_resident_rollout_tasks: Attempts in hand at once, those that are being joined included; None for twice the
            runs at once.
        run_timeout_s: Time one run may take, None for no limit (D32).
        dispatch_budget_s: Time in which runs may start, None for no limit; the rest stays unfinished work (D43).
        drain_margin_s: Part of that time that must be left for a start; None to learn it from the runs that ended.
        join_backoff_s: Wait before the second try of a failed join; doubles with each further one.
        max_attempts: Recorded failures, over all runs, after which a row is given up (D53).
        retry_terminal_timeouts: Which failures of earlier runs are final (D54).
    """

    num_samples_in_parallel: int | None = None
    max_resident_rollout_tasks: int | None = None
    run_timeout_s: float | None = None
    dispatch_budget_s: float | None = None
    drain_margin_s: float | None = None
    join_backoff_s: float = 0.5
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_terminal_timeouts: bool = False

    def __post_init__(self) -> None:
        for name in ("num_samples_in_parallel", "max_resident_rollout_tasks", "run_timeout_s", "max_attempts"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: {value!r}; give a number above 0, or leave it out")
        if self.dispatch_budget_s is not None and self.num_samples_in_parallel is None:
            raise ValueError("dispatch_budget_s: needs num_samples_in_parallel; set both")
