"""One step of a training loop: a small durable run whose rollouts are each decided exactly once (D169, B65, B66).

Whatever happens, every requested rollout is delivered: with its result, or masked with a reason. A deadline decides at
once; what then still runs is cancelled behind the loop's back, and what it stores late stays in the step's files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gym_ray import exact_json
from gym_ray.errors import GymRayError
from gym_ray.rollouts.attempts.attempt_flow import Finished
from gym_ray.rollouts.collection import Collection, Progress
from gym_ray.rollouts.ports import AttemptJob, RolloutPort
from gym_ray.rollouts.rows.input_rows import read_rows
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.rollouts.session import RunPlan, RunSession
from gym_ray.rollouts.training.gated_port import GatedPort
from gym_ray.rollouts.training.outcomes import (
    CANCELLED,
    DEADLINE,
    DRAINED,
    GROUP_DEADLINE,
    RUN_FAILED,
    Outcome,
    Requested,
    TokenRows,
    outcome_of,
)
from gym_ray.rollouts.training.step_board import StepBoard

__all__ = ["Step", "StepPlan", "Taken"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step is asked for.

    Attributes:
        run: Its run; repeats of a row are not interleaved.
        groups: Deliver all repeats of a task together.
        timeout_s: Time for the whole step, None for no limit.
        group_timeout_s: Time for a group since the first of it began, None for no limit.
        max_undelivered_bytes: Starts nothing while this much waits to be taken.
    """

    run: RunPlan
    groups: bool = False
    timeout_s: float | None = None
    group_timeout_s: float | None = None
    max_undelivered_bytes: int = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Taken:
    """Deliveries that a loop took.

    Attributes:
        units: One outcome each, or those of a whole group.
        over: Nothing more comes.
        failure: What ended the run early, "" for nothing.
    """

    units: list[tuple[Outcome, ...]] = field(default_factory=list)
    over: bool = False
    failure: str = ""


class Step:
    """Runs one step on the loop that calls it. Close it with :meth:`aclose`.

    Args:
        plan: What it is asked for.
        epoch: Returns the epoch of the weights of now.
    """

    def __init__(self, plan: StepPlan, epoch: Callable[[], int] = lambda: 0) -> None:
        self.plan, self._epoch = plan, epoch
        self._session = RunSession(plan.run)
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._paused = self._draining = False
        self._epochs: dict[int, int] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._begun_groups: set[tuple[str, str]] = set()
        self._notices: set[asyncio.Task[None]] = set()
        self._delivered, self._last = 0, Taken()
        self.failure = ""

    async def begin(self) -> tuple[Requested, ...]:
        """Make the step's files and return what was asked for, one for each rollout.

        Raises:
            InputError: A row cannot be used.
            StorageError: The files cannot be written.
        """
        requested = await asyncio.to_thread(self._begin)
        self._board = StepBoard(requested, groups=self.plan.groups)
        return requested

    def _begin(self) -> tuple[Requested, ...]:
        self._session.begin()
        run = self.plan.run
        lines = [row.line - 1 for row in read_rows(run.source, run.options) for _ in range(row.repeats)]
        with MaterialisedRows.of(run.paths) as rows:
            return tuple(_requested(rows, ordinal, lines[ordinal]) for ordinal in range(len(rows)))

    def open(self, port: RolloutPort) -> None:
        """Start; call it once, after :meth:`begin`.

        Raises:
            GymRayError: The run's files cannot be opened.
        """
        self._port = GatedPort(port, self._admit)
        self._collection: Collection = self._session.collection(self._port)
        self._running = asyncio.create_task(self._run())
        if self.plan.timeout_s is not None:
            self._after(self.plan.timeout_s, lambda: self._decide(self._board.open_ordinals(), DEADLINE))

    async def take(self, most: int, wait_s: float, delivered: int) -> Taken:
        """Return what is there to deliver, after at most ``wait_s`` when nothing is.

        Args:
            most: Deliveries at once.
            wait_s: Longest wait.
            delivered: Rollouts that whoever asks has got so far; an answer that was lost on its way is given again.
        """
        board = self._board
        async with self._changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(lambda: board.waiting or board.over or self._delivered > delivered)
            except TimeoutError:
                return Taken()
            if self._delivered <= delivered:
                units = board.take(most)
                self._delivered += sum(len(unit) for unit in units)
                self._last = Taken(units, board.over, self.failure)
                self._changed.notify_all()
            return self._last

    def pause(self) -> None:
        """Start nothing more until :meth:`resume`; what runs goes on, and time limits run on."""
        self._paused = True

    def resume(self) -> None:
        """Start again."""
        self._paused = False
        self._tell()

    def drain(self) -> None:
        """Start nothing more: what has not begun is masked, what runs goes on."""
        self._draining = True
        self._decide([n for n in self._board.open_ordinals() if n not in self._epochs], DRAINED)

    async def drained(self, timeout_s: float | None) -> None:
        """Return once every rollout is decided; what is not after ``timeout_s`` is masked then."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._board.decided)
        except TimeoutError:
            self._decide(self._board.open_ordinals(), DRAINED)

    def cancel(self, rollout_ids: Iterable[str] | None = None, *, reason: str = CANCELLED) -> int:
        """End rollouts, None for all that are undecided; return how many this decided."""
        board = self._board
        return self._decide(board.open_ordinals() if rollout_ids is None else board.find(rollout_ids), reason)

    def progress(self) -> tuple[Progress, int, int]:
        """Return where the run stands, undecided rollouts and undelivered bytes."""
        return self._collection.progress(), len(self._board.open_ordinals()), self._board.undelivered_bytes

    def standing(self) -> RunStanding:
        """Return where the run stands; nothing of a step that was never opened."""
        if self._running is None:
            return RunStanding()
        return replace(RunStanding.of(self._collection), paused=self._paused)

    async def aclose(self) -> None:
        """Cancel what still runs, store what has ended, close the files; idempotent."""
        for timer in self._timers:
            timer.cancel()
        if self._running is not None:
            self._decide(self._board.open_ordinals(), CANCELLED)
            self._collection.stop()
            await asyncio.wait([self._running])
        await asyncio.gather(*self._notices)
        await asyncio.to_thread(self._session.close)

    async def _run(self) -> None:
        reason = RUN_FAILED
        try:
            async for finished in self._collection.finished():
                self._settle(finished)
            reason = CANCELLED
        except GymRayError as error:
            self.failure = str(error)
            _log.error("a step ended early: %s", error)
        except Exception as error:  # noqa: BLE001 - boundary: each rollout gets its result, whatever ended the run
            self.failure = repr(error)
            _log.exception("a step ended early")
        finally:
            self._decide(self._board.open_ordinals(), reason)

    def _settle(self, finished: Finished) -> None:
        if finished.retried:
            return
        requested = self._board.requested(finished.ordinal)
        outcome = outcome_of(requested, finished, epoch=self._epochs.get(finished.ordinal, 0))
        rows = outcome.token_rows.nbytes if isinstance(outcome.token_rows, TokenRows) else 0
        self._board.settle(outcome, rows + (0 if outcome.written is None else outcome.written.length))
        self._tell()

    def _decide(self, ordinals: Sequence[int], reason: str) -> int:
        masked = self._board.mask(ordinals, reason)
        if masked:
            self._port.end(masked)
            self._tell()
        return len(masked)

    async def _admit(self, job: AttemptJob) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_start(job.ordinal))
        if self._draining:  # nothing more starts, another try of a row neither
            self._decide([job.ordinal], DRAINED)
        if not self._board.is_open(job.ordinal):
            return False
        self._epochs[job.ordinal] = self._epoch()
        self._begin_group(job.ordinal)
        return True

    def _may_start(self, ordinal: int) -> bool:
        if self._draining or not self._board.is_open(ordinal):
            return True
        return not self._paused and self._board.has_room(self.plan.max_undelivered_bytes)

    def _begin_group(self, ordinal: int) -> None:
        limit, group = self.plan.group_timeout_s, self._board.requested(ordinal).group
        if limit is None or group in self._begun_groups:
            return
        self._begun_groups.add(group)
        self._after(limit, lambda: self._decide(self._board.group_of(ordinal), GROUP_DEADLINE))

    def _after(self, delay_s: float, what: Callable[[], object]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, what))

    def _tell(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _requested(rows: MaterialisedRows, ordinal: int, row_index: int) -> Requested:
    attempt = rows.attempt(ordinal, 0)
    row = exact_json.loads_object(attempt.data) or {}
    return Requested(
        ordinal, row_index, attempt.rollout_id, row["_ng_task_index"], row["_ng_rollout_index"], attempt.agent
    )
