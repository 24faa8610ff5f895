"""The state machine of attempts: events in, instructions out, no clock, no files, no processes (D33, D45, D162).

Its owner feeds it what happened and does what it says. It alone decides whether a row runs again: after the death of a
process, as a new attempt, at most three in all. A row under which two workers died, the last time as the only one that
had seen a worker die, is quarantined. Everything else that failed is a result and stays one in this run.
Touch its state through :meth:`Ledger.handle` alone. Each row costs four bytes.

::

    pending -> starting -> running -> joining -> done | failed | unstored | unrecorded
       ^           |          |          |
       |           v          v          v
       +------- cancelled (in this run for ever; a later run may take it up) / a retry goes back to pending

"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

__all__ = [
    "Cancelled",
    "Dispatched",
    "Event",
    "Finish",
    "Instruction",
    "Join",
    "JoinFailed",
    "Joined",
    "Ledger",
    "ReplyLost",
    "RunEnded",
    "SlotFree",
    "StartAttempt",
    "State",
    "StopRequested",
    "Withdrawn",
    "WorkerLost",
]

MAX_ATTEMPTS = 3
MAX_WORKER_DEATHS = 2


class State(IntEnum):
    """Where a row is."""

    PENDING = 0
    STARTING = 1
    RUNNING = 2
    JOINING = 3
    DONE = 4
    FAILED = 5
    UNSTORED = 6
    CANCELLED = 7
    UNRECORDED = 8


_IN_FLIGHT = frozenset({State.STARTING, State.RUNNING})
ENDED = frozenset({State.DONE, State.FAILED, State.UNSTORED, State.CANCELLED, State.UNRECORDED})


@dataclass(frozen=True, slots=True)
class SlotFree:
    """Somebody can start an attempt."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Start nothing more."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The attempt is durable as started; it may reach a worker from now on, once."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The worker answered: a reply, or a failure that is a result like any other."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The run's process or node died before it answered."""

    ordinal: int
    attempt: int
    failure_class: Literal["worker_lost", "node_lost"]


@dataclass(frozen=True, slots=True)
class ReplyLost:
    """The run ended, but its reply died with a process before it was joined."""

    ordinal: int
    attempt: int
    failure_class: Literal["worker_lost", "node_lost"]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was stopped before it gave a reply; it leaves no record and its row stays unfinished work."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A stop came before the attempt was made durable as started: its row is as if nobody had taken it."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The attempt's record is durable, or it asked for none."""

    ordinal: int
    attempt: int
    destination: Literal["main", "failures", "nowhere"]


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """The attempt's record could not be stored, however often it was tried."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Make the attempt durable as started, clear its capture, then report :class:`Dispatched` and run it."""

    ordinal: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Join:
    """Join the attempt: with its reply, or with the loss that was reported. ``terminal`` forbids any further try."""

    ordinal: int
    attempt: int
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt is over; report it. ``retried`` tells whether its row will run again in this run."""

    ordinal: int
    attempt: int
    state: State
    retried: bool = False


_AttemptEvent = Dispatched | RunEnded | WorkerLost | ReplyLost | Cancelled | Withdrawn | Joined | JoinFailed
Event = SlotFree | StopRequested | _AttemptEvent
Instruction = StartAttempt | Join | Finish


class Ledger:
    """Attempts of ``rows`` rows, in order.

    Args:
        rows: Number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._states = bytearray(rows)
        self._attempts = bytearray(rows)
        self._worker_deaths = bytearray(rows)
        self._retryable = bytearray(rows)
        self._counts = array("q", [0] * len(State))
        self._counts[State.PENDING] = rows
        self._next = 0
        self._retries: deque[int] = deque()
        self._last_tries: deque[int] = deque()
        self._suspects = 0  # rows in flight whose worker has died under them before
        self._alone = -1  # the row in flight that is the only suspect, so that another death speaks against it
        self._stopped = False
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
        """Return the attempt that a row is in or will start next."""
        return self._attempts[ordinal]

    @property
    def waiting(self) -> int:
        """Rows that wait for another try."""
        return len(self._retries) + len(self._last_tries)

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._stopped

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
            case StopRequested():
                self._stopped = True
                return []
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

    def _step(self, event: Dispatched | RunEnded | Cancelled | Withdrawn | JoinFailed) -> list[Instruction]:
        match event:
            case Dispatched():
                self._move(event, State.STARTING, State.RUNNING)
                return []
            case Withdrawn():
                if not self._stopped:
                    raise RuntimeError(f"{event} cannot happen: nobody asked to stop")
                self._move(event, State.STARTING, State.PENDING)
                return []
            case RunEnded(ordinal, attempt):
                # A row that could not be made ready ends without ever having run.
                self._move(event, (State.STARTING, State.RUNNING), State.JOINING)
                return [Join(ordinal, attempt)]
            case Cancelled(ordinal, attempt):
                self._move(event, (State.STARTING, State.RUNNING), State.CANCELLED)
                return [Finish(ordinal, attempt, State.CANCELLED)]
            case JoinFailed(ordinal, attempt):
                self._move(event, State.JOINING, State.UNRECORDED)
                return [Finish(ordinal, attempt, State.UNRECORDED)]

    def _start(self) -> list[Instruction]:
        if self._stopped:
            return []
        ordinal = self._next_retry()
        if ordinal is None:
            if self._next == len(self._states):
                return []
            ordinal = self._next
            self._next += 1
        self._set(ordinal, State.STARTING)
        return [StartAttempt(ordinal, self._attempts[ordinal])]

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
        self._retryable[ordinal] = not quarantined and event.attempt + 1 < MAX_ATTEMPTS
        return Join(ordinal, event.attempt, terminal=quarantined)

    def _joined(self, event: Joined) -> Finish:
        ordinal = event.ordinal
        ends = {"main": State.DONE, "failures": State.FAILED, "nowhere": State.UNSTORED}
        state = ends[event.destination]
        retry = bool(self._retryable[ordinal]) and state is State.FAILED and not self._stopped
        self._move(event, State.JOINING, State.PENDING if retry else state)
        self._retryable[ordinal] = 0
        if retry:
            self._attempts[ordinal] += 1
            twice = self._worker_deaths[ordinal] >= MAX_WORKER_DEATHS
            (self._last_tries if twice else self._retries).append(ordinal)
            self.retries += 1
        return Finish(ordinal, event.attempt, state, retried=retry)

    def _move(
        self,
        event: _AttemptEvent,
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
            self._suspects += (state in _IN_FLIGHT) - (before in _IN_FLIGHT)
        if ordinal == self._alone and state not in _IN_FLIGHT:
            self._alone = -1
