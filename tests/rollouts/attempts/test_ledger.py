"""The state machine of attempts, without a cluster, a clock or a file."""

from __future__ import annotations

from array import array
from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gym_ray.rollouts.attempts.ledger import (
    MAX_WORKER_DEATHS,
    Cancelled,
    Dispatched,
    Finish,
    Join,
    Joined,
    JoinFailed,
    Ledger,
    PauseRequested,
    ReplyLost,
    RequeueRequested,
    ResumeRequested,
    RunEnded,
    SlotFree,
    StartAttempt,
    State,
    StopRequested,
    Withdrawn,
    WorkerLost,
)
from gym_ray.rollouts.row_states.failure_classes import TERMINAL, TERMINAL_TIMEOUTS_RETRIED
from gym_ray.rollouts.row_states.retry_rules import DEFAULT_MAX_ATTEMPTS
from gym_ray.rollouts.row_states.run_state import RunState


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
    ends = [lose(ledger, "node_lost") for _ in range(DEFAULT_MAX_ATTEMPTS)]
    assert [(join.attempt, join.terminal, finish.retried) for join, finish in ends] == [
        (0, False, True),
        (1, False, True),
        (2, False, False),
    ]
    assert ledger.finished
    assert ledger.retries == DEFAULT_MAX_ATTEMPTS - 1


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


def failed(rows: int, **failures: int) -> RunState:
    """Return the state after so many failures of each row ``r<n>``."""
    state = RunState.fresh(rows)
    for name, count in failures.items():
        for attempt in range(count):
            state.note_failure(int(name[1:]), attempt, 0)
    return state


def test_a_resumed_run_starts_what_is_neither_done_nor_given_up_under_new_attempts() -> None:
    state = failed(6, r1=1, r2=3, r3=1)
    state.note_done(0, 0)
    state.terminal[3] = TERMINAL
    state.note_started(4, 0)  # killed: costs its number, not its budget
    ledger = Ledger(6, state)
    assert [start(ledger) for _ in range(3)] == [StartAttempt(1, 1), StartAttempt(4, 1), StartAttempt(5, 0)]
    assert ledger.handle(SlotFree()) == []
    assert [ledger.state(n) for n in (0, 2, 3)] == [State.DONE, State.FAILED, State.FAILED]
    assert (ledger.count(State.DONE), ledger.count(State.FAILED), ledger.count(State.STARTING)) == (1, 2, 3)


def test_failures_of_earlier_runs_count_for_the_budget() -> None:
    ledger = Ledger(1, failed(1, r0=2))
    join, finish = lose(ledger, "node_lost")
    assert (join.attempt, finish.retried) == (2, False)


def test_a_start_that_was_killed_takes_nothing_from_the_budget() -> None:
    state = RunState.fresh(1)
    for attempt in range(7):
        state.note_started(0, attempt)
    ledger = Ledger(1, state)
    ends = [lose(ledger, "node_lost") for _ in range(DEFAULT_MAX_ATTEMPTS)]
    assert [(join.attempt, finish.retried) for join, finish in ends] == [(7, True), (8, True), (9, False)]


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_budget_is_what_was_asked_for(budget: int) -> None:
    ledger = Ledger(1, max_attempts=budget)
    assert [finish.retried for _, finish in (lose(ledger, "node_lost") for _ in range(budget))].count(False) == 1
    assert ledger.finished


def test_timeouts_may_be_tried_again_though_they_are_terminal() -> None:
    state = failed(2, r0=1, r1=1)
    state.terminal[0], state.terminal[1] = TERMINAL, TERMINAL_TIMEOUTS_RETRIED
    assert start(Ledger(2, state)) == StartAttempt(1, 1)
    assert start(Ledger(2, state, retry_terminal_timeouts=True)) == StartAttempt(0, 1)


def test_rows_start_in_the_order_that_was_asked_for() -> None:
    ledger = Ledger(5, failed(5, r2=3), order=array("I", [3, 2, 3, 1]))
    assert [start(ledger).ordinal for _ in range(4)] == [3, 1, 0, 4]
    assert ledger.handle(SlotFree()) == []


@pytest.mark.parametrize("order", [None, array("Q")])
def test_rows_that_wait_for_another_try_start_once(order: array[int] | None) -> None:
    ledger = Ledger(2, order=order)
    lose(ledger, "node_lost")
    assert [start(ledger) for _ in range(2)] == [StartAttempt(0, 1), StartAttempt(1, 0)]
    assert ledger.handle(SlotFree()) == []


def test_an_attempt_number_that_might_be_given_out_twice_is_never_given_out() -> None:
    state = RunState.fresh(2)
    for number in (0xFFFE, 0xFFFF):
        state.note_started(0, number)
    state.note_started(1, 0xFFFD)
    ledger = Ledger(2, state)
    assert ledger.state(0) is State.FAILED
    assert [(join.attempt, finish.retried) for join, finish in [lose(ledger, "node_lost")]] == [(0xFFFE, False)]


@pytest.mark.parametrize(("rows", "budget"), [(3, 3), (2, 0)])
def test_a_state_of_other_rows_and_an_empty_budget_are_refused(rows: int, budget: int) -> None:
    with pytest.raises(ValueError, match=r"2 rows|max_attempts"):
        Ledger(rows, RunState.fresh(2), max_attempts=budget)


def test_a_pause_holds_everything_that_has_not_started_and_a_resume_starts_it_under_the_same_number() -> None:
    ledger = Ledger(3)
    begun = [start(ledger) for _ in range(2)]
    ledger.handle(Dispatched(0, 0))
    ledger.handle(PauseRequested())
    assert ledger.handle(SlotFree()) == []
    ledger.handle(Withdrawn(1, 0))
    ledger.handle(RunEnded(0, 0))
    ledger.handle(Joined(0, 0, "main"))
    assert (ledger.active, ledger.finished, ledger.count(State.PENDING)) == (0, False, 2)
    ledger.handle(ResumeRequested())
    assert [start(ledger), start(ledger)] == [begun[1], StartAttempt(2, 0)]


def test_a_row_that_failed_for_good_gets_another_attempt_when_somebody_asks_for_it() -> None:
    ledger = Ledger(2, failed(2, r0=3), max_attempts=3)
    assert start(ledger) == StartAttempt(1, 0)
    ledger.handle(RequeueRequested(0))
    assert start(ledger) == StartAttempt(0, 3)
    ledger.handle(Dispatched(0, 3))
    ledger.handle(RunEnded(0, 3))
    ledger.handle(Joined(0, 3, "failures"))
    assert (ledger.state(0), list(ledger.ordinals(State.FAILED)), ledger.retries) == (State.FAILED, [0], 1)
    ledger.handle(RequeueRequested(0))
    assert start(ledger) == StartAttempt(0, 4)


def test_a_row_that_was_cancelled_runs_again_as_a_new_attempt() -> None:
    ledger = Ledger(1)
    start(ledger)
    ledger.handle(Dispatched(0, 0))
    ledger.handle(Cancelled(0, 0))
    assert ledger.finished
    ledger.handle(RequeueRequested(0))
    assert not ledger.finished
    assert start(ledger) == StartAttempt(0, 1)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "not been started"),
        ([Dispatched(0, 0)], "running"),
        ([Dispatched(0, 0), RunEnded(0, 0)], "being stored"),
        ([Dispatched(0, 0), RunEnded(0, 0), Joined(0, 0, "main")], "has its result"),
        ([Dispatched(0, 0), RunEnded(0, 0), Joined(0, 0, "nowhere")], "stored nowhere"),
        ([Cancelled(0, 0), StopRequested()], "starts nothing more"),
    ],
)
def test_no_other_row_gets_one_and_the_reason_is_said(events: list[object], reason: str) -> None:
    ledger = Ledger(1)
    if events:
        start(ledger)
    for event in events:
        ledger.handle(event)  # type: ignore[arg-type]
    assert reason in (ledger.refuses(0) or "")
    with pytest.raises(RuntimeError, match=reason):
        ledger.handle(RequeueRequested(0))


def test_a_row_without_a_number_left_gets_no_further_attempt() -> None:
    state = RunState.fresh(1)
    state.note_started(0, 0xFFFF)
    assert "number" in (Ledger(1, state).refuses(0) or "")


class Model(RuleBasedStateMachine):
    """Drives a ledger with every order of events that can happen and checks what must always hold.

    It also keeps what would be on disk, so that the driver may die at any moment and a run be resumed from there.
    """

    @initialize(rows=st.integers(0, 5), budget=st.integers(1, 4))
    def begin(self, rows: int, budget: int) -> None:
        self.rows, self.budget = rows, budget
        self.started: set[tuple[int, int]] = set()  # durable, over all processes
        self.ran: set[tuple[int, int]] = set()
        self.failures: list[tuple[int, int, bool]] = []
        self.done: set[int] = set()
        self.live(None)

    def live(self, state: RunState | None) -> None:
        self.ledger = Ledger(self.rows, state, max_attempts=self.budget)
        self.starting: set[tuple[int, int]] = set()
        self.running: set[tuple[int, int]] = set()
        self.joining: dict[tuple[int, int], bool] = {}
        self.stopped = self.paused = False
        self.asked_for: set[int] = set()  # rows that run once more although they failed for good
        self.ever_asked_for: set[int] = set()

    @property
    def terminal(self) -> set[int]:
        return {row for row, _, terminal in self.failures if terminal}

    @rule(data=st.data())
    def die_and_resume(self, data: st.DataObject) -> None:
        """Whatever was in hand is gone; a start that was under way may or may not have become durable."""
        for key in sorted(self.starting):
            if data.draw(st.booleans()):
                self.started.discard(key)
        state = RunState.fresh(self.rows)
        for row, attempt in self.started:
            state.note_started(row, attempt)
        for row, attempt, terminal in self.failures:
            state.note_failure(row, attempt, TERMINAL if terminal else 0)
        for row in self.done:
            state.note_done(row, 0)
        self.live(state)
        failed_often = {row for row in range(self.rows) if [f[0] for f in self.failures].count(row) >= self.budget}
        given_up = (failed_often | self.terminal) - self.done
        for row in range(self.rows):
            expected = State.DONE if row in self.done else State.FAILED if row in given_up else State.PENDING
            assert self.ledger.state(row) is expected

    def pick(self, data: st.DataObject, attempts: Collection[tuple[int, int]]) -> tuple[int, int]:
        return data.draw(st.sampled_from(sorted(attempts)))

    @rule()
    def slot_free(self) -> None:
        for instruction in self.ledger.handle(SlotFree()):
            assert isinstance(instruction, StartAttempt)
            key = (instruction.ordinal, instruction.attempt)
            assert key not in self.started, "an attempt id is started once"
            assert instruction.ordinal not in self.terminal - self.asked_for
            assert instruction.ordinal not in self.done
            assert not self.stopped
            assert not self.paused
            self.asked_for.discard(instruction.ordinal)
            self.started.add(key)
            self.starting.add(key)

    @precondition(
        lambda self: not self.stopped and not self.paused and not (self.starting or self.running or self.joining)
    )
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

    @rule()
    def pause(self) -> None:
        assert self.ledger.handle(PauseRequested()) == []
        self.paused = True

    @rule()
    def resume(self) -> None:
        assert self.ledger.handle(ResumeRequested()) == []
        self.paused = False

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        """Only a row without a result, that nobody has in hand, gets another attempt; whatever its budget says."""
        row = data.draw(st.integers(0, self.rows - 1))
        before = self.ledger.state(row)
        if self.stopped or before not in (State.FAILED, State.CANCELLED):
            assert self.ledger.refuses(row)
            with pytest.raises(RuntimeError, match="cannot happen"):
                self.ledger.handle(RequeueRequested(row))
            assert self.ledger.state(row) is before
            return
        assert self.ledger.refuses(row) is None
        assert self.ledger.handle(RequeueRequested(row)) == []
        assert self.ledger.state(row) is State.PENDING
        assert (row, self.ledger.attempt(row)) not in self.started
        self.asked_for.add(row)
        self.ever_asked_for.add(row)

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def cancelled_while_it_starts(self, data: st.DataObject) -> None:
        key = self.pick(data, self.starting)
        assert self.ledger.handle(Cancelled(*key)) == [Finish(*key, State.CANCELLED)]
        self.starting.remove(key)

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def dispatched(self, data: st.DataObject) -> None:
        key = self.pick(data, self.starting)
        self.ledger.handle(Dispatched(*key))
        assert key not in self.ran, "an attempt id runs at most once, whoever died in between"
        self.ran.add(key)
        self.starting.remove(key)
        self.running.add(key)

    @precondition(lambda self: self.starting and (self.stopped or self.paused))
    @rule(data=st.data())
    def withdrawn(self, data: st.DataObject) -> None:
        key = self.pick(data, self.starting)
        self.ledger.handle(Withdrawn(*key))
        self.asked_for.add(key[0])
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
        self.joining[key] = join.terminal

    @precondition(lambda self: self.joining)
    @rule(data=st.data(), end=st.sampled_from(["main", "failures", "nowhere", "lost", "stuck"]))
    def joined(self, data: st.DataObject, end: str) -> None:
        key = self.pick(data, self.joining)
        if end == "lost":
            (join,) = self.ledger.handle(ReplyLost(*key, "node_lost"))
            assert isinstance(join, Join)
            self.joining[key] = join.terminal
            return
        terminal = self.joining.pop(key)
        if end == "stuck":
            assert self.ledger.handle(JoinFailed(*key)) == [Finish(*key, State.UNRECORDED)]
            return
        if end == "failures":
            self.failures.append((*key, terminal))
        elif end == "main":
            self.done.add(key[0])
        (finish,) = self.ledger.handle(Joined(*key, end))  # type: ignore[arg-type]
        assert isinstance(finish, Finish)
        if finish.retried:
            assert [row for row, _, _ in self.failures].count(key[0]) < self.budget
            assert key[0] not in self.terminal - self.ever_asked_for

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
            ended = {State.DONE, State.FAILED, State.UNSTORED, State.CANCELLED, State.UNRECORDED}
            assert ended.issuperset(states)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40)
