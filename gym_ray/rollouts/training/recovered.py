"""What a step's files prove when the process that ran it is gone: durable results are delivered, not lost (B65)."""

from __future__ import annotations

from collections.abc import Sequence

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.evidence.summary import summarise
from gym_ray.rollouts.attempts.attempt_flow import Finished
from gym_ray.rollouts.rows.row_keys import attempt_index
from gym_ray.rollouts.run_files.record_reading import iterate_records
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.training.outcomes import Outcome, Requested, lost_outcome, outcome_of

__all__ = ["recovered_outcomes"]


def recovered_outcomes(paths: RunPaths, requested: Sequence[Requested], reason: str, *, epoch: int) -> list[Outcome]:
    """Return one outcome for each requested rollout: that of its durable result, else that it was lost, and why.

    Args:
        paths: Where the step wrote.
        requested: The rollouts that were not delivered.
        reason: Why they were not.
        epoch: Epoch of the weights when the step began.

    Raises:
        StorageError: The results cannot be read.
        InputError: A line of them is damaged.
    """
    by_id = {item.rollout_id: item for item in requested}
    found: dict[int, Outcome] = {}
    for written, line in iterate_records(paths):
        record = exact_json.loads_object(line) or {}
        attempt = attempt_index(record)
        item = by_id.get(derive_rollout_id({**record, "_ng_attempt_index": None}) or "")
        if item is None:
            continue
        summary = summarise(record, None, derive_rollout_id(record) or item.rollout_id, 0.0)
        finished = Finished(written, summary, False, item.ordinal, attempt)
        found.setdefault(item.ordinal, outcome_of(item, finished, epoch=epoch))
    return [found.get(item.ordinal) or lost_outcome(item, reason) for item in requested]
