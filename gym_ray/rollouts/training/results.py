"""What a training loop holds in its hands: results, groups and batches, with tokens as views (D169, B65, B66).

A result is never None and never missing. What cannot be used is masked, says why, and has no reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from gym_ray import exact_json
from gym_ray.errors import CaptureError, GymRayError
from gym_ray.rollouts.tokens.token_tables import recorded_table
from gym_ray.rollouts.training.outcomes import Outcome
from gym_ray.rollouts.training.weight_versions import EARLIER_EPOCH, Spoken, stale_reasons
from gym_ray.token_id_capture.token_table import TOKEN_TABLE_SCHEMA, masked_table, with_masks

__all__ = ["NO_TOKEN_ROWS", "ResultMaker", "RolloutBatch", "RolloutGroup", "RolloutResult", "grouped"]

NO_TOKEN_ROWS = "no_token_rows"  # noqa: S105 - a reason, not a secret
"""The tokens of a rollout were captured, and no training rows of it could be read."""


@dataclass(frozen=True, eq=False)
class RolloutResult:
    """The one result of a requested rollout.

    Attributes:
        rollout_id: Capture key of the attempt that decided.
        row_index: Place of its row in what the caller gave.
        task_index: Its task.
        rollout_index: Which repeat of the task it is.
        attempt: Number of the attempt, None when none decided.
        reward: What it was scored with; None exactly where it is masked.
        masked: It must not be learned from.
        reasons: Why; none when it may.
        failure_class: Class of its failure, None without one.
        tokens: Its training rows (see ``token_table``), read-only views; a masked row without tokens where it gave
            none; None where its agent's tokens are not captured.
    """

    rollout_id: str
    row_index: int
    task_index: Any
    rollout_index: int
    attempt: int | None
    reward: float | None
    masked: bool
    reasons: tuple[str, ...]
    failure_class: str | None
    tokens: pa.Table | None = field(repr=False)
    _read: Callable[[], bytes] | None

    def record_bytes(self) -> bytes | None:
        """Return its durable record as its line of JSON, read from storage; None when it left none.

        Raises:
            StorageError: It cannot be read.
        """
        return None if self._read is None else self._read()

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """Its durable record, read from storage when it is first asked for; None when it left none."""
        line = self.record_bytes()
        return None if line is None else exact_json.loads_object(line)

    def reply(self) -> dict[str, Any]:
        """Return what its agent replied, without the collector's own members (D61).

        A rollout without a record gives a reply that says why: ``reward`` None, ``mask_sample`` and the class.
        """
        if self.record is None:
            return {"reward": None, "mask_sample": True, "_ng_failure_class": self.reasons[0]}
        kept = ("_ng_failure_class", "_ng_failure_message", "_ng_training_rows")
        return {
            name: value for name, value in self.record.items() if not name.startswith(("_ng_", "ng_")) or name in kept
        }


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """All repeats of one task, in their order; a partial one holds masked results that say why.

    Attributes:
        task_index: The task.
        results: One for each repeat.
    """

    task_index: Any
    results: tuple[RolloutResult, ...]

    @property
    def usable(self) -> tuple[RolloutResult, ...]:
        """Those that can be learned from; may be none."""
        return tuple(result for result in self.results if not result.masked)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the group is partial, none when it is whole."""
        return tuple(dict.fromkeys(reason for result in self.results for reason in result.reasons))


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """The results of a step, in the order of its rows and repeats.

    Attributes:
        results: Exactly one for each requested rollout.
    """

    results: tuple[RolloutResult, ...]

    @property
    def usable(self) -> tuple[RolloutResult, ...]:
        """Those that can be learned from; at least one.

        Raises:
            CaptureError: There is none; the message counts the reasons.
        """
        usable = tuple(result for result in self.results if not result.masked)
        if not usable:
            reasons = Counter(reason for result in self.results for reason in result.reasons)
            counted = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common())
            raise CaptureError(f"none of {len(self.results)} rollouts can be learned from ({counted})")
        return usable

    @property
    def tokens(self) -> pa.Table:
        """Their training rows one after the other, masked ones too; no buffer is copied."""
        tables = [result.tokens for result in self.results if result.tokens is not None]
        return pa.concat_tables(tables) if tables else TOKEN_TABLE_SCHEMA.empty_table()


@dataclass(frozen=True, slots=True)
class ResultMaker:
    """Makes results of outcomes.

    Attributes:
        trained: Names of agents whose tokens are captured.
        max_staleness: How many versions ago a row may be sampled, None for no limit.
        fetch: Returns the table behind ``Outcome.token_rows``, None when it is lost.
        read: Returns the record of an outcome that has one.
    """

    trained: frozenset[str]
    max_staleness: int | None
    fetch: Callable[[object], pa.Table | None]
    read: Callable[[Outcome], bytes]

    def result(self, outcome: Outcome, now: Spoken | None) -> RolloutResult:
        """Return the result of a rollout; what cannot be read of it masks it."""
        if now is not None and outcome.attempt is not None and outcome.epoch != now.epoch:
            # Its version's number means other weights today, so that it must not be compared, nor learned from.
            outcome = replace(outcome, reward=None, reasons=(*outcome.reasons, EARLIER_EPOCH))
        reasons, reward, tokens = outcome.reasons, outcome.reward, None
        if outcome.requested.agent in self.trained:
            tokens, reward, reasons = self._tokens(outcome, now)
        asked = outcome.requested
        return RolloutResult(
            outcome.rollout_id,
            asked.row_index,
            asked.task_index,
            asked.rollout_index,
            outcome.attempt,
            None if reasons else reward,
            bool(reasons),
            reasons,
            outcome.failure_class,
            tokens,
            None if outcome.written is None else lambda: self.read(outcome),
        )

    def _tokens(self, outcome: Outcome, now: Spoken | None) -> tuple[pa.Table, float | None, tuple[str, ...]]:
        table = self._table(outcome)
        if table is None:
            reasons = outcome.reasons or (NO_TOKEN_ROWS,)
            return masked_table(outcome.rollout_id, reasons), None, reasons
        whole = outcome.failure_class is not None or EARLIER_EPOCH in outcome.reasons  # what masks each of its rows
        reward, more = outcome.reward, [outcome.reasons if whole else ()] * table.num_rows
        if not all(table.column("masked").to_pylist()) and outcome.reasons and not whole:
            reward = self._recorded_reward(outcome)  # the record is masked, and some of its rows prove themselves
            more = [outcome.reasons if reward is None else ()] * table.num_rows
        if now is not None and self.max_staleness is not None and not whole:
            stale = stale_reasons(table, now, self.max_staleness)
            more = [(*old, *new) for old, new in zip(more, stale, strict=True)]
        table = with_masks(table, more, reward)
        if not all(table.column("masked").to_pylist()):
            return table, reward, ()
        found = [reason for row in table.column("reasons").to_pylist() for reason in row]
        return table, None, tuple(dict.fromkeys([*outcome.reasons, *found]))

    def _table(self, outcome: Outcome) -> pa.Table | None:
        table = None if outcome.token_rows is None else self.fetch(outcome.token_rows)
        if table is not None or outcome.written is None or outcome.failure_class is not None:
            return table
        try:
            return recorded_table(self._record(outcome))
        except GymRayError:
            return None  # the result says that its rows cannot be read

    def _recorded_reward(self, outcome: Outcome) -> float | None:
        """Return the reward of a masked record whose rows are judged one by one."""
        try:
            reward = self._record(outcome).get("reward")
        except GymRayError:
            return None
        return _measured(reward)

    def _record(self, outcome: Outcome) -> Mapping[str, Any]:
        return exact_json.loads_object(self.read(outcome)) or {}


def _measured(reward: object) -> float | None:
    """Return a reward that a record brings; NaN, infinity and what no float can hold measure nothing."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    try:
        value = float(reward)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def grouped(results: Sequence[RolloutResult]) -> RolloutGroup:
    """Return the repeats of one task as a group."""
    return RolloutGroup(results[0].task_index, tuple(results))
