"""Means over rollouts with their uncertainty, where rollouts of one task are not independent."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.rollouts.metrics.student import t_975

__all__ = ["ClusteredMean", "MeanEstimate"]


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean and how far it can be trusted; None is unknown.

    Attributes:
        mean: Mean over the rollouts, None without any.
        measured: Rollouts it was taken over.
        tasks: Tasks that these are of.
        standard_error: None for less than two tasks: one task says nothing about others.
        low_95, high_95: The 95 % interval, None for less than two tasks.
    """

    mean: float | None
    measured: int
    tasks: int
    standard_error: float | None
    low_95: float | None
    high_95: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "low_95": self.low_95,
            "high_95": self.high_95,
            "measured": self.measured,
            "tasks": self.tasks,
        }


class ClusteredMean:
    """The mean over rollouts, with a standard error clustered by task; 16 bytes a task.

    With G tasks, N rollouts x in all, their mean m, and the residual sum of task g being u_g = Σ_{i in g} (x_i - m):

        standard error = sqrt( G / (G - 1) · Σ_g u_g² ) / N
        95 % interval  = m ± t(0.975, G - 1 degrees of freedom) · standard error

    G / (G - 1) is the small-sample correction: with one rollout a task, the formula is the usual s / sqrt(N). Repeats
    of one task may correlate in any way; tasks are taken as independent. The interval is not cut to the range that a
    reward may have.
    """

    def __init__(self) -> None:
        self._counts, self._sums = array("Q"), array("d")
        self._first: float | None = None

    def add_task(self, values: Sequence[float]) -> None:
        """Take the measured, finite values of all rollouts of one task in; a task without any does not count."""
        if not values:
            return
        if self._first is None:
            self._first = values[0]
        # As differences from the first value: equal values have no spread at all, not one of rounding.
        self._counts.append(len(values))
        self._sums.append(math.fsum(value - self._first for value in values))

    def estimate(self) -> MeanEstimate:
        """Return the mean and its interval over what was added."""
        tasks, measured = len(self._counts), sum(self._counts)
        if self._first is None:
            return MeanEstimate(None, 0, 0, None, None, None)
        shift = math.fsum(self._sums) / measured
        mean = self._first + shift
        if tasks < 2:
            return MeanEstimate(mean, measured, tasks, None, None, None)
        residuals = (total - count * shift for count, total in zip(self._counts, self._sums, strict=True))
        squares = math.fsum(residual * residual for residual in residuals)
        error = math.sqrt(tasks / (tasks - 1) * squares) / measured
        half = t_975(tasks - 1) * error
        return MeanEstimate(mean, measured, tasks, error, mean - half, mean + half)
