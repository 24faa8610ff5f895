"""The 97.5 % quantile of Student's t distribution, without a statistics library."""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["t_975"]

_COVERED = 0.95
_NORMAL_975 = NormalDist().inv_cdf(0.975)
_MOST_TERMS = 200


def t_975(degrees: int) -> float:
    """Return t such that a t variable lies within ±t with probability 0.95; exact to about 1e-11.

    Args:
        degrees: Degrees of freedom, at least 1.

    Raises:
        ValueError: ``degrees`` is less than 1.
    """
    if degrees < 1:
        raise ValueError(f"degrees of freedom: {degrees} is less than 1")
    if degrees == 1:
        return math.tan(math.pi / 2 * _COVERED)
    if degrees == 2:
        return _COVERED * math.sqrt(2 / (1 - _COVERED**2))
    t = _expansion(degrees)
    if degrees > _MOST_TERMS:
        return t
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    for _ in range(50):  # Newton's steps: the probability is concave in t, so that they cannot run away
        slope = 2 * scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = (_COVERED - _probability_within(t, degrees)) / slope
        t += step
        if abs(step) < 1e-13 * t:
            break
    return t


def _expansion(degrees: int) -> float:
    """Return the Cornish-Fisher expansion in 1/degrees up to the fourth power."""
    z = _NORMAL_975
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / math.pow(degrees, power) for power, term in enumerate(terms))


def _probability_within(t: float, degrees: int) -> float:
    """Return P(|T| <= t) by the finite series that whole degrees of freedom have."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= sine
    return 2 / math.pi * (angle + total) if odd else total
