"""A rollout of staged calls, made call by call, for tests of whatever keeps, reads or verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gym_ray.token_id_capture.staging.constants import TerminalSelection
from gym_ray.token_id_capture.staging.delta import PackedDelta, packed_delta
from gym_ray.token_id_capture.staging.digests import compute_extras_digest, hash_call
from gym_ray.token_id_capture.staging.hash_input import strict_log_probs, strict_token_ids
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.records import StagedCallRecord
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens

__all__ = ["StagedRollout"]


class StagedRollout:
    """The calls of one rollout, each on top of one before it or a root, with the rows that a ledger would have.

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
        carried: Sequence[int],
        generated: Sequence[int],
        *,
        parent: str | None = None,
        weight_version: int = 3,
        extras: dict[str, Any] | None = None,
        mask: Sequence[bool] | None = None,
        chain_hash_of: str | None = None,
        admitted_at: float | None = None,
    ) -> StagedCallRecord:
        """Stage one more call and return its record, which validation would accept.

        Args:
            model_call_id: Its id.
            carried: What its prompt adds to its parent's tokens.
            generated: What it sampled; the log probabilities are -0.25 each.
            parent: The call that it continues.
            weight_version: Its version of the weights.
            extras: Its extras.
            mask: Which tokens it generated, if not the last ones.
            chain_hash_of: A call to chain it to instead of its parent, so that its chain hash is wrong.
            admitted_at: When it was admitted, for its row.
        """
        before = self.tokens(parent)
        delta = self._delta(before, carried, generated, mask)
        chained = chain_hash_of or parent
        values: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "model_call_id": model_call_id,
            "parent_call_id": parent,
            "mode": "text" if parent is None else "token_in",
            "weight_version": weight_version,
            "extras_digest": compute_extras_digest(extras),
        }
        parent_hash = None if chained is None else self.records[chained].chain_hash
        hashes = hash_call(**values, prefix=before, delta=delta, parent_chain_hash=parent_hash)
        record = StagedCallRecord.trusted(
            **values,
            prev_len=before.size,
            delta_len=delta.token_ids.size,
            cum_len=before.size + delta.token_ids.size,
            digest=hashes.digest,
            token_ids_delta=delta.token_ids,
            token_mask_delta=delta.token_mask,
            generation_log_probs_delta=delta.log_probs,
            chain_hash=hashes.chain_hash,
            cumulative_hash=hashes.cumulative_hash,
            extras=extras,
        )
        self.records[model_call_id] = record
        self.rows.append(row_of(record, admitted_at))
        return record

    def tokens(self, call_id: str | None) -> TokenArray:
        """Return all tokens up to the end of a call; none for None."""
        parts: list[TokenArray] = []
        while call_id is not None:
            record = self.records[call_id]
            parts.append(record.token_ids_delta.array)
            call_id = record.parent_call_id
        return join_tokens(parts[::-1])

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

    def _delta(
        self, before: TokenArray, carried: Sequence[int], generated: Sequence[int], mask: Sequence[bool] | None
    ) -> PackedDelta:
        prompt = join_tokens([before, strict_token_ids(list(carried))])
        log_probs = strict_log_probs([-0.25] * len(generated))
        delta = packed_delta(prompt, strict_token_ids(list(generated)), log_probs, before.size)
        if mask is None:
            return delta
        chosen = np.array(mask, np.bool_)
        return PackedDelta(delta.token_ids, chosen, np.where(chosen, np.float32(-0.25), np.float32(0)))


def row_of(record: StagedCallRecord, admitted_at: float | None = None) -> CallRecord:
    """Return the row that a ledger keeps of a staged call."""
    shared = CallRecord.model_fields.keys() & StagedCallRecord.model_fields.keys()
    return CallRecord(
        **{name: getattr(record, name) for name in shared},
        staging_key=record.staging_key,
        response_id=f"resp-{record.model_call_id}",
        admitted_at=admitted_at,
    )
