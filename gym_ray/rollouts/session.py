"""One run of a collector from its lock to its end: begun afresh or taken up again, in whatever process hosts it.

It owns the output's lock, the claim on capture ids and every open file of the run, so that hosts only host.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import InputError
from gym_ray.evidence.build import JoinOptions
from gym_ray.rollouts.attempts.longest_first import longest_first
from gym_ray.rollouts.capture_owner import CaptureOwner
from gym_ray.rollouts.collection import Collection
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.ports import RolloutPort
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.judge_requeue import requeue_invalid_judge
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.run_index import IndexLog
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_resume import can_resume, opened_rows, resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.tokens.token_delivery import TokenPlan

__all__ = ["RunPlan", "RunSession", "SessionStart"]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run needs to know before it begins; it travels to the process that hosts it.

    Attributes:
        paths: Where the run writes.
        source: The input file.
        options: How the input becomes rows.
        settings: Limits.
        captures: Where model calls are captured, None when capture is off.
        tokens: What is done with captured tokens, None when none are captured.
        join: How evidence is built.
        resume: Take up the run that wrote the output, where there is one (D49).
        salvage: At a resume, set damaged lines aside instead of refusing to go on.
        retry_invalid_judge_responses: At a resume, run rows again whose judge gave no valid verdict (D57).
        dispatch_longest_first: At a resume, start rows first that took longest when they failed (D44).
        token_tables: Joiners hand training rows on as tables, for a training loop that waits for them.
    """

    paths: RunPaths
    source: Path
    options: RowOptions
    settings: CollectionSettings
    captures: CaptureLocation | None
    tokens: TokenPlan | None = None
    join: JoinOptions = field(default_factory=JoinOptions)
    resume: bool = False
    salvage: bool = False
    retry_invalid_judge_responses: bool = False
    dispatch_longest_first: bool = False
    token_tables: bool = False

    @property
    def capture_places(self) -> list[CaptureLocation]:
        """Every place that holds captures of the run, each once."""
        directory = None if self.tokens is None else self.tokens.directory
        tokens = None if directory is None else CaptureLocation.of(directory)
        found = [place for place in (self.captures, tokens) if place is not None]
        return [place for number, place in enumerate(found) if place not in found[:number]]


@dataclass(frozen=True, slots=True)
class SessionStart:
    """How a run began.

    Attributes:
        run_id: 32 hexadecimal digits.
        rows: Materialised rows.
        resumed: Whether an earlier run was taken up.
        done: Rows that have their result already.
        given_up: Rows without a result that get no further try.
        set_aside: Where the results of an earlier run went, None when there were none.
        warnings: What is legal but surprising, one sentence each.
    """

    run_id: str
    rows: int
    resumed: bool
    done: int
    given_up: int
    set_aside: Path | None
    warnings: tuple[str, ...]


class RunSession:
    """Begins a run and holds what it needs. Close it with :meth:`close`.

    Args:
        plan: The run.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self._held = ExitStack()
        self._state: RunState | None = None

    def begin(self) -> SessionStart:
        """Take the output's lock and begin: resume where that is asked for and possible, afresh otherwise (D48, D49).

        Raises:
            InputError: A row, or a line of an earlier run, cannot be used; nothing of an earlier run has changed.
            StorageError: The output cannot be written, or another collector writes it or captures the same ids.
        """
        lock = self._held.enter_context(RunLock(self.plan.paths))
        if self.plan.resume and can_resume(self.plan.paths):
            return self._resume(lock)
        start = begin_run(lock, self.plan.source, self.plan.options, claim=self._claim_all, captures=self.plan.captures)
        rows = start.materialisation
        return SessionStart(start.run_id, rows.rows, False, 0, 0, start.set_aside, rows.warnings)

    def _resume(self, lock: RunLock) -> SessionStart:
        if self.plan.retry_invalid_judge_responses:
            opened_rows(self.plan.paths).close()  # what is refused for its rows is refused before records move
            requeue_invalid_judge(self.plan.paths)
        found = resume_run(lock, salvage=self.plan.salvage, claim=self._claim_unfinished)
        self._state = found.state
        limits = self.plan.settings
        done, given_up, _ = found.state.count(
            limits.max_attempts, retry_terminal_timeouts=limits.retry_terminal_timeouts
        )
        warnings = (*found.warnings, *self._other_captures())
        return SessionStart(found.run_id, found.rows, True, done, given_up, None, warnings)

    def _other_captures(self) -> Iterator[str]:
        manifest, now = read_manifest(self.plan.paths), self.plan.captures
        before = "" if manifest is None else manifest.capture_dir
        if before and before != str(now):
            place = "are not captured" if now is None else f"go to {now}"
            yield f"model calls of earlier attempts are in {before}; those of this run {place}"

    def _claim_all(self, rows_file: Path) -> None:
        with MaterialisedRows(rows_file) as rows:
            self._claim(rows, lambda: range(len(rows)))

    def _claim_unfinished(self, rows: MaterialisedRows, state: RunState) -> None:
        """Claim what this run may still capture; finished rows are not read, so that a resume stays cheap."""
        self._check_agents(rows, state)
        self._claim(rows, lambda: self._unfinished(state))

    def _unfinished(self, state: RunState) -> Iterator[int]:
        limits = self.plan.settings
        return state.pending(limits.max_attempts, retry_terminal_timeouts=limits.retry_terminal_timeouts)

    def _check_agents(self, rows: MaterialisedRows, state: RunState) -> None:
        """Refuse rows whose agent is not there any more: running them would only cost them an attempt (D17)."""
        known = self.plan.options.agents
        if known is None:
            return
        for ordinal in self._unfinished(state):
            try:
                agent = rows.attempt(ordinal, 0).agent
            except InputError:
                continue  # a damaged row never runs; its turn records it as a failure
            if agent not in known:
                runs = ", ".join(sorted(known)) or "none"
                problem = f"no agent {agent!r} runs here (known are: {runs}); resume with the settings of the first run"
                raise InputError(rows.path, ordinal + 1, "agent_ref.name", problem)

    def _claim(self, rows: MaterialisedRows, ordinals: Callable[[], Iterable[int]]) -> None:
        for place in self.plan.capture_places:
            owner = CaptureOwner(place, _rollout_ids(rows, ordinals()), self.plan.paths.output)
            self._held.callback(owner.close)

    def collection(self, port: RolloutPort) -> Collection:
        """Open the run's files for a collection; call it once, after :meth:`begin`.

        Raises:
            GymRayError: The run's files cannot be opened.
        """
        paths, hold = self.plan.paths, self._held.enter_context
        rows = hold(MaterialisedRows.of(paths))
        outputs, log, index = hold(RunOutputs(paths)), hold(LedgerLog(paths.ledger)), hold(IndexLog(paths.index))
        mask_limit = None if self.plan.tokens is None else self.plan.tokens.mask_limit()
        return Collection(
            rows,
            outputs,
            log,
            port,
            self.plan.settings,
            mask_limit,
            index=index,
            state=self._state,
            order=self._order(len(rows)),
        )

    def _order(self, rows: int) -> array[int] | None:
        resumed = self._state is not None
        return longest_first(self.plan.paths, rows) if resumed and self.plan.dispatch_longest_first else None

    def close(self) -> None:
        """Close every file and give the output's lock back; call it when the collection is over. Safe to repeat."""
        self._held.close()


def _rollout_ids(rows: MaterialisedRows, ordinals: Iterable[int]) -> Iterator[str]:
    for ordinal in ordinals:
        try:
            yield rows.attempt(ordinal, 0).rollout_id
        except InputError:
            continue  # a damaged row never runs; its turn records it as a failure
