"""What a resume knows of each row, in six bytes: done or not, what failed, which attempt comes next (D52-D55)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from gym_ray.rollouts.failure_classes import REUSES_DELIVERABLE, TERMINAL, TERMINAL_TIMEOUTS_RETRIED, flags_class

__all__ = ["RunState"]

_MOST_ATTEMPTS = 0xFFFF
_MOST_FAILURES = 0xFF


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
        self.terminal[ordinal] |= flags & (TERMINAL | TERMINAL_TIMEOUTS_RETRIED | REUSES_DELIVERABLE)
        self.last_class[ordinal] = flags_class(flags)

    def pending(self, max_attempts: int) -> Iterator[int]:
        """Yield the rows that D53 does not gate, in order: not done, not terminal, fewer failures than allowed."""
        for ordinal, done in enumerate(self.done):
            if not done and not self.terminal[ordinal] & TERMINAL and self.failures[ordinal] < max_attempts:
                yield ordinal

    def count(self, max_attempts: int) -> tuple[int, int, int]:
        """Return how many rows are done, gated by their failures, and pending; their sum is the number of rows."""
        done = sum(self.done)
        pending = sum(1 for _ in self.pending(max_attempts))
        return done, len(self) - done - pending, pending
