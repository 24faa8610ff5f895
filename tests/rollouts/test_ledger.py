"""The state machine of attempts, without a cluster, a clock or a file."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gym_ray.rollouts.ledger import (
    ENDED,
    MAX_ATTEMPTS,
    MAX_WORKER_DEATHS,
    Cancelled,
    Dispatched,
    Finish,
    Join,
    Joined,
    JoinFailed,
    Ledger,
    ReplyLost,
    RunEnded,
    SlotFree,
    StartAttempt,
    State,
    StopRequested,
    Withdrawn,
    WorkerLost,
)


def start(ledger: Ledger) -> StartAttempt:
    (instruction,) = ledger.handle(SlotFree())
    assert isinstance(instruction, StartAttempt)
    return instruction


def lose(ledger: Ledger, failure_class: str = "worker_lost") -> tuple[Join, Finish]:
    begun = start(ledger)
    ledger.handle(Dispatched(begun.ordinal, begun.attempt))
    (join,) = ledger.handle(WorkerLost(begun.ordinal, begun.attempt, failure_class))  # type: ignore[arg-type]
    (finish,) = ledger.handle(Joined(begun.ordinal, begun.attempt, "failures"))
    assert isinstance(join, Join)
    assert isinstance(finish, Finish)
    return join, finish


def test_a_row_goes_from_start_to_done() -> None:
    ledger = Ledger(1)
    assert start(ledger) == StartAttempt(0, 0)
    assert ledger.handle(Dispatched(0, 0)) == []
    assert ledger.handle(RunEnded(0, 0)) == [Join(0, 0)]
    assert not ledger.finished
    assert ledger.handle(Joined(0, 0, "main")) == [Finish(0, 0, State.DONE)]
    assert ledger.finished
    assert ledger.handle(SlotFree()) == []


def test_a_lost_node_is_tried_again_as_new_attempts_up_to_the_budget() -> None:
    ledger = Ledger(1)
    ends = [lose(ledger, "node_lost") for _ in range(MAX_ATTEMPTS)]
    assert [(join.attempt, join.terminal, finish.retried) for join, finish in ends] == [
        (0, False, True),
        (1, False, True),
        (2, False, False),
    ]
    assert ledger.finished
    assert ledger.retries == MAX_ATTEMPTS - 1


def test_a_row_that_kills_two_workers_is_quarantined() -> None:
    ledger = Ledger(1)
    ends = [lose(ledger) for _ in range(MAX_WORKER_DEATHS)]
    assert [(join.terminal, finish.retried) for join, finish in ends] == [(False, True), (True, False)]
    assert ledger.state(0) is State.FAILED


def test_rows_that_die_together_are_not_quarantined_for_it_and_at_last_run_one_by_one() -> None:
    ledger = Ledger(3)
    for attempt in range(MAX_WORKER_DEATHS):
        begun = [start(ledger) for _ in range(3)]
        assert [b.attempt for b in begun] == [attempt] * 3
        for b in begun:
            ledger.handle(Dispatched(b.ordinal, b.attempt))
        for b in begun:
            assert ledger.handle(WorkerLost(b.ordinal, b.attempt, "worker_lost")) == [Join(b.ordinal, b.attempt)]
        for b in begun:
            ledger.handle(Joined(b.ordinal, b.attempt, "failures"))
    assert start(ledger) == StartAttempt(0, 2)
    assert ledger.handle(SlotFree()) == [], "the last tries run one after the other"
    ledger.handle(Dispatched(0, 2))
    assert ledger.handle(WorkerLost(0, 2, "worker_lost")) == [Join(0, 2, terminal=True)]
    assert start(ledger) == StartAttempt(1, 2)
    ledger.handle(Dispatched(1, 2))
    ledger.handle(RunEnded(1, 2))
    assert start(ledger) == StartAttempt(2, 2)


def test_fresh_rows_run_beside_a_row_that_must_be_the_only_suspect() -> None:
    ledger = Ledger(2)
    lose(ledger)
    assert start(ledger) == StartAttempt(0, 1)
    assert start(ledger) == StartAttempt(1, 0)
    ledger.handle(Dispatched(1, 0))
    ledger.handle(WorkerLost(1, 0, "worker_lost"))
    ledger.handle(Joined(1, 0, "failures"))
    assert ledger.handle(SlotFree()) == []
    ledger.handle(Dispatched(0, 1))
    assert ledger.handle(WorkerLost(0, 1, "worker_lost")) == [Join(0, 1, terminal=True)]
    assert start(ledger) == StartAttempt(1, 1)


def test_a_reply_that_is_lost_before_its_join_is_tried_again() -> None:
    ledger = Ledger(1)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    ledger.handle(RunEnded(0, 0))
    assert ledger.handle(ReplyLost(0, 0, "node_lost")) == [Join(0, 0)]
    assert ledger.handle(Joined(0, 0, "failures")) == [Finish(0, 0, State.FAILED, retried=True)]
    assert start(ledger) == StartAttempt(0, 1)


def test_a_failure_that_is_a_result_is_not_tried_again() -> None:
    ledger = Ledger(1)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    ledger.handle(RunEnded(0, 0))
    assert ledger.handle(Joined(0, 0, "failures")) == [Finish(0, 0, State.FAILED)]
    assert ledger.finished


def test_a_stop_starts_nothing_more_and_leaves_the_rest_pending() -> None:
    ledger = Ledger(3)
    start(ledger)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    ledger.handle(StopRequested())
    assert ledger.handle(SlotFree()) == []
    assert not ledger.finished
    ledger.handle(Withdrawn(1, 0))
    ledger.handle(Cancelled(0, 0))
    assert ledger.finished
    assert (ledger.count(State.PENDING), ledger.count(State.CANCELLED)) == (2, 1)


def test_no_retry_begins_after_a_stop() -> None:
    ledger = Ledger(1)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    ledger.handle(WorkerLost(0, 0, "node_lost"))
    ledger.handle(StopRequested())
    assert ledger.handle(Joined(0, 0, "failures")) == [Finish(0, 0, State.FAILED)]


@pytest.mark.parametrize(
    "event",
    [
        Dispatched(0, 0),
        RunEnded(0, 0),
        WorkerLost(0, 0, "worker_lost"),
        ReplyLost(0, 0, "worker_lost"),
        Joined(0, 0, "main"),
        JoinFailed(0, 0),
        Cancelled(0, 0),
        Withdrawn(0, 0),
    ],
)
def test_what_cannot_happen_is_refused_and_changes_nothing(event: object) -> None:
    ledger = Ledger(1)
    with pytest.raises(RuntimeError, match="cannot happen"):
        ledger.handle(event)  # type: ignore[arg-type]
    assert ledger.count(State.PENDING) == 1


def test_an_attempt_cannot_run_twice() -> None:
    ledger = Ledger(1)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    with pytest.raises(RuntimeError, match="cannot happen"):
        ledger.handle(Dispatched(0, 0))


class Model(RuleBasedStateMachine):
    """Drives a ledger with every order of events that can happen and checks what must always hold."""

    @initialize(rows=st.integers(0, 5))
    def begin(self, rows: int) -> None:
        self.ledger = Ledger(rows)
        self.rows = rows
        self.starting: set[tuple[int, int]] = set()
        self.running: set[tuple[int, int]] = set()
        self.joining: set[tuple[int, int]] = set()
        self.started: set[tuple[int, int]] = set()
        self.terminal: set[int] = set()
        self.stopped = False

    def pick(self, data: st.DataObject, attempts: set[tuple[int, int]]) -> tuple[int, int]:
        return data.draw(st.sampled_from(sorted(attempts)))

    @rule()
    def slot_free(self) -> None:
        for instruction in self.ledger.handle(SlotFree()):
            assert isinstance(instruction, StartAttempt)
            key = (instruction.ordinal, instruction.attempt)
            assert key not in self.started, "an attempt id is started once"
            assert instruction.ordinal not in self.terminal
            assert not self.stopped
            self.started.add(key)
            self.starting.add(key)

    @precondition(lambda self: not self.stopped and not (self.starting | self.running | self.joining))
    @rule()
    def something_can_start_when_nothing_is_in_flight(self) -> None:
        if self.ledger.count(State.PENDING):
            before = len(self.starting)
            self.slot_free()
            assert len(self.starting) == before + 1

    @rule()
    def stop(self) -> None:
        self.ledger.handle(StopRequested())
        self.stopped = True

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def dispatched(self, data: st.DataObject) -> None:
        key = self.pick(data, self.starting)
        self.ledger.handle(Dispatched(*key))
        self.starting.remove(key)
        self.running.add(key)

    @precondition(lambda self: self.starting and self.stopped)
    @rule(data=st.data())
    def withdrawn(self, data: st.DataObject) -> None:
        key = self.pick(data, self.starting)
        self.ledger.handle(Withdrawn(*key))
        self.starting.remove(key)
        self.started.remove(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from(["reply", "worker_lost", "node_lost", "cancelled"]))
    def run_over(self, data: st.DataObject, end: str) -> None:
        key = self.pick(data, self.running)
        self.running.remove(key)
        if end == "cancelled":
            assert self.ledger.handle(Cancelled(*key)) == [Finish(*key, State.CANCELLED)]
            return
        event = RunEnded(*key) if end == "reply" else WorkerLost(*key, end)  # type: ignore[arg-type]
        (join,) = self.ledger.handle(event)
        assert isinstance(join, Join)
        if join.terminal:
            self.terminal.add(key[0])
        self.joining.add(key)

    @precondition(lambda self: self.joining)
    @rule(data=st.data(), end=st.sampled_from(["main", "failures", "nowhere", "lost", "stuck"]))
    def joined(self, data: st.DataObject, end: str) -> None:
        key = self.pick(data, self.joining)
        if end == "lost":
            (join,) = self.ledger.handle(ReplyLost(*key, "node_lost"))
            assert isinstance(join, Join)
            return
        self.joining.remove(key)
        if end == "stuck":
            assert self.ledger.handle(JoinFailed(*key)) == [Finish(*key, State.UNRECORDED)]
            return
        (finish,) = self.ledger.handle(Joined(*key, end))  # type: ignore[arg-type]
        assert isinstance(finish, Finish)
        if finish.retried:
            assert key[1] + 1 < MAX_ATTEMPTS
            assert key[0] not in self.terminal

    @invariant()
    def every_row_is_in_exactly_one_state(self) -> None:
        if not hasattr(self, "ledger"):
            return
        states = [self.ledger.state(row) for row in range(self.rows)]
        assert all(self.ledger.count(state) == states.count(state) for state in State)
        assert self.ledger.active == len(self.starting) + len(self.running) + len(self.joining)
        left = 0 if self.stopped else states.count(State.PENDING)
        assert self.ledger.finished == (self.ledger.active == 0 and left == 0)
        if self.ledger.finished and not self.stopped:
            assert all(state in ENDED for state in states)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40)
