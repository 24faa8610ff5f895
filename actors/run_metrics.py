"""Publish where a run stands: what waits, what runs, what ended how. No label is an id or a text of a reply."""

from __future__ import annotations

from collections.abc import Callable

from gym_ray.actors.publisher import Publisher, add
from gym_ray.rollouts.row_states.failure_classes import FAILURE_CLASS_CODES
from gym_ray.rollouts.run_standing import RunStanding

__all__ = ["RunMetricsPublisher"]

_OTHER = "other"


class RunMetricsPublisher(Publisher[RunStanding]):
    """Publishes a run's gauges and what was added to its counts; what earlier runs did is in no counter.

    Args:
        standing: Returns where the run stands; called on the loop that the publisher is started on.
        run: The tag ``run`` of every metric: the stem of the output, or the name of a training loop's directory.
    """

    def __init__(self, standing: Callable[[], RunStanding], run: str) -> None:
        super().__init__(run, tag="run")
        self._standing, self._published = standing, standing()
        self._pending = self.gauge("run_rows_pending", "Rows that wait for their first attempt, or for another one.")
        self._in_flight = self.gauge("run_rows_in_flight", "Rows with a worker, or on the way to one.")
        self._joining = self.gauge("run_rows_joining", "Rows whose attempt has ended and is not stored yet.")
        self._oldest = self.gauge(
            "run_oldest_unjoined_seconds", "How long the oldest ended attempt waits for its durable record; 0 without."
        )
        self._lag = self.gauge("run_join_lag_p90_seconds", "That wait, the p90 over all stored attempts of the run.")
        self._paused = self.gauge("run_paused", "1 while nothing new starts until a resume, else 0.")
        self._done = self.counter("run_rollouts_done", "Rollouts with a stored result.")
        self._unstored = self.counter("run_rollouts_unstored", "Rollouts that ended and asked for no record.")
        self._failed = self.counter("run_attempts_failed", "Attempts that ended as a failure.", "failure_class")
        self._retries = self.counter("run_retries", "Attempts beyond the first of a row.")
        self._cancelled = self.counter("run_attempts_cancelled", "Attempts that were cancelled before they replied.")

    def take(self) -> RunStanding:
        """Return where the run stands."""
        return self._standing()

    def publish(self, batch: RunStanding) -> None:
        """Publish where the run stands, and what was added since the last batch."""
        before, self._published = self._published, batch
        self._pending.set(batch.pending)
        self._in_flight.set(batch.in_flight)
        self._joining.set(batch.joining)
        self._oldest.set(batch.oldest_unjoined_s)
        if batch.join_lag_p90_s is not None:
            self._lag.set(batch.join_lag_p90_s)
        self._paused.set(float(batch.paused))
        add(self._done, batch.done - before.done, {})
        add(self._unstored, batch.unstored - before.unstored, {})
        for name, count in batch.failures.items():
            # Replies may name any class; only those with a code become labels.
            label = name if name in FAILURE_CLASS_CODES else _OTHER
            add(self._failed, count - before.failures.get(name, 0), {"failure_class": label})
        add(self._retries, batch.retries - before.retries, {})
        add(self._cancelled, batch.cancelled - before.cancelled, {})
