"""What a resume knows of each row, in six bytes: done or not, what failed, which attempt comes next (D52-D55)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.rollouts.row_states.failure_classes import (
    REUSES_DELIVERABLE,
    TERMINAL,
    TERMINAL_TIMEOUTS_RETRIED,
    flags_class,
)
from gym_ray.rollouts.row_states.retry_rules import is_gated

__all__ = ["RunState"]

_MOST_ATTEMPTS = 0xFFFF
_MOST_FAILURES = 0xFF
_KEPT_BITS = TERMINAL | TERMINAL_TIMEOUTS_RETRIED | REUSES_DELIVERABLE


class RunState:
    """What earlier processes left of a run's rows.

    Attributes:
        done: 1 for a row that has its result in the main output.
        attempts: Number of the attempt that a row may start next: no smaller one may ever run (again).
        failures: Failed attempts that are recorded, at most 255.
        terminal: The bits ``TERMINAL``, ``TERMINAL_TIMEOUTS_RETRIED`` and ``REUSES_DELIVERABLE`` over all recorded
            failures of a row.
        last_class: Code of the class of the last recorded failure, 0 without one.
    """

    __slots__ = ("attempts", "done", "failures", "last_class", "terminal")

    def __init__(self, rows: int) -> None:
        self.done = bytearray(rows)
        self.attempts = array("H", bytes(2 * rows))
        self.failures = bytearray(rows)
        self.terminal = bytearray(rows)
        self.last_class = bytearray(rows)

    @classmethod
    def fresh(cls, rows: int) -> RunState:
        """Return the state of a run of which nothing has started."""
        return cls(rows)

    def __len__(self) -> int:
        return len(self.done)

    def note_started(self, ordinal: int, attempt: int) -> None:
        """Note that an attempt was started: the next one has a larger number."""
        self.attempts[ordinal] = max(self.attempts[ordinal], min(attempt + 1, _MOST_ATTEMPTS))

    def note_done(self, ordinal: int, attempt: int) -> bool:
        """Note a result; return whether the row had one before."""
        self.note_started(ordinal, attempt)
        before = bool(self.done[ordinal])
        self.done[ordinal] = 1
        return before

    def note_failure(self, ordinal: int, attempt: int, flags: int) -> None:
        """Note a recorded failure; each consumes one attempt (D53, D55)."""
        self.note_started(ordinal, attempt)
        self.failures[ordinal] = min(self.failures[ordinal] + 1, _MOST_FAILURES)
        self.attempts[ordinal] = max(self.attempts[ordinal], self.failures[ordinal])
        self.terminal[ordinal] |= flags & _KEPT_BITS
        self.last_class[ordinal] = flags_class(flags)

    def note_starts(self, ordinals: NDArray[Any], attempts: NDArray[Any]) -> None:
        """Do what :meth:`note_started` does, for many attempts; a row may come more than once."""
        behind = np.minimum(attempts.astype(np.int64) + 1, _MOST_ATTEMPTS).astype(np.uint16)
        np.maximum.at(np.frombuffer(self.attempts, np.uint16), ordinals, behind)

    def note_results(self, ordinals: NDArray[Any], attempts: NDArray[Any]) -> int:
        """Do what :meth:`note_done` does, for many attempts; return how many of them came to a row with a result."""
        self.note_starts(ordinals, attempts)
        done, rows = np.frombuffer(self.done, np.uint8), np.unique(ordinals)
        fresh = len(rows) - int(done[rows].sum())
        done[rows] = 1
        return len(ordinals) - fresh

    def note_failures(self, ordinals: NDArray[Any], attempts: NDArray[Any], flags: NDArray[Any]) -> None:
        """Do what :meth:`note_failure` does, for many failures in the order of their records."""
        self.note_starts(ordinals, attempts)
        rows, more = np.unique(ordinals, return_counts=True)
        failures, next_attempts = np.frombuffer(self.failures, np.uint8), np.frombuffer(self.attempts, np.uint16)
        failures[rows] = np.minimum(failures[rows] + more, _MOST_FAILURES)
        next_attempts[rows] = np.maximum(next_attempts[rows], failures[rows])
        np.bitwise_or.at(np.frombuffer(self.terminal, np.uint8), ordinals, (flags & _KEPT_BITS).astype(np.uint8))
        np.frombuffer(self.last_class, np.uint8)[ordinals] = flags >> 8 & 0xFF  # of a row's several, the last stays

    def pending(self, max_attempts: int, *, retry_terminal_timeouts: bool = False) -> Iterator[int]:
        """Yield the rows that may still run, in order: not done, and not gated (see :func:`~.retry_rules.is_gated`)."""
        for ordinal, done in enumerate(self.done):
            if not done and not is_gated(
                self.failures[ordinal],
                self.terminal[ordinal],
                max_attempts,
                retry_terminal_timeouts=retry_terminal_timeouts,
            ):
                yield ordinal

    def count(self, max_attempts: int, *, retry_terminal_timeouts: bool = False) -> tuple[int, int, int]:
        """Return how many rows are done, gated by their failures, and pending; their sum is the number of rows."""
        done = sum(self.done)
        pending = sum(1 for _ in self.pending(max_attempts, retry_terminal_timeouts=retry_terminal_timeouts))
        return done, len(self) - done - pending, pending
