from __future__ import annotations

from dataclasses import fields

from gym_ray.rollouts.run_standing import RunStanding

A = RunStanding(1, 2, 3, 4.0, None, False, 5, 6, {"x": 1}, 7, 8)
B = RunStanding(10, 20, 30, 0.5, 0.25, True, 50, 60, {"x": 2, "y": 3}, 70, 80)


def test_several_collections_are_told_as_one_run() -> None:
    together = RunStanding(11, 22, 33, 4.0, 0.25, True, 55, 66, {"x": 3, "y": 3}, 77, 88)
    assert together == A + B
    assert together == B + A
    assert RunStanding() + B == B


def test_what_is_over_keeps_its_counts_and_waits_for_nothing() -> None:
    over = B.counts()
    counts = {"done", "unstored", "failures", "retries", "cancelled"}
    for one in fields(RunStanding):
        kept = B if one.name in counts else RunStanding()
        assert getattr(over, one.name) == getattr(kept, one.name), one.name
