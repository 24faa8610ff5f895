from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.rollouts.metrics.intervals import ClusteredMean, MeanEstimate
from gym_ray.rollouts.metrics.student import t_975


def estimate(tasks: list[list[float]]) -> MeanEstimate:
    mean = ClusteredMean()
    for values in tasks:
        mean.add_task(values)
    return mean.estimate()


def brute_force(tasks: list[list[float]]) -> tuple[float, float]:
    """Mean and standard error by the sandwich: every pair of rollouts of one task, its product of residuals."""
    pairs = [(g, value) for g, values in enumerate(tasks) for value in values]
    mean = math.fsum(value for _, value in pairs) / len(pairs)
    squares = math.fsum((x - mean) * (y - mean) for g, x in pairs for h, y in pairs if g == h)
    groups = sum(bool(values) for values in tasks)
    return mean, math.sqrt(max(0.0, squares) * groups / (groups - 1)) / len(pairs)


@given(st.lists(st.lists(st.floats(-10, 10), max_size=5), min_size=2, max_size=8))
def test_it_agrees_with_all_pairs(tasks: list[list[float]]) -> None:
    found = estimate(tasks)
    if sum(map(bool, tasks)) < 2:
        assert found.standard_error is None
        return
    mean, error = brute_force(tasks)
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.standard_error == pytest.approx(error, abs=1e-7)
    assert found.standard_error is not None
    half = t_975(found.tasks - 1) * found.standard_error
    assert (found.low_95, found.high_95) == pytest.approx((found.mean - half, found.mean + half))


def test_one_rollout_a_task_is_the_usual_standard_error() -> None:
    values = [0.0, 1.0, 1.0, 0.25, 0.5]
    found = estimate([[value] for value in values])
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))


def test_repeats_that_only_repeat_do_not_make_it_surer() -> None:
    once = estimate([[0.0], [1.0], [1.0]])
    often = estimate([[0.0] * 50, [1.0] * 50, [1.0] * 50])
    assert often.standard_error == pytest.approx(once.standard_error)
    assert often.measured == 150
    assert often.tasks == 3


def test_one_task_says_nothing_about_others() -> None:
    assert estimate([[0.0, 1.0, 1.0]]) == MeanEstimate(pytest.approx(2 / 3), 3, 1, None, None, None)
    assert estimate([[], [0.5], []]) == MeanEstimate(0.5, 1, 1, None, None, None)


def test_nothing_measured_is_null_and_not_zero() -> None:
    for tasks in ([], [[]], [[], []]):
        found = estimate(tasks)
        assert found == MeanEstimate(None, 0, 0, None, None, None)
        assert found.to_dict()["mean"] is None


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e15, -7.7])
def test_equal_values_have_no_spread_at_all(value: float) -> None:
    found = estimate([[value] * n for n in (1, 2, 3, 7)])
    assert found == MeanEstimate(value, 13, 4, 0.0, value, value)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Tasks differ, repeats of a task agree: intervals that took rollouts as independent would cover far less."""
    draw = random.Random(7)
    covered = 0
    for _ in range(400):
        tasks = []
        for _task in range(12):
            rate = draw.choice([0.1, 0.9])
            tasks.append([float(draw.random() < rate) for _ in range(8)])
        found = estimate(tasks)
        assert found.low_95 is not None
        assert found.high_95 is not None
        covered += found.low_95 <= 0.5 <= found.high_95
    assert 365 <= covered <= 397
