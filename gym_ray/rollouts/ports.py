"""What a collection asks of whoever hosts its processes.

:class:`RolloutPort` is all a :class:`~gym_ray.rollouts.collection.Collection` knows of workers and joiners. It moves
small values only: a run's reply stays where the worker put it, behind an opaque handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gym_ray.evidence.run_result import RunResult
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.run_paths import OutputMark, Written

__all__ = ["AttemptJob", "JoinOutcome", "JoinRequest", "Lost", "Placement", "ReplyHandle", "RolloutPort"]


@dataclass(frozen=True, slots=True)
class AttemptJob:
    """One attempt of one row, as a worker and a joiner get it.

    Attributes:
        ordinal: Position of the row in the materialised inputs.
        attempt: 0 for the first attempt of this run's row, then 1, 2, …
        rollout_id: Capture key of exactly this attempt (D20).
        agent: Name of the agent that runs it.
        row: The row object as JSON, ``_ng_attempt_index`` included where the attempt has one.
        timeout_s: Time the run may take, None for no limit.
        begun_at: When the attempt was taken up, in seconds since 1970 by the collector's clock: no call of it is older.
    """

    ordinal: int
    attempt: int
    rollout_id: str
    agent: str
    row: bytes
    timeout_s: float | None = None
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplyHandle:
    """A run ended with a :class:`RunResult`, which is still where the port keeps it.

    Attributes:
        value: Whatever the port needs to hand the result to a joiner.
    """

    value: object


@dataclass(frozen=True, slots=True)
class Lost:
    """A process took the run, or its reply, with it.

    Attributes:
        failure_class: ``worker_lost`` when the process died, ``node_lost`` when its node did.
        message: What was seen, one line.
    """

    failure_class: Literal["worker_lost", "node_lost"]
    message: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a joiner must know beside the job and the result.

    Attributes:
        mark: Sizes of the outputs before the first try of this join.
        retry: An earlier try may have appended the record; look behind ``mark`` before appending.
        terminal: The attempt must never be tried again (``_ng_failure_terminal``).
        attach_capture: False when the attempt never ran, so that no call can belong to it (A122).
        number: Grows from each try of an attempt to the next. Earlier ones were called back before this was asked.
    """

    mark: OutputMark
    retry: bool = False
    terminal: bool = False
    attach_capture: bool = True
    number: int = 1


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """A finished attempt.

    Attributes:
        written: Where its durable record lies, None when the reply asked to be written nowhere (D37).
        summary: The figures of the record.
        token_rows: The attempt's training rows as the port keeps them, opaque here; None when there are none.
    """

    written: Written | None
    summary: RolloutSummary
    token_rows: object | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt that runs now runs.

    Attributes:
        rollout_id: Capture key of the attempt.
        attempt: Its number.
        seat: Name of the worker.
        node: Id of the worker's node, "" where there are no nodes.
        begun_at: When the worker was given the attempt, in seconds since 1970.
    """

    rollout_id: str
    attempt: int
    seat: str
    node: str
    begun_at: float


class RolloutPort(Protocol):
    """What hosts must do for a collection."""

    @property
    def capacity(self) -> int:
        """Runs that the workers can take at once; at least 1."""
        ...

    def placements(self) -> Sequence[Placement]:
        """Return where each attempt runs that runs now, oldest first; at once, without asking anybody."""
        ...

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of exactly these attempts and remove their markers (D25); nothing when capture is off.

        Raises:
            StorageError: A capture could not be cleared; the attempt must not run.
        """
        ...

    async def run(self, job: AttemptJob) -> ReplyHandle | Lost:
        """Run one attempt exactly once; never send it a second time (D33).

        Agent failures are results behind the handle. Cancelling this call cancels the run, and the call ends only
        when the run has.

        Raises:
            ClusterError: No worker is left. The collection ends; what has ended is stored.
            Exception: Anything else counts as a failure of this attempt and is recorded as one.
        """
        ...

    async def join(self, job: AttemptJob, result: ReplyHandle | RunResult, request: JoinRequest) -> JoinOutcome | Lost:
        """Join and store one attempt in a joiner; the record is durable when this returns.

        Returns:
            The outcome, or ``Lost`` when the reply behind the handle is gone.

        Raises:
            Exception: The joiner died or could not store the record; the caller asks again with ``retry`` set. After
                the last try the collection ends, since finished work can no longer be kept.
        """
        ...
