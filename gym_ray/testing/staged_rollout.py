"""A rollout of staged calls with the rows of its ledger and its receipt, for tests of what verifies it."""

from __future__ import annotations

from typing import Any

from gym_ray.testing.staged_chains import staged_call
from gym_ray.token_id_capture.staging.constants import TerminalSelection
from gym_ray.token_id_capture.staging.digests import compute_chain_hash
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.records import StagedCallRecord
from gym_ray.token_id_capture.token_arrays import TokenIds

__all__ = ["StagedRollout", "row_of"]


class StagedRollout:
    """The calls of one rollout, each on top of one before it or a root.

    Args:
        rollout_id: The rollout.
    """

    def __init__(self, rollout_id: str = "r1") -> None:
        self.rollout_id = rollout_id
        self.records: dict[str, StagedCallRecord] = {}
        self.rows: list[CallRecord] = []

    def add(
        self,
        model_call_id: str,
        carried: TokenIds,
        generated: TokenIds,
        *,
        parent: str | None = None,
        admitted_at: float | None = None,
        chain_hash_of: str | None = None,
        changed: dict[str, Any] | None = None,
        **rest: Any,
    ) -> StagedCallRecord:
        """Stage one more call and return its record.

        Args:
            model_call_id: Its id.
            carried: What its prompt adds to its parent's tokens.
            generated: What it sampled.
            parent: The call that it continues.
            admitted_at: When it was admitted, for its row.
            chain_hash_of: A call to chain it to instead of its parent, so that its chain hash is wrong.
            changed: Members to change afterwards, however wrong; the digest is made right again.
            **rest: As :func:`~gym_ray.testing.staged_chains.staged_call` takes them.
        """
        record = staged_call(
            self.rollout_id,
            model_call_id,
            carried=carried,
            generated=generated,
            ancestors=self.chain(parent),
            **rest,
        )
        changes = dict(changed or {})
        if chain_hash_of is not None:
            other = self.records[chain_hash_of].chain_hash
            changes["chain_hash"] = compute_chain_hash(other, record.token_ids_delta.array)
        if changes:
            record = record.model_copy(update=changes)
            record = record.model_copy(update={"digest": record.compute_digest()})
        self.records[model_call_id] = record
        self.rows.append(row_of(record, admitted_at))
        return record

    def chain(self, call_id: str | None) -> list[StagedCallRecord]:
        """Return the records from the root to a call; none for None."""
        chain: list[StagedCallRecord] = []
        while call_id is not None:
            chain.append(self.records[call_id])
            call_id = chain[-1].parent_call_id
        return chain[::-1]

    def receipt(self, terminal: str, selection: TerminalSelection = "declared", **changed: Any) -> RolloutReceipt:
        """Return the receipt that names all calls, and ``terminal`` as the one that ended the rollout."""
        return RolloutReceipt(
            rollout_id=self.rollout_id,
            terminal_model_call_id=terminal,
            terminal_selection=selection,
            manifest=self.rows,
        ).model_copy(update=changed)

    def snapshots(self) -> list[StagedCallRecord]:
        """Return the records in the order of the manifest."""
        return [self.records[row.model_call_id] for row in self.rows]


def row_of(record: StagedCallRecord, admitted_at: float | None = None) -> CallRecord:
    """Return the row that a ledger keeps of a staged call."""
    shared = CallRecord.model_fields.keys() & StagedCallRecord.model_fields.keys()
    return CallRecord(
        **{name: getattr(record, name) for name in shared},
        staging_key=record.staging_key,
        response_id=f"resp-{record.model_call_id}",
        admitted_at=admitted_at,
    )
