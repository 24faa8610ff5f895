from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.scores import numbers


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([0, 10, 25, 50, 75, 90, 99, 100]))
def test_they_agree_with_numpy(values: list[float], percent: int) -> None:
    assert numbers.mean(values) == pytest.approx(np.mean(values), abs=1e-6)
    assert numbers.median(values) == pytest.approx(statistics.median(values), abs=1e-6)
    assert numbers.population_std(values) == pytest.approx(np.std(values), abs=1e-5)
    if len(values) > 1:
        assert numbers.sample_std(values) == pytest.approx(np.std(values, ddof=1), abs=1e-5)
    found = numbers.linear_percentile(sorted(values), percent)
    assert found == pytest.approx(np.percentile(values, percent), abs=1e-5)


def test_single_and_equal_values_have_no_spread() -> None:
    assert numbers.sample_std([0.1]) == 0.0
    assert numbers.sample_std([0.1] * 7) == 0.0


def test_only_finite_numbers_are_numbers() -> None:
    assert [numbers.finite(value) for value in (True, 3, -1e100)] == [1.0, 3.0, -1e100]
    for value in (None, "3", [], {}, math.nan, math.inf, -math.inf, 10**400, -(10**101), 1e101):
        assert numbers.finite(value) is None
