"""Where a run stands, as whoever watches it is told: figures alone, of one collection or of several together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gym_ray.rollouts.collection import Collection

__all__ = ["RunStanding"]


@dataclass(frozen=True, slots=True)
class RunStanding:
    """Figures of now, and counts since the run was taken up here.

    Attributes:
        pending, in_flight, joining: Rows that wait, that run or are about to, that are being stored.
        oldest_unjoined_s: How long the oldest attempt that has ended waits for its durable record; 0 without one.
        join_lag_p90_s: The p90 of that wait; None before the first. Of several collections the longest.
        paused: Nothing starts until a resume.
        done, unstored: Rollouts with a stored result, and those that asked for no record.
        failures: Attempts that failed, by class.
        retries, cancelled: Attempts beyond the first of a row, and those that were cancelled.
    """

    pending: int = 0
    in_flight: int = 0
    joining: int = 0
    oldest_unjoined_s: float = 0.0
    join_lag_p90_s: float | None = None
    paused: bool = False
    done: int = 0
    unstored: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    retries: int = 0
    cancelled: int = 0

    @classmethod
    def of(cls, collection: Collection) -> RunStanding:
        """Return where a collection stands; on its own loop."""
        now, (done, unstored, failures) = collection.progress(), collection.metrics.ended()
        return cls(
            now.pending,
            now.running,
            now.joining,
            now.oldest_unjoined_s or 0.0,
            None if now.join_lag_p90_ms is None else now.join_lag_p90_ms / 1000,
            now.paused,
            done,
            unstored,
            failures,
            now.retries,
            now.cancelled_attempts,
        )

    def __add__(self, other: RunStanding) -> RunStanding:
        """Return both together."""
        lags = [lag for lag in (self.join_lag_p90_s, other.join_lag_p90_s) if lag is not None]
        return RunStanding(
            self.pending + other.pending,
            self.in_flight + other.in_flight,
            self.joining + other.joining,
            max(self.oldest_unjoined_s, other.oldest_unjoined_s),
            max(lags, default=None),
            self.paused or other.paused,
            self.done + other.done,
            self.unstored + other.unstored,
            Counter(self.failures) + Counter(other.failures),
            self.retries + other.retries,
            self.cancelled + other.cancelled,
        )

    def counts(self) -> RunStanding:
        """Return the counts alone, as of a run that is over."""
        return RunStanding(
            done=self.done,
            unstored=self.unstored,
            failures=self.failures,
            retries=self.retries,
            cancelled=self.cancelled,
        )
