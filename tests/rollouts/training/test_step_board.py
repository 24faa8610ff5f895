"""Each rollout is decided once and delivered once, alone or with its group."""

from __future__ import annotations

from gym_ray.rollouts.training.outcomes import Outcome, Requested, lost_outcome
from gym_ray.rollouts.training.step_board import StepBoard


def requested(tasks: int, repeats: int) -> list[Requested]:
    return [
        Requested(task * repeats + repeat, task, f"run-{task}-{repeat}", task, repeat, "agent")
        for task in range(tasks)
        for repeat in range(repeats)
    ]


def done(item: Requested) -> Outcome:
    return Outcome(item, item.rollout_id, 0, 1.0)


def test_the_first_decision_counts_and_nothing_is_delivered_twice() -> None:
    items = requested(2, 1)
    board = StepBoard(items, groups=False)
    assert board.settle(done(items[1]), 10)
    assert not board.settle(lost_outcome(items[1], "late"), 5)
    assert board.mask([0, 1], "deadline") == (0,)
    assert board.decided
    assert not board.over
    assert [unit[0].reasons for unit in board.take(9)] == [(), ("deadline",)]
    assert board.over
    assert board.undelivered_bytes == 0


def test_a_group_is_delivered_whole_and_in_its_order() -> None:
    items = requested(2, 2)
    board = StepBoard(items, groups=True)
    board.settle(done(items[3]), 1)
    board.settle(done(items[1]), 1)
    assert board.take(9) == []
    assert board.group_of(3) == (2,)
    board.mask(board.group_of(3), "group_deadline")
    (unit,) = board.take(9)
    assert [(one.requested.ordinal, one.reasons) for one in unit] == [(2, ("group_deadline",)), (3, ())]
    assert board.open_ordinals() == (0,)


def test_bytes_hold_starts_back_only_while_somebody_can_take_some() -> None:
    items = requested(1, 2)
    board = StepBoard(items, groups=True)
    board.settle(done(items[0]), 100)
    assert board.has_room(100), "the group needs its second rollout before anybody can take the first"
    board.settle(done(items[1]), 1)
    assert not board.has_room(100)
    assert board.has_room(102)
    board.take(1)
    assert board.has_room(1)


def test_rollouts_are_found_by_the_id_of_any_attempt() -> None:
    board = StepBoard(requested(2, 1), groups=False)
    assert board.find(["run-0-0-a2", "run-1-0", "run-1-0-ab", "other"]) == (0, 1)
    assert board.find(["run-0-0-a", "run-0-00"]) == ()
