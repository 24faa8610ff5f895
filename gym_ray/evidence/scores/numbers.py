"""Plain statistics of few values, and what counts as a number in a reply."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["finite", "linear_percentile", "mean", "median", "population_std", "sample_std"]


_LARGEST = 1e100
"""Sums of squares of any amount of such numbers are still numbers; nothing that is measured is larger."""


def finite(value: object) -> float | None:
    """Return a number or boolean as a float, None for everything else, for what is not finite, and beyond 1e100."""
    if not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        return None
    return float(value)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value, exact to the last bit but one."""
    return math.fsum(values) / len(values)


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    return linear_percentile(sorted(values), 50)


def sample_std(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1, 0 for a single value."""
    return population_std(values) * math.sqrt(len(values) / (len(values) - 1)) if len(values) > 1 else 0.0


def population_std(values: Sequence[float]) -> float:
    """Return the standard deviation with n, exactly 0 for equal values."""
    first = values[0]
    shift = math.fsum(value - first for value in values) / len(values)
    return math.sqrt(math.fsum((value - first - shift) ** 2 for value in values) / len(values))


def linear_percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ascending values by linear interpolation between the two nearest."""
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    share = position - below
    return ordered[below] if share == 0 else ordered[below] + (ordered[below + 1] - ordered[below]) * share
