"""Drives one run: rows to workers, results to joiners, finished records to whoever listens (D29-D45, D61, D162, D169).

It moves keys, states and small figures. Rows are read when they are dispatched, replies never come here, and nothing
is kept of a finished rollout but its counts. One failed rollout is a record; only lost storage or a lost cluster ends a
run, and even then every reply that has arrived is stored first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from array import array
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass

from gym_ray.errors import InputError, MaskLimitExceededError, StorageError
from gym_ray.pace import Pace
from gym_ray.rollouts.attempts.attempt_flow import AttemptFlow, Finished
from gym_ray.rollouts.attempts.ledger import (
    Ledger,
    PauseRequested,
    RequeueRequested,
    ResumeRequested,
    SlotFree,
    StartAttempt,
    State,
    StopRequested,
)
from gym_ray.rollouts.attempts.slots import Slots
from gym_ray.rollouts.attempts.waiters import Waiters
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.metrics import FailedRows, RunMetrics
from gym_ray.rollouts.ports import Placement, RolloutPort
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, invalid_row_id
from gym_ray.rollouts.run_files.run_index import IndexLog
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.token_id_capture.mask_limit import MaskLimit

__all__ = ["Collection", "CollectionSettings", "Finished", "Progress"]

_log = logging.getLogger(__name__)
_ATTEMPT = re.compile(r"-a[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: rows by state, and attempts that were tried again.

    Attributes:
        rows: All rows.
        pending: Not started, or waiting for another try.
        running: With a worker, or on the way to one.
        joining: Ended, not yet stored.
        done, failed, unstored: Rows whose last record is in the main output, in the sidecar, or nowhere by request;
            rows that an earlier run finished or gave up are among them.
        cancelled: Stopped before they gave a reply; unfinished work.
        unrecorded: Ended, but their record could not be stored; unfinished work.
        retries: Attempts beyond the first of a row.
        oldest_unjoined_s: How long the oldest attempt that has ended waits for its record to be durable; None without
            one (D167).
        join_lag_p90_ms: The p90 of that wait over all attempts that are stored; None before the first.
        starting: Those of ``running`` that are not with a worker yet.
        paused: Nothing starts until a resume.
        stopped: Nothing more starts in this run.
        cancelled_attempts: Attempts that were cancelled in this run; their rows may have run again since.
    """

    rows: int
    pending: int
    running: int
    joining: int
    done: int
    failed: int
    unstored: int
    cancelled: int
    unrecorded: int
    retries: int
    oldest_unjoined_s: float | None = None
    join_lag_p90_ms: float | None = None
    starting: int = 0
    paused: bool = False
    stopped: bool = False
    cancelled_attempts: int = 0

    @property
    def complete(self) -> bool:
        """Whether every row has its result or its failure."""
        return self.done + self.failed + self.unstored == self.rows


class Collection:
    """One run over materialised rows. Iterate :meth:`finished` once, or await :meth:`run`.

    Args:
        rows: The rows; open until the run is over.
        outputs: The run's outputs, for marks only: joiners write them.
        log: The run's ledger log.
        port: Workers and joiners.
        settings: Limits.
        mask_limit: Ends the run when the tokens of too many rollouts cannot be trained on (B125); None never does.
        index: Where finished attempts are noted once their records are durable, so that a resumed run need not read
            the records; None notes them nowhere, and a resumed run reads the outputs.
        state: What earlier runs left of each row, None for a fresh run; the collection takes it over.
        order: Ordinals in the order in which rows start, None for their own.

    Attributes:
        metrics: Aggregates over every finished attempt so far.
    """

    def __init__(
        self,
        rows: MaterialisedRows,
        outputs: RunOutputs,
        log: LedgerLog,
        port: RolloutPort,
        settings: CollectionSettings | None = None,
        mask_limit: MaskLimit | None = None,
        *,
        index: IndexLog | None = None,
        state: RunState | None = None,
        order: array[int] | None = None,
    ) -> None:
        self._mask_limit, self._index = mask_limit, index
        self._rows, self._outputs, self._log, self._port = rows, outputs, log, port
        self._settings = settings or CollectionSettings()
        self._ledger = Ledger(
            len(rows),
            state,
            max_attempts=self._settings.max_attempts,
            order=order,
            retry_terminal_timeouts=self._settings.retry_terminal_timeouts,
        )
        self.metrics = RunMetrics()
        self._failed = FailedRows(len(rows), self.metrics)
        self._pace, self._slots = Pace(), Slots(self._runs_at_once())
        self._flow = AttemptFlow(rows, outputs, log, port, self._ledger, self._settings, self._slots, self._pace)
        self._queue: asyncio.Queue[Finished | None] = asyncio.Queue(self._wanted())
        self._idle = Waiters()
        self._residents: set[asyncio.Task[None]] = set()
        self._fatal: Exception | None = None
        self._begun = self._over = False

    def _runs_at_once(self) -> int:
        return self._settings.num_samples_in_parallel or self._port.capacity

    def _wanted(self) -> int:
        """Return how many attempts are in hand at once."""
        return min(self._settings.max_resident_rollout_tasks or 2 * self._slots.places, max(1, len(self._rows)))

    async def run(self) -> Progress:
        """Run to the end and return where it stands then; see :meth:`finished`.

        Raises:
            GymRayError: See :meth:`finished`.
        """
        async for _ in self.finished():
            pass
        return self.progress()

    async def finished(self) -> AsyncGenerator[Finished]:
        """Run, and yield each attempt once its record is durable.

        A listener that does not keep up slows dispatch down. When the iteration is left early or cancelled, runs are
        cancelled, replies that are there are stored, and only then does the iterator close.

        Raises:
            MaskLimitExceededError: The tokens of too many rollouts cannot be trained on.
            GymRayError: The ledger or the outputs cannot be written, or no workers or joiners are left.

        However it ends, everything that had ended by then is stored, and the rest is unfinished work.
        """
        if self._begun:
            raise RuntimeError("a collection runs once")
        self._begun = True
        self._fill()
        try:
            while not self._over:
                item = await self._queue.get()
                if item is not None:
                    yield item
                self._over = self._ends()
        finally:
            self._over = True
            await self._drain()
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Start nothing more and cancel what runs; what has ended is still stored. Safe to repeat."""
        self.drain()
        self._flow.stop()

    def drain(self) -> None:
        """Start nothing more in this run; it ends when what runs has ended, and the rest is unfinished work."""
        self._ledger.handle(StopRequested())
        self._idle.wake_all()

    def pause(self) -> None:
        """Start nothing until :meth:`resume`; what runs goes on. A run with nothing left to start ends all the same."""
        self._ledger.handle(PauseRequested())

    def resume(self) -> None:
        """Start attempts again; safe without a pause."""
        self._ledger.handle(ResumeRequested())
        self._idle.wake_all()

    def cancel(self, rollout_ids: Iterable[str] | None = None) -> dict[str, bool]:
        """End single attempts, all that are started or run for None; they leave no record, and a frame in the ledger.

        Returns:
            For each id whether its attempt is being ended. False: it waits for its turn, has ended, or is unknown;
            nothing was changed for it.
        """
        ids = self._flow.in_hand() if rollout_ids is None else list(rollout_ids)
        return {rollout_id: self._flow.cancel(rollout_id) for rollout_id in ids}

    def requeue(self, ordinals: Iterable[int] | None = None) -> dict[int, str | None]:
        """Give failed, given-up or cancelled rows another attempt in this run; all that failed for None.

        Returns:
            For each row None when it will run again, or why it will not.
        """
        rows = list(self._ledger.ordinals(State.FAILED) if ordinals is None else dict.fromkeys(ordinals))
        answers = {ordinal: self._refuses(ordinal) for ordinal in rows}
        for ordinal, reason in answers.items():
            if reason is None:
                self._failed.requeued(ordinal)
                self._ledger.handle(RequeueRequested(ordinal))
        if self._begun and None in answers.values():
            self._fill()
        return answers

    async def rows_without_result(self, rollout_ids: Iterable[str]) -> dict[str, int]:
        """Return the row of each id that names a row, or an attempt of one, that failed or was cancelled."""
        rows = [*self._ledger.ordinals(State.FAILED), *self._ledger.ordinals(State.CANCELLED)]
        return await asyncio.to_thread(self._named, {_base(key): key for key in rollout_ids}, rows)

    def _named(self, wanted: dict[str, str], ordinals: Sequence[int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for ordinal in ordinals:
            try:
                rollout_id = self._rows.attempt(ordinal, 0).rollout_id
            except InputError:  # a row that nobody can read is named by its place
                rollout_id = invalid_row_id(ordinal, 0)
            if rollout_id in wanted:
                found[wanted[rollout_id]] = ordinal
        return found

    def _refuses(self, ordinal: int) -> str | None:
        if self._over:
            return "the run is over; resume it"
        if not 0 <= ordinal < len(self._ledger):
            return f"there is no such row; the run has {len(self._ledger)}"
        return self._ledger.refuses(ordinal)

    def resize(self) -> None:
        """Run as many at once as the workers can take now, unless a setting says how many; nothing is cancelled."""
        self._slots.resize(self._runs_at_once())
        if self._begun and not self._over:
            self._fill()

    def placements(self) -> Sequence[Placement]:
        """Return where each attempt runs that runs now, oldest first."""
        return self._port.placements()

    def progress(self) -> Progress:
        """Return where the run stands, in constant time."""
        count, lag = self._ledger.count, self._flow.lag
        return Progress(
            rows=len(self._ledger),
            pending=count(State.PENDING),
            running=count(State.STARTING) + count(State.RUNNING),
            joining=count(State.JOINING),
            done=count(State.DONE),
            failed=count(State.FAILED),
            unstored=count(State.UNSTORED),
            cancelled=count(State.CANCELLED),
            unrecorded=count(State.UNRECORDED),
            retries=self._ledger.retries,
            oldest_unjoined_s=lag.oldest_s(),
            join_lag_p90_ms=lag.p90_ms(),
            starting=count(State.STARTING),
            paused=self._ledger.paused,
            stopped=self._ledger.stopped,
            cancelled_attempts=self._flow.cancelled,
        )

    def _fill(self) -> None:
        """Have as many residents as are wanted; those that are too many leave when their attempt is over."""
        while len(self._residents) < self._wanted():
            task = asyncio.create_task(self._reside())
            self._residents.add(task)
            task.add_done_callback(self._left)
        self._idle.wake_all()

    def _left(self, resident: asyncio.Task[None]) -> None:
        self._residents.discard(resident)
        error = None if resident.cancelled() else resident.exception()
        if isinstance(error, Exception) and self._fatal is None:
            self._fatal = error
        if self._residents:
            return
        if not self._ledger.finished and not self._over and self._fatal is None:
            self._fill()  # a row was asked for again while the last ones left
        elif not self._queue.full():
            self._queue.put_nowait(None)  # whoever listens looks whether this is the end; with more to read it will

    def _ends(self) -> bool:
        return not self._residents and self._queue.empty() and (self._ledger.finished or self._fatal is not None)

    async def _drain(self) -> None:
        if self._residents:
            self.stop()
        discarding = asyncio.create_task(self._discard())  # nobody listens any more
        while self._residents:
            await asyncio.wait(set(self._residents))
        discarding.cancel()
        await asyncio.wait({discarding})

    async def _discard(self) -> None:
        while True:
            await self._queue.get()

    async def _reside(self) -> None:
        """Take one attempt after the other through its life until nothing is left to do."""
        while (start := await self._next()) is not None:
            try:
                finished = await self._flow.follow(start)
            except Exception as error:  # noqa: BLE001 - boundary: the run ends in order, then raises this
                self._end_with(error, start)
                continue
            if finished is not None:
                self._count(finished)
                await self._note_finished(finished, start)
                await self._queue.put(finished)
                self._note_masked(finished, start)

    def _count(self, finished: Finished) -> None:
        """Count an attempt in the very step in which the ledger took its end in: nobody can have requeued it yet."""
        summary, stored = finished.summary, finished.written is not None
        self.metrics.add(summary, stored=stored, retried=finished.retried)
        if stored and summary.failure_class is not None and not finished.retried:
            self._failed.note(finished.ordinal, summary.agent)

    async def _note_finished(self, finished: Finished, start: StartAttempt) -> None:
        """Note where the record lies; it is durable whatever becomes of the note."""
        if self._index is None or finished.written is None:
            return
        try:
            await self._index.append(start.ordinal, start.attempt, finished.written)
            await self._pace.turn()
        except StorageError as error:
            self._end_with(error, start)

    def _note_masked(self, finished: Finished, start: StartAttempt) -> None:
        """Count a rollout whose tokens were looked at; its record is durable by now (W38)."""
        reasons = finished.summary.token_mask_reasons
        if self._mask_limit is None or reasons is None:
            return
        try:
            self._mask_limit.note(bool(reasons), reasons)
        except MaskLimitExceededError as error:
            self._end_with(error, start)

    async def _next(self) -> StartAttempt | None:
        await self._pace.turn()
        while len(self._residents) <= self._wanted():
            for instruction in self._ledger.handle(SlotFree()):
                if isinstance(instruction, StartAttempt):
                    if self._ledger.waiting:
                        self._idle.wake_one()  # one wakes the next, so that waiting tries find everybody awake
                    return instruction
            if self._ledger.finished:
                break
            # An attempt in flight may yet become a retry, or a retry waits until it may run, or the run is paused.
            await self._idle.wait()
        self._idle.wake_all()
        return None

    def _end_with(self, error: Exception, start: StartAttempt) -> None:
        self._flow.abandon(start)
        if self._fatal is None:
            self._fatal = error
        else:
            _log.error("row %d, attempt %d: %s", start.ordinal, start.attempt, error)
        self.stop()


def _base(rollout_id: str) -> str:
    return _ATTEMPT.sub("", rollout_id)
