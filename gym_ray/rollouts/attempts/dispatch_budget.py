"""Decides when a run with limited time starts nothing more (D43)."""

from __future__ import annotations

from collections.abc import Callable

from gym_ray.rollouts.metrics import Distribution

__all__ = ["DispatchBudget"]

_ENOUGH = 5


class DispatchBudget:
    """Time for dispatching: rows that would probably not end within it stay unfinished work, and are no failures.

    Args:
        budget_s: Time from the first question on, None for no limit.
        margin_s: Time that must be left for a start; None for the p75 of the runs that ended, once five have.
        clock: Monotonic seconds.
    """

    def __init__(self, budget_s: float | None, margin_s: float | None, clock: Callable[[], float]) -> None:
        self._budget_s, self._margin_s, self._clock = budget_s, margin_s, clock
        self._ends_at: float | None = None
        self._durations_ms = Distribution()

    def note(self, duration_ms: float) -> None:
        """Take in how long a run took."""
        self._durations_ms.add(duration_ms)

    def spent(self) -> bool:
        """Return whether it is too late to start another run; stays true from then on unless runs get shorter."""
        if self._budget_s is None:
            return False
        now = self._clock()
        if self._ends_at is None:
            self._ends_at = now + self._budget_s
        left_s = self._ends_at - now
        return left_s <= 0 or left_s < self._margin()

    def _margin(self) -> float:
        if self._margin_s is not None:
            return self._margin_s
        if self._durations_ms.count < _ENOUGH:
            return 0.0
        return (self._durations_ms.percentile(75) or 0.0) / 1000
