"""What a ledger keeps and a trainer gets: which states a receipt can be in, and what rows refuse."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging.ledger_records import (
    CallRecord,
    CaptureLedgerCommit,
    RolloutManifest,
    RolloutReceipt,
    RolloutRemoval,
)


@pytest.fixture
def rollout() -> StagedRollout:
    made = StagedRollout()
    made.add("c1", [1], [2])
    made.add("c2", [3], [4], parent="c1")
    return made


@pytest.mark.parametrize(
    ("poisoned", "failure", "terminal", "selection"),
    list(
        product([False, True], [None, "", "x"], [None, "c2"], [None, "declared", "response_id", "content", "heuristic"])
    ),
)
def test_a_receipt_is_in_one_of_four_states(
    rollout: StagedRollout, poisoned: bool, failure: str | None, terminal: str | None, selection: Any
) -> None:
    trainable = not poisoned and failure is None and terminal is not None and selection is not None
    attributed_and_poisoned = poisoned and terminal is not None and selection is not None
    selection_failed = poisoned and terminal is None and selection is not None
    nothing_ran = poisoned and failure is not None and terminal is None and selection is None
    fields: dict[str, Any] = {
        "rollout_id": "r1",
        "manifest": rollout.rows,
        "capture_poisoned": poisoned,
        "failure_reason": failure,
        "terminal_model_call_id": terminal,
        "terminal_selection": selection,
    }
    if trainable or attributed_and_poisoned or selection_failed or nothing_ran:
        receipt = RolloutReceipt(**fields)
        assert RolloutReceipt.model_validate_json(receipt.model_dump_json()) == receipt
        return
    with pytest.raises(ValidationError, match=r"receipt|poisoned|terminal_selection"):
        RolloutReceipt(**fields)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"terminal_model_call_id": "c9"}, "'c9' is not in the manifest"),
        ({"reward": float("inf")}, "reward"),
        ({"terminal_selection": "explicit"}, "terminal_selection"),
        ({"note": 1}, "Extra inputs"),
    ],
)
def test_a_receipt_that_is_wrong_is_named(rollout: StagedRollout, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        RolloutReceipt(**{**rollout.receipt("c2").model_dump(), **changed})


def test_a_call_stands_once_in_a_receipt_and_may_stand_twice_in_a_manifest(rollout: StagedRollout) -> None:
    rows = [*rollout.rows, rollout.rows[0]]
    assert len(RolloutManifest(rollout_id="r1", records=rows).records) == 3
    with pytest.raises(ValidationError, match="call 'c1' stands twice"):
        RolloutReceipt(rollout_id="r1", manifest=rows, terminal_model_call_id="c1", terminal_selection="content")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mode": "text"}, "that continues 'c1' is 'token_in'"),
        ({"prev_len": 0, "cum_len": 2}, "prev_len is 0"),
        ({"parent_call_id": None}, "without a parent is 'text'"),
        ({"delta_len": 0, "cum_len": 2}, "at least one token"),
        ({"cum_len": 9}, "prev_len \\+ delta_len is 4"),
        ({"admitted_at": True}, "admitted_at"),
        ({"admitted_at": float("nan")}, "admitted_at"),
        ({"rollout_id": "r1"}, "Extra inputs"),
        ({"response_id": None}, "response_id"),
    ],
)
def test_a_row_that_is_wrong_is_named(rollout: StagedRollout, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        CallRecord(**{**rollout.rows[1].model_dump(), **changed})


def test_a_root_row_says_that_it_is_one(rollout: StagedRollout) -> None:
    fields = rollout.rows[0].model_dump(exclude={"mode"})
    with pytest.raises(ValidationError, match="'text', not 'token_in'"):
        CallRecord(**fields)


def test_lists_of_different_records_are_their_own(rollout: StagedRollout) -> None:
    first, second = RolloutManifest(rollout_id="r1"), RolloutManifest(rollout_id="r2")
    assert first.records is not second.records
    assert RolloutRemoval().model_dump() == {"schema_version": 2, "removed": [], "absent": []}
    commit = CaptureLedgerCommit(rollout_id="r1", record=rollout.rows[0], request_items=[{"a": 1}], response_items=[])
    assert tuple(commit.staging_chain) == ()
    assert pickle.loads(pickle.dumps(commit)) == commit
    assert CaptureLedgerCommit.model_validate_json(commit.model_dump_json()).record == rollout.rows[0]
