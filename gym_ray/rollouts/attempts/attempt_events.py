"""What can happen to an attempt, and what must be done about it: the words that a ledger and its owner share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

__all__ = [
    "IN_FLIGHT",
    "AttemptEvent",
    "Cancelled",
    "Dispatched",
    "Event",
    "Finish",
    "Instruction",
    "Join",
    "JoinFailed",
    "Joined",
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


IN_FLIGHT = frozenset({State.STARTING, State.RUNNING})


@dataclass(frozen=True, slots=True)
class SlotFree:
    """Somebody can start an attempt."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Start nothing more."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Start nothing until a resume; what runs goes on."""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """Start attempts again."""


@dataclass(frozen=True, slots=True)
class RequeueRequested:
    """Give a row that failed, was given up or was cancelled another attempt in this run, whatever its budget says."""

    ordinal: int


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
    """A stop or a pause came before the attempt was durable as started: its row is as if nobody had taken it."""

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


AttemptEvent = Dispatched | RunEnded | WorkerLost | ReplyLost | Cancelled | Withdrawn | Joined | JoinFailed
Event = SlotFree | StopRequested | PauseRequested | ResumeRequested | RequeueRequested | AttemptEvent
Instruction = StartAttempt | Join | Finish
