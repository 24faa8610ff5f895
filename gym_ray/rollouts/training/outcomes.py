"""What became of each requested rollout: small values that a collector's process holds, never payloads (D169).

A rollout that gave no usable result has reasons, and one that has reasons has no reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gym_ray.rollouts.attempts.attempt_flow import Finished
from gym_ray.rollouts.run_paths import Written

__all__ = [
    "CANCELLED",
    "COLLECTOR_FAILED",
    "COLLECTOR_LOST",
    "DEADLINE",
    "DRAINED",
    "GROUP_DEADLINE",
    "MASKED_BY_SCORER",
    "NOT_RECORDED",
    "NO_REWARD",
    "RUN_FAILED",
    "Outcome",
    "Requested",
    "TokenRows",
    "lost_outcome",
    "outcome_of",
]

CANCELLED: Final = "cancelled"
DRAINED: Final = "drained"
DEADLINE: Final = "deadline"
GROUP_DEADLINE: Final = "group_deadline"
COLLECTOR_LOST: Final = "collector_lost"
COLLECTOR_FAILED: Final = "collector_failed"
RUN_FAILED: Final = "run_failed"
NO_REWARD: Final = "no_reward"
NOT_RECORDED: Final = "not_recorded"
MASKED_BY_SCORER: Final = "mask_sample"


@dataclass(frozen=True, slots=True)
class Requested:
    """One rollout that a loop asked for.

    Attributes:
        ordinal: Its place among the rollouts of the step.
        row_index: Its row's place in what the caller gave.
        rollout_id: Capture key of its first attempt.
        task_index: Its task.
        rollout_index: Which repeat of the task it is.
        agent: Who runs it.
    """

    ordinal: int
    row_index: int
    rollout_id: str
    task_index: Any
    rollout_index: int
    agent: str

    @property
    def group(self) -> tuple[str, str]:
        """What all repeats of a task by one agent share."""
        return str(self.task_index), self.agent


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Training rows that lie where they can be read without a copy.

    Attributes:
        reference: Whatever the host needs to find them.
        nbytes: What they hold there.
    """

    reference: object
    nbytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a requested rollout.

    Attributes:
        requested: Which one.
        rollout_id: Capture key of the attempt that decided, of the first one when none did.
        attempt: Its number, None when none decided.
        reward: What it was scored with, None where ``reasons`` says why there is none.
        reasons: Why it cannot be used, none when it can.
        failure_class: Class of its failure, None without one.
        written: Where its durable record lies, None without one.
        token_rows: Its training rows as the port keeps them, None without any.
        epoch: Epoch of the weights when its attempt began.
    """

    requested: Requested
    rollout_id: str
    attempt: int | None = None
    reward: float | None = None
    reasons: tuple[str, ...] = ()
    failure_class: str | None = None
    written: Written | None = None
    token_rows: object | None = None
    epoch: int = 0


def outcome_of(requested: Requested, finished: Finished, *, epoch: int = 0) -> Outcome:
    """Return what a finished attempt, that is not tried again, makes of its rollout."""
    summary = finished.summary
    reasons: tuple[str, ...] = ()
    if summary.failure_class is not None:
        reasons = (summary.failure_class,)
    elif summary.token_mask_reasons:
        reasons = summary.token_mask_reasons
    elif summary.masked:
        reasons = (MASKED_BY_SCORER,)
    elif finished.written is None:
        reasons = (NOT_RECORDED,)
    elif summary.reward is None:
        reasons = (NO_REWARD,)
    return Outcome(
        requested,
        summary.rollout_id,
        finished.attempt,
        None if reasons else summary.reward,
        reasons,
        summary.failure_class,
        finished.written,
        finished.token_rows,
        epoch,
    )


def lost_outcome(requested: Requested, reason: str) -> Outcome:
    """Return the outcome of a rollout that gave nothing."""
    return Outcome(requested, requested.rollout_id, reasons=(reason,))
