"""A ledger in the memory of one process, for tests and for workers and trainers that live in it together.

It decides as the ledger in files does, by the same code, and its rows end with the process. So a model server refuses
it for external staging (C203).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import RecordConflictError, RolloutRetiredError
from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging.ledger.ledger_lines import (
    LedgerLine,
    check_commit,
    commit_row,
    failure_row,
    line_of,
    manifest_entry,
)
from gym_ray.token_id_capture.staging.ledger.retirement import distinct_rollout_ids
from gym_ray.token_id_capture.staging.ledger.rollout_rows import Addition, RolloutRows
from gym_ray.token_id_capture.staging.ledger_records import (
    CallRecord,
    CaptureLedgerCommit,
    ManifestFailure,
    RolloutManifest,
    RolloutRemoval,
)

__all__ = ["MemoryCaptureLedger"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rollout:
    rows: RolloutRows = field(default_factory=RolloutRows)
    entries: list[CallRecord | ManifestFailure] = field(default_factory=list)


class MemoryCaptureLedger:
    """Implements :class:`~gym_ray.token_id_capture.staging.ledger.protocol.CaptureLedger` in memory, for one loop."""

    def __init__(self) -> None:
        self._rollouts: dict[str, _Rollout] = {}
        self._retired: set[str] = set()

    async def resolve(self, rollout_id: str, items: Sequence[Any]) -> LineageResolution:
        """Return which committed call a request continues; see the protocol."""
        rollout = self._rollouts.get(check_rollout_id(rollout_id))
        return (rollout.rows if rollout else RolloutRows()).resolve(items)

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Keep the row of one committed call; see the protocol."""
        self._keep(check_commit(commit), commit_row(commit), commit.record.staging_key)

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Keep why a call has no usable row; see the protocol."""
        self._keep(rollout_id, failure_row(model_call_id, reason), "")

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return every row and every failure of a rollout; see the protocol."""
        entries = (self._found(rollout_id) or _Rollout()).entries
        return RolloutManifest(
            rollout_id=rollout_id,
            records=[entry for entry in entries if isinstance(entry, CallRecord)],
            failures=[entry for entry in entries if isinstance(entry, ManifestFailure)],
        )

    async def has_rows(self, rollout_id: str) -> bool:
        """Whether anything was recorded of a rollout; see the protocol."""
        rollout = self._found(rollout_id)
        return rollout is not None and bool(rollout.rows)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Close rollouts for good and remove their rows; see the protocol."""
        return self._remove(rollout_ids, self._retired.add)

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove rows and fences; see the protocol."""
        return self._remove(rollout_ids, self._retired.discard)

    def is_process_shared(self) -> bool:
        """Return False: only this process sees the rows."""
        return False

    def evicts(self) -> bool:
        """Return True: the rows end with the process."""
        return True

    async def close(self) -> None:
        """Do nothing; the rows stay until the ledger is let go of."""

    def _keep(self, rollout_id: str, row: dict[str, Any], staging_key: str) -> None:
        if check_rollout_id(rollout_id) in self._retired:
            call_id = row["model_call_id"]
            _log.warning("%s: retired, so call %r (staging key %r) is dropped", rollout_id, call_id, staging_key)
            return
        rollout = self._rollouts.get(rollout_id, _Rollout())
        line = line_of(row, rollout_id)
        if _addition(rollout.rows, line, rollout_id) is Addition.NEW:
            entry = manifest_entry(row, rollout_id)
            assert entry is not None  # a row that was made here has its staging key
            rollout.rows.add(line)
            rollout.entries.append(entry)
            self._rollouts[rollout_id] = rollout

    def _found(self, rollout_id: str) -> _Rollout | None:
        if check_rollout_id(rollout_id) in self._retired:
            raise RolloutRetiredError(f"rollout {rollout_id!r} is retired; its ledger was removed")
        return self._rollouts.get(rollout_id)

    def _remove(self, rollout_ids: Sequence[str], mark: Callable[[str], None]) -> RolloutRemoval:
        removed: list[str] = []
        absent: list[str] = []
        for rollout_id in distinct_rollout_ids(rollout_ids):
            mark(rollout_id)
            (removed if self._rollouts.pop(rollout_id, None) else absent).append(rollout_id)
        return RolloutRemoval(removed=removed, absent=absent)


def _addition(rows: RolloutRows, line: LedgerLine, rollout_id: str) -> Addition:
    try:
        return rows.judge(line)
    except RecordConflictError as error:
        raise RecordConflictError(f"{rollout_id}: {error}") from None
