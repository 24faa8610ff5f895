"""Every code that a verification can end with, what it is about, and that the work is linear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.errors import RebuildError, ReceiptVerificationError
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging import digests, linearized, records, verify
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.records import StagedCallRecord
from gym_ray.token_id_capture.staging.verify import linearize, linearize_all, verify_and_linearize


def three_calls() -> StagedRollout:
    rollout = StagedRollout()
    rollout.add("c1", [10, 11], [12])
    rollout.add("c2", [20], [21], parent="c1", weight_version=4, extras={"routed": 1})
    rollout.add("c3", [], [30], parent="c2", weight_version=4)
    return rollout


class Given:
    """What is verified; each step of a test spoils a part of it, past all validation."""

    def __init__(self) -> None:
        rollout = three_calls()
        self.receipt: RolloutReceipt = rollout.receipt("c3")
        self.calls: list[StagedCallRecord] = rollout.snapshots()

    def spoil_receipt(self, **changed: Any) -> None:
        self.receipt = self.receipt.model_copy(update=changed)

    def spoil_row(self, at: int, **changed: Any) -> None:
        rows: list[CallRecord] = list(self.receipt.manifest)
        rows[at] = rows[at].model_copy(update=changed)
        self.spoil_receipt(manifest=rows)

    def spoil_call(self, at: int, **changed: Any) -> None:
        self.calls[at] = self.calls[at].model_copy(update=changed)

    def spoil_both(self, at: int, **changed: Any) -> None:
        """Change a call and stage it anew, so that its digest is right again and its row says the same."""
        self.spoil_call(at, **changed)
        self.spoil_call(at, digest=self.calls[at].compute_digest())
        shared = CallRecord.model_fields.keys() & changed.keys()
        self.spoil_row(at, digest=self.calls[at].digest, **{name: changed[name] for name in shared})


BAD_RECEIPTS: list[tuple[str, Callable[[Given], None]]] = [
    ("unsupported_schema", lambda g: g.spoil_receipt(schema_version=1)),
    ("unsupported_schema", lambda g: g.spoil_receipt(schema_version=2.0)),
    ("unsupported_digest", lambda g: g.spoil_receipt(digest_version=3)),
    ("unsupported_extras_digest", lambda g: g.spoil_receipt(extras_digest_version=True)),
    ("rollout_failed", lambda g: g.spoil_receipt(failure_reason="")),
    ("capture_poisoned", lambda g: g.spoil_receipt(capture_poisoned=True)),
    ("capture_poisoned", lambda g: g.spoil_receipt(capture_poisoned=None)),
    ("empty_manifest", lambda g: g.spoil_receipt(manifest=[])),
    ("duplicate_manifest_row", lambda g: g.spoil_row(1, model_call_id="c1")),
    ("duplicate_staging_key", lambda g: g.spoil_row(1, staging_key="r1/c1")),
]
BAD_CALLS: list[tuple[str, Callable[[Given], None]]] = [
    ("row_count_mismatch", lambda g: g.calls.pop()),  # type: ignore[list-item, return-value]
    ("duplicate_snapshot", lambda g: g.spoil_call(1, model_call_id="c1")),
    ("snapshot_identity_mismatch", lambda g: g.spoil_call(1, model_call_id="c9")),
    ("snapshot_order_mismatch", lambda g: g.calls.reverse()),
    ("wrong_rollout", lambda g: g.spoil_call(1, rollout_id="r2")),
    ("wrong_parent_call_id", lambda g: g.spoil_call(1, parent_call_id="c0")),
    ("wrong_mode", lambda g: g.spoil_call(1, mode="text")),
    ("wrong_prev_len", lambda g: g.spoil_call(1, prev_len=4)),
    ("wrong_delta_len", lambda g: g.spoil_call(1, delta_len=3)),
    ("wrong_cum_len", lambda g: g.spoil_call(1, cum_len=6)),
    ("wrong_weight_version", lambda g: g.spoil_call(1, weight_version=5)),
    ("wrong_digest", lambda g: g.spoil_call(1, digest="a" * 64)),
    ("wrong_extras_digest", lambda g: g.spoil_call(1, extras_digest="a" * 64)),
    ("wrong_chain_hash", lambda g: g.spoil_call(1, chain_hash="a" * 64)),
    ("wrong_cumulative_hash", lambda g: g.spoil_call(1, cumulative_hash="a" * 64)),
    ("wrong_schema_version", lambda g: g.spoil_call(1, schema_version=1)),
    ("wrong_digest_version", lambda g: g.spoil_row(1, digest_version=1)),
    ("wrong_extras_digest_version", lambda g: g.spoil_call(1, extras_digest_version=2)),
    ("corrupt_digest", lambda g: g.spoil_call(1, generation_log_probs_delta=[0.0, -0.5])),
    ("corrupt_digest", lambda g: g.spoil_call(1, token_ids_delta=np.array([20, 22]))),
    ("invalid_snapshot", lambda g: g.spoil_call(1, token_mask_delta=[0.0, 0.5])),
    ("invalid_snapshot", lambda g: g.spoil_call(1, generation_log_probs_delta=None)),
    ("invalid_snapshot", lambda g: g.spoil_call(1, token_ids_delta=[20])),
]
BAD_CHAINS: list[tuple[str, Callable[[Given], None]]] = [
    ("missing_parent", lambda g: g.spoil_both(1, parent_call_id="c9")),
    ("parent_length_mismatch", lambda g: g.spoil_both(1, prev_len=4, cum_len=6)),
    ("missing_terminal", lambda g: g.spoil_receipt(terminal_model_call_id=None)),
    ("missing_terminal", lambda g: g.spoil_receipt(terminal_model_call_id="c9")),
    ("chain_hash_mismatch", lambda g: g.spoil_both(1, chain_hash="a" * 64)),
    (
        "invalid_mask_order",
        lambda g: g.spoil_both(1, token_mask_delta=[1.0, 0.0], generation_log_probs_delta=[-0.5, 0.0]),
    ),
    (
        "empty_generation",
        lambda g: g.spoil_both(1, token_mask_delta=[0.0, -0.0], generation_log_probs_delta=[0.0, 0.0]),
    ),
    ("cumulative_hash_mismatch", lambda g: g.spoil_both(2, cumulative_hash="a" * 64)),
]


@pytest.mark.parametrize(("code", "spoil"), BAD_RECEIPTS + BAD_CALLS + BAD_CHAINS)
def test_whatever_is_wrong_has_a_code(code: str, spoil: Callable[[Given], None]) -> None:
    given = Given()
    verify_and_linearize(given.receipt, given.calls)
    spoil(given)
    with pytest.raises(ReceiptVerificationError) as raised:
        verify_and_linearize(given.receipt, given.calls)
    assert raised.value.code == code == str(raised.value).split(":")[0]
    assert isinstance(raised.value, RebuildError) == (code in dict(BAD_CHAINS))


def test_the_codes_are_those_that_trainers_count() -> None:
    codes = {code for code, _ in BAD_RECEIPTS + BAD_CALLS + BAD_CHAINS}
    assert len(codes) == 35, "lineage_cycle is that of the graph alone"


@pytest.mark.parametrize(("code", "spoil"), BAD_CALLS)
def test_what_is_wrong_with_a_call_off_the_chain_fails_the_rollout(code: str, spoil: Callable[[Given], None]) -> None:
    given = Given()
    given.spoil_receipt(terminal_model_call_id="c1")
    assert verify_and_linearize(given.receipt, given.calls).model_call_ids == ("c1",)
    spoil(given)
    for function in (verify_and_linearize, linearize_all):
        with pytest.raises(ReceiptVerificationError, match=code):
            function(given.receipt, given.calls)


def test_an_error_names_the_call_and_both_values() -> None:
    given = Given()
    given.spoil_call(1, weight_version=5)
    with pytest.raises(ReceiptVerificationError) as raised:
        verify_and_linearize(given.receipt, given.calls)
    assert str(raised.value) == "wrong_weight_version: call 'c2' has weight_version 5, expected is 4"


@pytest.mark.parametrize("receipt", [None, {}, three_calls().rows[0]])
def test_another_receipt_is_a_type_error(receipt: Any) -> None:
    with pytest.raises(TypeError, match="the receipt is a RolloutReceipt"):
        verify_and_linearize(receipt, [])


def test_another_snapshot_is_a_type_error() -> None:
    given = Given()
    calls: list[Any] = [*given.calls[:2], given.calls[2].model_dump()]
    with pytest.raises(TypeError, match="a StagedCallBaseSnapshot is needed, not dict"):
        verify_and_linearize(given.receipt, calls)


@pytest.mark.parametrize("row", [{"model_call_id": "c2"}, None, "c2"])
def test_another_row_is_a_type_error(row: Any) -> None:
    given = Given()
    given.spoil_receipt(manifest=[given.receipt.manifest[0], row, given.receipt.manifest[2]])
    with pytest.raises(TypeError, match="a CallRecord is needed, not "):
        verify_and_linearize(given.receipt, given.calls)


@pytest.mark.parametrize("name", ["rollout_id", "digest", "token_mask_delta", "weight_version"])
def test_a_snapshot_that_lacks_a_member_is_a_type_error(name: str) -> None:
    given = Given()
    del given.calls[1].__dict__[name]
    with pytest.raises(TypeError, match=f"a StagedCallBaseSnapshot lacks {name}"):
        verify_and_linearize(given.receipt, given.calls)


def test_a_row_holds_arrays_and_what_each_call_gave() -> None:
    row = verify_and_linearize(Given().receipt, Given().calls)
    assert row.token_ids == [10, 11, 12, 20, 21, 30]
    assert row.token_mask == [0, 0, 1, 0, 1, 1]
    assert row.logprobs == [0, 0, -0.25, 0, -0.25, -0.25]
    assert [column.array.dtype for column in (row.token_ids, row.token_mask, row.logprobs)] == [
        np.uint32,
        np.bool_,
        np.float32,
    ]
    assert not row.token_ids.array.flags.writeable
    assert row.link_spans == (("c1", 2, 1), ("c2", 1, 1), ("c3", 0, 1))
    assert row.prompt_len == 2
    assert [span.end - span.start for span in row.weight_version_spans] == [3, 2, 1]
    assert row.extras_commitments[1].extras_digest == digests.compute_extras_digest({"routed": 1})


def test_wide_ids_and_exact_log_probs_of_one_call_widen_the_row() -> None:
    rollout = StagedRollout()
    rollout.add("c1", [10], [2**63])
    rollout.add("c2", [20], [21], parent="c1")
    given = rollout.snapshots()
    given[1] = given[1].model_copy(update={"generation_log_probs_delta": [0.0, -0.1]})
    given[1] = given[1].model_copy(update={"digest": given[1].compute_digest()})
    rows = [rollout.rows[0], rollout.rows[1].model_copy(update={"digest": given[1].digest})]
    row = verify_and_linearize(rollout.receipt("c2", manifest=rows), given)
    assert row.token_ids == [10, 2**63, 20, 21]
    assert row.logprobs == [0.0, -0.25, 0.0, -0.1]


def test_linearize_needs_no_receipt() -> None:
    rollout = three_calls()
    assert linearize("r1", rollout.snapshots(), rollout.rows, terminal_hint="c2").call_ids == ("c1", "c2")
    with pytest.raises(ReceiptVerificationError, match="missing_terminal: nothing tells"):
        linearize("r1", rollout.snapshots(), rollout.rows, terminal_hint=None)
    with pytest.raises(ValidationError, match="'c9' is not in the manifest"):
        linearize("r1", rollout.snapshots(), rollout.rows, terminal_hint="c9")


def test_secondary_chains_are_rows_of_their_own_in_the_order_of_admission() -> None:
    rollout = three_calls()
    rollout.add("late", [40], [41], admitted_at=9.0)
    rollout.add("late2", [42], [43], parent="late")
    rollout.add("early", [50], [51], admitted_at=2.5)
    rollout.add("early2", [52], [53], parent="early")
    rollout.add("untimed", [60], [61])
    rollout.add("untimed2", [62], [63], parent="untimed")
    rows = linearize_all(rollout.receipt("c3"), rollout.snapshots())
    assert rows.main == verify_and_linearize(rollout.receipt("c3"), rollout.snapshots())
    assert [row.model_call_ids for row in rows.secondary] == [
        ("early", "early2"),
        ("late", "late2"),
        ("untimed", "untimed2"),
    ]
    assert rows.secondary[0].token_ids == [50, 51, 52, 53]
    assert rows.skipped == ()


def test_a_secondary_chain_fails_alone() -> None:
    rollout = three_calls()
    rollout.add("alone", [40], [41], admitted_at=1.0)
    rollout.add("forked", [50], [51], admitted_at=2.0)
    rollout.add("left", [52], [53], parent="forked")
    rollout.add("right", [52], [54], parent="forked")
    rollout.add("broken", [60], [61], admitted_at=3.0)
    rollout.add("broken2", [62], [63], parent="broken", chain_hash_of="c1")
    rollout.add("silent", [70], [], admitted_at=4.0)
    rollout.add("silent2", [72], [73], parent="silent")
    rollout.add("good", [80], [81], admitted_at=5.0)
    rollout.add("good2", [82], [83], parent="good")
    rows = linearize_all(rollout.receipt("c3"), rollout.snapshots())
    assert [row.model_call_ids for row in rows.secondary] == [("good", "good2")]
    assert [(skipped.call_id, skipped.code) for skipped in rows.skipped] == [
        ("alone", "abandoned_root"),
        ("forked", "ambiguous_leaf"),
        ("broken", "chain_hash_mismatch"),
        ("silent", "empty_generation"),
    ]
    assert "'broken2' names" in rows.skipped[2].detail


def test_dead_branches_of_the_main_chain_are_no_rows() -> None:
    rollout = three_calls()
    rollout.add("dead", [20], [99], parent="c1")
    rows = linearize_all(rollout.receipt("c3"), rollout.snapshots())
    assert (rows.secondary, rows.skipped) == ((), ())


def test_a_broken_main_chain_fails_the_rollout() -> None:
    rollout = three_calls()
    rollout.add("c4", [40], [41], parent="c3", chain_hash_of="c1")
    with pytest.raises(RebuildError, match="chain_hash_mismatch"):
        linearize_all(rollout.receipt("c4"), rollout.snapshots())


def test_each_hash_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One digest a call, one chain hash a call of the chain, one hash of the row: nothing grows with depth."""
    rollout = StagedRollout()
    parent = None
    for at in range(50):
        rollout.add(f"c{at}", [at], [at + 1], parent=parent)
        parent = f"c{at}"
    rollout.add("dead", [1], [2], parent="c10")
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., str]) -> Callable[..., str]:
        def call(*args: Any, **kwargs: Any) -> str:
            counted[name] += 1
            return function(*args, **kwargs)

        return call

    for module, name in (
        (records, "compute_staging_digest"),
        (linearized, "compute_chain_hash"),
        (linearized, "compute_prefix_hash"),
    ):
        monkeypatch.setattr(module, name, counting(name, getattr(digests, name)))
    verify.verify_and_linearize(rollout.receipt("c49"), rollout.snapshots())
    assert counted == {"compute_staging_digest": 51, "compute_chain_hash": 50, "compute_prefix_hash": 1}
