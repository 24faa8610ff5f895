"""Takes one attempt from its start to its durable record; the ledger decides, this does (D29-D33, D36, D45).

The order is the promise: durable as started, cleared, run at most once, joined, durable as finished. Nothing here sends
an attempt a second time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from dataclasses import dataclass

from gym_ray import exact_json
from gym_ray.errors import ClusterError, GymRayError, InputError
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.pace import Pace
from gym_ray.rollouts.attempts.byte_budget import ByteBudget
from gym_ray.rollouts.attempts.dispatch_budget import DispatchBudget
from gym_ray.rollouts.attempts.join_lag import JoinLag
from gym_ray.rollouts.attempts.ledger import (
    Cancelled,
    Dispatched,
    Finish,
    Instruction,
    Join,
    Joined,
    JoinFailed,
    Ledger,
    ReplyLost,
    RunEnded,
    StartAttempt,
    State,
    StopRequested,
    Withdrawn,
    WorkerLost,
)
from gym_ray.rollouts.attempts.slots import Slots
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, ReplyHandle, RolloutPort
from gym_ray.rollouts.row_states.retry_rules import INVALID_ROW
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.frames import FrameKind
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, invalid_row_id
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import Written

__all__ = ["AttemptFlow", "CollectionSettings", "Finished"]

_log = logging.getLogger(__name__)
_JOIN_TRIES = 6
_MAX_ROW_BYTES = 256 * 1024**2
"""Rows in hand together; each is in memory once or twice more on its way to a worker and to a joiner."""
_SHORT_ROW_BYTES = 16 * 1024
"""A row up to here is parsed sooner than a thread is told to."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt whose record is durable.

    Attributes:
        written: Where the record lies, None when its reply asked to be written nowhere.
        summary: Its figures.
        retried: Its row runs again in this run.
        ordinal: Position of the row in the materialised inputs.
        attempt: Number of the attempt.
        token_rows: Its training rows, see :class:`~gym_ray.rollouts.ports.JoinOutcome`.
    """

    written: Written | None
    summary: RolloutSummary
    retried: bool
    ordinal: int
    attempt: int
    token_rows: object | None = None


class AttemptFlow:
    """Follows attempts for a :class:`~gym_ray.rollouts.collection.Collection`, which owns all the parts.

    Args:
        slots: One for each run at once.
        pace: Passed before each step of an attempt, so that many that end together leave the loop room.

    Attributes:
        lag: What has ended and is not stored yet.
        cancelled: Attempts that were ended before they gave a reply.
    """

    def __init__(
        self,
        rows: MaterialisedRows,
        outputs: RunOutputs,
        log: LedgerLog,
        port: RolloutPort,
        ledger: Ledger,
        settings: CollectionSettings,
        slots: Slots,
        pace: Pace,
    ) -> None:
        self._rows, self._outputs, self._log, self._port = rows, outputs, log, port
        self._ledger, self._settings, self._slots = ledger, settings, slots
        self._runs: dict[str, asyncio.Task[ReplyHandle | Lost]] = {}
        self._starting: set[str] = set()
        self._cancelled: set[str] = set()
        self.cancelled = 0
        self._stopping = False
        self._clock = time.monotonic
        self._pace = pace
        self._row_bytes = ByteBudget(_MAX_ROW_BYTES)
        self.lag = JoinLag(self._clock)
        self._budget = DispatchBudget(settings.dispatch_budget_s, settings.drain_margin_s, self._clock)

    def stop(self) -> None:
        """Cancel what runs and dispatch nothing more; safe to repeat."""
        self._stopping = True
        for task in self._runs.values():
            task.cancel()

    def in_hand(self) -> list[str]:
        """Return the rollout ids of the attempts that :meth:`cancel` could end now."""
        return [*self._starting, *self._runs]

    def cancel(self, rollout_id: str) -> bool:
        """End one attempt: its run is cancelled, or never begins where it is still being started.

        Returns:
            False when there is nothing to end: it has not been taken up, or has ended and is being stored. A reply
            that comes at this very moment is stored all the same.
        """
        if rollout_id in self._starting:
            self._cancelled.add(rollout_id)
            return True
        task = self._runs.get(rollout_id)
        return task is not None and task.cancel()

    async def follow(self, start: StartAttempt) -> Finished | None:
        """Take an attempt to its end. A row that is damaged ends as a recorded failure like any other.

        Returns:
            What was stored, None when the attempt was cancelled or never started.

        Raises:
            GymRayError: The ledger or the record cannot be stored, or no workers are left: the run cannot go on.
        """
        async with self._row_bytes.holding(self._rows.size(start.ordinal)):
            return await self._follow(start)

    async def _follow(self, start: StartAttempt) -> Finished | None:
        async with self._slots:
            if not self._stopping and self._budget.spent():
                self._ledger.handle(StopRequested())  # what runs goes on; nothing more starts
            if self._ledger.stopped or self._ledger.paused:
                self._ledger.handle(Withdrawn(start.ordinal, start.attempt))
                return None
            job, ended, never_ran = await self._run_once(start)
        if ended is None:
            await self._log.append(FrameKind.CANCELLED, job.ordinal, job.attempt, job.rollout_id)
            self._ledger.handle(Cancelled(job.ordinal, job.attempt))
            self.cancelled += 1
            return None
        with self.lag.unjoined(job.ordinal):
            await self._pace.turn()
            return await self._join(job, ended, attach_capture=never_ran is None)

    async def _run_once(self, start: StartAttempt) -> tuple[AttemptJob, _Ended | None, RunResult | None]:
        """Start an attempt and run it: the job, how it ended (None: cancelled), and the result of one that cannot run.

        From the moment at which its id is known until its run is over, somebody may cancel it.
        """
        await self._pace.turn()
        try:
            job = await self._job(start)
        except InputError as error:
            _log.error("row %d is not run: %s", start.ordinal, error)
            job, never_ran = _invalid(start, error)
            await self._log.append(FrameKind.STARTED, job.ordinal, job.attempt, job.rollout_id)
            return job, never_ran, never_ran
        self._starting.add(job.rollout_id)
        try:
            await self._log.append(FrameKind.STARTED, job.ordinal, job.attempt, job.rollout_id)
            await self._pace.turn()
            not_cleared = await self._clear(job)
            await self._pace.turn()  # many are cleared together
            cancelled = job.rollout_id in self._cancelled
        finally:
            self._starting.discard(job.rollout_id)
            self._cancelled.discard(job.rollout_id)
        if cancelled:
            return job, None, None
        return job, not_cleared or await self._run(job), not_cleared

    def abandon(self, start: StartAttempt) -> None:
        """Note that :meth:`follow` raised: the attempt stays unfinished work."""
        state = self._ledger.state(start.ordinal)
        if state in (State.STARTING, State.RUNNING):
            self._ledger.handle(Cancelled(start.ordinal, start.attempt))
        elif state is State.JOINING:
            self._ledger.handle(JoinFailed(start.ordinal, start.attempt))

    async def _job(self, start: StartAttempt) -> AttemptJob:
        ordinal, reuse = start.ordinal, self._ledger.reuses_deliverable(start.ordinal)
        data = self._rows.read_at_once(ordinal, _SHORT_ROW_BYTES)
        read = functools.partial(self._rows.attempt, ordinal, start.attempt, reuse_deliverable=reuse, data=data)
        row = read() if data is not None else await asyncio.to_thread(read)  # a large one takes a while
        timeout_s = self._settings.run_timeout_s
        begun_at = time.time()
        return AttemptJob(start.ordinal, start.attempt, row.rollout_id, row.agent, row.data, timeout_s, begun_at)

    async def _clear(self, job: AttemptJob) -> RunResult | None:
        """Clear the attempt's capture; a result when that failed, since its calls would mix with older ones (D25)."""
        try:
            await self._port.clear([job.rollout_id])
        except (OSError, GymRayError) as error:
            message = f"the attempt did not run, since an earlier capture could not be cleared: {error}"
            return RunResult(None, RunFailure("agent_request_failed", type(error).__name__, message), 0.0)
        return None

    async def _run(self, job: AttemptJob) -> _Ended | None:
        if self._stopping:
            return None
        self._ledger.handle(Dispatched(job.ordinal, job.attempt))
        begun = self._clock()
        task = asyncio.ensure_future(self._port.run(job))
        self._runs[job.rollout_id] = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            del self._runs[job.rollout_id]
        if task.cancelled():
            return None
        latency_ms = (self._clock() - begun) * 1000
        self._budget.note(latency_ms)
        error = task.exception()
        if isinstance(error, ClusterError):
            raise error
        if error is not None:
            _log.error("%s: the worker failed", job.rollout_id, exc_info=error)
            return RunResult(None, RunFailure("agent_run_error", type(error).__name__, str(error)), latency_ms)
        ended = task.result()
        return _LostRun(ended, latency_ms) if isinstance(ended, Lost) else ended

    async def _join(self, job: AttemptJob, ended: _Ended, *, attach_capture: bool) -> Finished:
        if isinstance(ended, _LostRun):
            event = WorkerLost(job.ordinal, job.attempt, ended.lost.failure_class)
            terminal = _join_of(self._ledger.handle(event)).terminal
            result: ReplyHandle | RunResult = _loss_result(ended.lost, ended.latency_ms)
        else:
            terminal = _join_of(self._ledger.handle(RunEnded(job.ordinal, job.attempt))).terminal
            result = ended
        request = JoinRequest(self._outputs.mark(), terminal=terminal, attach_capture=attach_capture)
        outcome = await self._try_to_join(job, result, request)
        await self._pace.turn()
        destination = "nowhere" if outcome.written is None else outcome.written.file
        (finish,) = self._ledger.handle(Joined(job.ordinal, job.attempt, destination))
        retried = isinstance(finish, Finish) and finish.retried
        return Finished(outcome.written, outcome.summary, retried, job.ordinal, job.attempt, outcome.token_rows)

    async def _try_to_join(self, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest) -> JoinOutcome:
        for tries in range(1, _JOIN_TRIES + 1):
            try:
                if tries > 1:  # wherever the earlier one is, its record is found by this one or can never come
                    await asyncio.to_thread(self._outputs.revoke, JoinTry(job.rollout_id, tries - 1))
                outcome = await self._port.join(job, result, dataclasses.replace(request, number=tries))
            except Exception as error:  # boundary to the joiners: whatever broke may be gone at the next try
                if tries == _JOIN_TRIES:
                    raise
                _log.warning("%s: join %d of %d failed: %s", job.rollout_id, tries, _JOIN_TRIES, error)
                request = dataclasses.replace(request, retry=True)
                await asyncio.sleep(self._settings.join_backoff_s * 2 ** (tries - 1))
                continue
            if not isinstance(outcome, Lost):
                return outcome
            event = ReplyLost(job.ordinal, job.attempt, outcome.failure_class)
            terminal = _join_of(self._ledger.handle(event)).terminal
            result, request = _loss_result(outcome, 0.0), dataclasses.replace(request, retry=True, terminal=terminal)
        raise ClusterError(f"{job.rollout_id}: its reply was reported lost {_JOIN_TRIES} times")


@dataclass(frozen=True, slots=True)
class _LostRun:
    lost: Lost
    latency_ms: float


_Ended = ReplyHandle | RunResult | _LostRun


def _invalid(start: StartAttempt, error: InputError) -> tuple[AttemptJob, RunResult]:
    """Return the job and the result of a row that nobody can read: its record names the row by its place alone."""
    row: dict[str, object] = {"_ng_rollout_id": invalid_row_id(start.ordinal, 0)}
    if start.attempt:
        row["_ng_attempt_index"] = start.attempt
    record = {
        "_ng_failure_class": INVALID_ROW,
        "_ng_failure_type": type(error).__name__,
        "_ng_failure_message": str(error),
        "_ng_failure_terminal": True,
        "_ng_row_ordinal": start.ordinal,
    }
    rollout_id = invalid_row_id(start.ordinal, start.attempt)
    job = AttemptJob(start.ordinal, start.attempt, rollout_id, "", exact_json.dumps(row))
    return job, RunResult(exact_json.dumps(record), None, 0.0)


def _loss_result(lost: Lost, latency_ms: float) -> RunResult:
    return RunResult(None, RunFailure(lost.failure_class, "ProcessLost", lost.message), latency_ms)


def _join_of(instructions: list[Instruction]) -> Join:
    (instruction,) = instructions
    if not isinstance(instruction, Join):
        raise TypeError(f"the ledger answered {instruction}, not a join")
    return instruction
