"""From committed calls to a training row: ledger, manifest, receipt, verification."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import ReceiptVerificationError
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging import (
    CaptureLedgerCommit,
    FileCaptureLedger,
    RolloutManifest,
    build_receipt,
    verify_and_linearize,
)


def staged() -> StagedRollout:
    rollout = StagedRollout()
    rollout.add("c1", [10, 11], [12], admitted_at=1.0)
    rollout.add("c2", [20], [21], parent="c1", weight_version=4, admitted_at=2.0)
    rollout.add("given-up", [20], [22], parent="c1", admitted_at=3.0)
    rollout.add("c3", [], [30], parent="c2", admitted_at=4.0)
    return rollout


async def kept(rollout: StagedRollout, root: Path, *failures: tuple[str, str]) -> RolloutManifest:
    """Commit all calls, and return what a ledger of another process says of them."""
    ledger, other = FileCaptureLedger(root), FileCaptureLedger(root)
    for row in rollout.rows:
        commit = CaptureLedgerCommit(
            rollout_id=rollout.rollout_id,
            record=row,
            staging_chain=[record.staging_key for record in rollout.chain(row.model_call_id)],
            request_items=[],
            response_items=[],
        )
        await ledger.record(commit)
    for call_id, reason in failures:
        await ledger.record_failure(rollout.rollout_id, call_id, reason)
    manifest = await other.manifest(rollout.rollout_id)
    await ledger.close()
    await other.close()
    return manifest


@pytest.mark.parametrize("response", [None, {"id": "resp-c3"}])
async def test_a_rollout_becomes_the_row_of_its_chain(tmp_path: Path, response: object) -> None:
    rollout = staged()
    receipt = build_receipt(await kept(rollout, tmp_path), response, reward=1.0)
    row = verify_and_linearize(receipt, rollout.snapshots())
    assert list(row.token_ids) == [10, 11, 12, 20, 21, 30]
    assert list(row.token_mask) == [0, 0, 1, 0, 1, 1]
    assert list(row.model_call_ids) == ["c1", "c2", "c3"]


async def test_a_failed_call_masks_the_rollout_with_its_reason(tmp_path: Path) -> None:
    rollout = staged()
    manifest = await kept(rollout, tmp_path, ("c4", "worker_capture_failed"))
    receipt = build_receipt(manifest, None, reward=1.0)
    assert receipt.failure_reason == "worker_capture_failed"
    with pytest.raises(ReceiptVerificationError) as caught:
        verify_and_linearize(receipt, rollout.snapshots())
    assert caught.value.code == "rollout_failed"


async def test_an_end_that_cannot_be_told_masks_the_rollout(tmp_path: Path) -> None:
    rollout = staged()
    receipt = build_receipt(await kept(rollout, tmp_path), None, reward=1.0, declared_response_id="gone")
    with pytest.raises(ReceiptVerificationError) as caught:
        verify_and_linearize(receipt, rollout.snapshots())
    assert caught.value.code == "capture_poisoned"
