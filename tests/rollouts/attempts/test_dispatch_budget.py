from __future__ import annotations

import pytest

from gym_ray.rollouts.attempts.dispatch_budget import DispatchBudget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("margin_s", "durations_s", "spent_at"),
    [
        (None, [], 10.0),
        (4.0, [], 6.5),
        (4.0, [9.0] * 5, 6.5),
        (None, [3.0] * 4, 10.0),
        (None, [3.0] * 5, 7.5),
        (None, [1.0, 1.0, 1.0, 5.0, 5.0], 5.5),
    ],
)
def test_when_it_is_spent(margin_s: float | None, durations_s: list[float], spent_at: float) -> None:
    clock = Clock()
    budget = DispatchBudget(10.0, margin_s, clock)
    assert not budget.spent()
    for duration_s in durations_s:
        budget.note(duration_s * 1000)
    clock.now = 100.0 + spent_at - 0.7
    assert not budget.spent()
    clock.now = 100.0 + spent_at
    assert budget.spent()


def test_no_budget_is_never_spent_and_none_at_all_always() -> None:
    assert not DispatchBudget(None, 5.0, Clock()).spent()
    assert DispatchBudget(0.0, None, Clock()).spent()
