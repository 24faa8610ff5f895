"""The state machine of attempts: events in, instructions out, no clock, no files, no processes (D33, D45, D53, D162).

Its owner feeds it what happened and does what it says. It alone decides whether a row runs again. Within a run that is
after the death of a process, as a new attempt; whatever else failed is a result, and a resumed run may try it again. A
row is given up when its recorded failures, over all runs, reach the budget, when one of them forbids it, or when two
workers died under it, the last time as the only row that had seen a worker die. A start that was killed is no failure:
it costs its attempt number and nothing of the budget.
Touch its state through :meth:`Ledger.handle` alone. Each row costs three bytes beside what the run's state holds.

::

    pending -> starting -> running -> joining -> done | failed | unstored | unrecorded
       ^           |          |          |
       |           v          v          v
       +------- cancelled (until somebody asks for another attempt, or a later run takes it up)

A retry goes back to pending, and so does a failed or cancelled row that is asked for again: as a new attempt, always.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import chain

from gym_ray.rollouts.attempts.attempt_events import (
    IN_FLIGHT,
    AttemptEvent,
    Cancelled,
    Dispatched,
    Event,
    Finish,
    Instruction,
    Join,
    Joined,
    JoinFailed,
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
from gym_ray.rollouts.row_states.failure_classes import REUSES_DELIVERABLE
from gym_ray.rollouts.row_states.retry_rules import DEFAULT_MAX_ATTEMPTS, RETRIED_IN_RUN, is_gated
from gym_ray.rollouts.row_states.run_state import RunState

__all__ = [
    "MAX_WORKER_DEATHS",
    "Cancelled",
    "Dispatched",
    "Event",
    "Finish",
    "Instruction",
    "Join",
    "JoinFailed",
    "Joined",
    "Ledger",
    "PauseRequested",
    "ReplyLost",
    "RequeueRequested",
    "ResumeRequested",
    "RunEnded",
    "SlotFree",
    "StartAttempt",
    "State",
    "StopRequested",
    "Withdrawn",
    "WorkerLost",
]

MAX_WORKER_DEATHS = 2
_MOST = 255
"""Failures are counted in a byte; a row with so many is given up whatever the budget says."""
_LAST_ATTEMPT = 0xFFFF
"""No attempt has this number: what counts attempts stops there, so that it might be given out twice."""
_REASONS = {
    State.PENDING: "it has not been started yet, or waits for another try already",
    State.STARTING: "it is being started",
    State.RUNNING: "it is running",
    State.JOINING: "its record is being stored",
    State.DONE: "it has its result",
    State.UNSTORED: "its reply asked to be stored nowhere",
    State.UNRECORDED: "its record could not be stored, which ends the run",
}
"""Why a row that is in a state gets no further attempt; those in no state of these may have one."""


class Ledger:
    """Attempts of ``rows`` rows, in order.

    Args:
        rows: Number of rows.
        state: What earlier runs left of each row, None for a fresh run. The ledger takes it over: attempts and
            failures in it move on with the run.
        max_attempts: Recorded failures after which a row is given up.
        order: Ordinals in the order in which rows start, None for their own; rows that it leaves out come last.
        retry_terminal_timeouts: Which failures of earlier runs are final, see :func:`~.retry_rules.is_gated`.

    Raises:
        ValueError: ``state`` is of another number of rows, or ``max_attempts`` is no budget.
    """

    def __init__(
        self,
        rows: int,
        state: RunState | None = None,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        order: array[int] | None = None,
        retry_terminal_timeouts: bool = False,
    ) -> None:
        state = RunState.fresh(rows) if state is None else state
        if len(state.done) != rows:
            raise ValueError(f"the state is of {len(state.done)} rows, and the run has {rows}")
        if max_attempts < 1:
            raise ValueError(f"max_attempts: {max_attempts}; give a whole number from 1 up")
        self._max_attempts = min(max_attempts, _MOST)
        self._attempts, self._failures, self._earlier = state.attempts, state.failures, state.terminal
        self._states = _states_after(state, self._max_attempts, retry_terminal_timeouts)
        self._worker_deaths = bytearray(rows)
        self._retryable = bytearray(rows)
        self._counts = array("q", [self._states.count(kind) for kind in State])
        self._order = None if order is None else _pending_in(order, self._states)
        self._next = 0
        self._retries: deque[int] = deque()
        self._last_tries: deque[int] = deque()
        self._suspects = 0  # rows in flight whose worker has died under them before
        self._alone = -1  # the row in flight that is the only suspect, so that another death speaks against it
        self._stopped = self._paused = False
        self.retries = 0

    def __len__(self) -> int:
        return len(self._states)

    def count(self, state: State) -> int:
        """Return how many rows are in a state."""
        return self._counts[state]

    def state(self, ordinal: int) -> State:
        """Return the state of a row."""
        return State(self._states[ordinal])

    def attempt(self, ordinal: int) -> int:
        """Return the attempt that a row is in, or would start next where it is in none."""
        return self._attempts[ordinal]

    def ordinals(self, state: State) -> Iterator[int]:
        """Yield the rows that are in a state, each looked at when its turn comes."""
        ordinal = self._states.find(state)
        while ordinal >= 0:
            yield ordinal
            ordinal = self._states.find(state, ordinal + 1)

    def refuses(self, ordinal: int) -> str | None:
        """Return why a row cannot have another attempt in this run, None when it can.

        Raises:
            IndexError: There is no such row.
        """
        state = self.state(ordinal)
        if self._stopped:
            return "the run starts nothing more; resume it when it is over"
        if state not in _REASONS:
            return None if self._attempts[ordinal] < _LAST_ATTEMPT else "it has had every attempt that has a number"
        return _REASONS[state]

    def reuses_deliverable(self, ordinal: int) -> bool:
        """Return whether a failure of an earlier run asks that the row's next try reuses what it delivered (D55)."""
        return bool(self._earlier[ordinal] & REUSES_DELIVERABLE)

    @property
    def waiting(self) -> int:
        """Rows that wait for another try."""
        return len(self._retries) + len(self._last_tries)

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._stopped

    @property
    def paused(self) -> bool:
        """Whether nothing starts until a resume."""
        return self._paused

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: every row ended, or the rest stays pending because of a stop."""
        return self.active == 0 and (self._stopped or self.count(State.PENDING) == 0)

    @property
    def active(self) -> int:
        """Attempts that are starting, running or joining."""
        return self.count(State.STARTING) + self.count(State.RUNNING) + self.count(State.JOINING)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in and return what must be done, in order.

        Raises:
            RuntimeError: The event cannot happen in this state, such as a second run of one attempt; nothing changed.
        """
        match event:
            case SlotFree():
                return self._start()
            case StopRequested() | PauseRequested() | ResumeRequested():
                return self._hold(event)
            case RequeueRequested():
                return self._requeue(event)
            case Joined():
                return [self._joined(event)]
            case WorkerLost(ordinal):
                alone = ordinal == self._alone
                self._move(event, State.RUNNING, State.JOINING)
                return [self._join_loss(event, alone=alone)]
            case ReplyLost():
                self._move(event, State.JOINING, State.JOINING)
                return [self._join_loss(event)]
            case _:
                return self._step(event)

    def _hold(self, event: StopRequested | PauseRequested | ResumeRequested) -> list[Instruction]:
        if isinstance(event, StopRequested):
            self._stopped = True
        else:
            self._paused = isinstance(event, PauseRequested)
        return []

    def _requeue(self, event: RequeueRequested) -> list[Instruction]:
        if reason := self.refuses(event.ordinal):
            raise RuntimeError(f"{event} cannot happen: {reason}")
        self._set(event.ordinal, State.PENDING)
        self._queue(event.ordinal)
        self.retries += self._attempts[event.ordinal] > 0
        return []

    def _step(self, event: Dispatched | RunEnded | Cancelled | Withdrawn | JoinFailed) -> list[Instruction]:
        match event:
            case Dispatched():
                self._move(event, State.STARTING, State.RUNNING)
                return []
            case Withdrawn(ordinal):
                if not self._stopped and not self._paused:
                    raise RuntimeError(f"{event} cannot happen: nobody asked to stop or to pause")
                self._move(event, State.STARTING, State.PENDING)
                self._queue(ordinal, first=True)
                return []
            case RunEnded(ordinal, attempt):
                # A row that could not be made ready ends without ever having run.
                self._move(event, (State.STARTING, State.RUNNING), State.JOINING)
                return [Join(ordinal, attempt)]
            case Cancelled(ordinal, attempt):
                self._move(event, (State.STARTING, State.RUNNING), State.CANCELLED)
                self._attempts[ordinal] += 1
                return [Finish(ordinal, attempt, State.CANCELLED)]
            case JoinFailed(ordinal, attempt):
                self._move(event, State.JOINING, State.UNRECORDED)
                return [Finish(ordinal, attempt, State.UNRECORDED)]

    def _start(self) -> list[Instruction]:
        if self._stopped or self._paused:
            return []
        ordinal = self._next_retry()
        if ordinal is None:
            ordinal = self._next_fresh()
            if ordinal is None:
                return []
        self._set(ordinal, State.STARTING)
        return [StartAttempt(ordinal, self._attempts[ordinal])]

    def _next_fresh(self) -> int | None:
        if self._order is None:  # a resumed run may have to skip a million rows, and must not stand still for it
            ordinal = self._states.find(State.PENDING, self._next)
            self._next = ordinal + 1 if ordinal >= 0 else len(self._states)
            return ordinal if ordinal >= 0 else None
        if self._next == len(self._order):
            return None
        self._next += 1
        return self._order[self._next - 1]

    def _next_retry(self) -> int | None:
        """Pick the retry that may start now.

        A dead worker takes all its rows with it, and which of them killed it is unknown. So they are tried again side
        by side, and those that die once more one after the other: only that can tell the guilty row from the rest.
        """
        if self._alone >= 0:
            return None
        if self._last_tries:
            if self._suspects:
                return None
            self._alone = self._last_tries.popleft()
            return self._alone
        if not self._retries:
            return None
        ordinal = self._retries.popleft()
        if self._worker_deaths[ordinal] and not self._suspects and not self._retries:
            self._alone = ordinal
        return ordinal

    def _join_loss(self, event: WorkerLost | ReplyLost, *, alone: bool = False) -> Join:
        ordinal = event.ordinal
        # A node takes innocent rows with it; only the death of a worker speaks against the row that it ran.
        if isinstance(event, WorkerLost) and event.failure_class == "worker_lost":
            self._worker_deaths[ordinal] += 1
        quarantined = alone and self._worker_deaths[ordinal] >= MAX_WORKER_DEATHS
        self._retryable[ordinal] = not quarantined and event.failure_class in RETRIED_IN_RUN
        return Join(ordinal, event.attempt, terminal=quarantined)

    def _joined(self, event: Joined) -> Finish:
        ordinal = event.ordinal
        ends = {"main": State.DONE, "failures": State.FAILED, "nowhere": State.UNSTORED}
        state = ends[event.destination]
        failures = min(self._failures[ordinal] + (state is State.FAILED), _MOST)
        retry = bool(self._retryable[ordinal]) and state is State.FAILED and not self._stopped
        retry = retry and failures < self._max_attempts and event.attempt + 1 < _LAST_ATTEMPT
        self._move(event, State.JOINING, State.PENDING if retry else state)
        self._failures[ordinal], self._retryable[ordinal] = failures, 0
        if state is State.FAILED:
            self._attempts[ordinal] += 1
        if retry:
            self._queue(ordinal)
            self.retries += 1
        return Finish(ordinal, event.attempt, state, retried=retry)

    def _queue(self, ordinal: int, *, first: bool = False) -> None:
        """Let a row that is pending start again, although its turn among the fresh rows is over."""
        twice = self._worker_deaths[ordinal] >= MAX_WORKER_DEATHS
        queue = self._last_tries if twice else self._retries
        queue.appendleft(ordinal) if first else queue.append(ordinal)

    def _move(
        self,
        event: AttemptEvent,
        before: State | tuple[State, ...],
        after: State,
    ) -> None:
        state, attempt = self.state(event.ordinal), self._attempts[event.ordinal]
        if attempt != event.attempt or state not in (before if isinstance(before, tuple) else (before,)):
            raise RuntimeError(f"{event} cannot happen: row {event.ordinal} is {state.name}, attempt {attempt}")
        self._set(event.ordinal, after)

    def _set(self, ordinal: int, state: State) -> None:
        before = self._states[ordinal]
        self._counts[before] -= 1
        self._counts[state] += 1
        self._states[ordinal] = state
        if self._worker_deaths[ordinal]:
            self._suspects += (state in IN_FLIGHT) - (before in IN_FLIGHT)
        if ordinal == self._alone and state not in IN_FLIGHT:
            self._alone = -1


def _states_after(state: RunState, max_attempts: int, retry_terminal_timeouts: bool) -> bytearray:
    """Return the state in which each row begins: done, given up, or pending."""
    states = bytearray(state.done).translate(bytes([State.PENDING] + [State.DONE] * 255))
    numbered_out = _LAST_ATTEMPT in state.attempts
    if not any(state.failures) and not any(state.terminal) and not numbered_out:
        return states
    for ordinal, (failures, terminal) in enumerate(zip(state.failures, state.terminal, strict=True)):
        if states[ordinal] != State.PENDING:
            continue
        gated = (failures or terminal) and is_gated(
            failures, terminal, max_attempts, retry_terminal_timeouts=retry_terminal_timeouts
        )
        if gated or (numbered_out and state.attempts[ordinal] == _LAST_ATTEMPT):
            states[ordinal] = State.FAILED
    return states


def _pending_in(order: array[int], states: bytearray) -> array[int]:
    """Return each pending row once: those of ``order`` first, then the rest."""
    seen, found = bytearray(len(states)), array("Q")
    for ordinal in chain(order, range(len(states))):
        if states[ordinal] == State.PENDING and not seen[ordinal]:
            seen[ordinal] = 1
            found.append(ordinal)
    return found
