from __future__ import annotations

import math
from itertools import pairwise

import pytest

from gym_ray.rollouts.metrics.student import t_975

# Printed tables, to the digits that they give.
TABLE = {
    1: 12.7062,
    2: 4.30265,
    3: 3.18245,
    4: 2.77645,
    5: 2.57058,
    10: 2.22814,
    30: 2.04227,
    60: 2.00030,
    120: 1.97993,
}


@pytest.mark.parametrize(("degrees", "value"), TABLE.items())
def test_it_agrees_with_printed_tables(degrees: int, value: float) -> None:
    assert t_975(degrees) == pytest.approx(value, abs=5e-6 if value < 10 else 5e-5)


def within(t: float, degrees: int, steps: int = 4000) -> float:
    """P(|T| <= t) by Simpson's rule over the density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    width = t / steps
    heights = [scale * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(steps + 1)]
    return 2 * width / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 25, 100, 199, 200, 201, 202, 1000, 50_000])
def test_the_integral_of_the_density_is_95_percent(degrees: int) -> None:
    assert within(t_975(degrees), degrees) == pytest.approx(0.95, abs=1e-9)


def test_it_falls_towards_the_normal_quantile_without_a_step() -> None:
    values = [t_975(degrees) for degrees in range(1, 400)]
    assert all(a > b > 1.959963984540054 for a, b in pairwise(values))
    assert t_975(10**9) == pytest.approx(1.959963984540054, abs=1e-8)
    with pytest.raises(ValueError, match="less than 1"):
        t_975(0)
