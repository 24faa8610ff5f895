"""Records check themselves, share their arrays, and survive every way between processes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.records import (
    CaptureAdmission,
    CommitCoords,
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StagedCallSnapshot,
    StageResult,
)

COLUMNS = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")


@pytest.fixture
def record() -> StagedCallRecord:
    return StagedRollout().add("c1", [10, 11], [12], extras={"routed": [1, 2]})


def child(**changed: Any) -> dict[str, Any]:
    admission = {"parent_call_id": "c1", "prev_len": 3, "mode": "token_in", "parent_chain_hash": "a" * 64}
    return {"rollout_id": "r1", "model_call_id": "c2", **admission, **changed}


def test_a_trusted_record_is_the_validated_one(record: StagedCallRecord) -> None:
    assert StagedCallRecord(**record.model_dump()) == record
    assert StagedCallRecord.model_validate_json(record.model_dump_json()) == record
    assert record.compute_digest() == record.digest
    assert record.staging_key == "r1/c1"


def test_a_trusted_record_shares_its_arrays_and_hashes_nothing(record: StagedCallRecord) -> None:
    given = {name: getattr(record, name) for name in StagedCallRecord.model_fields if not name.endswith("version")}
    given |= {name: given[name].array for name in COLUMNS} | {"weight_version": 3, "digest": "not looked at"}
    trusted = StagedCallRecord.trusted(**given)
    assert trusted.digest == "not looked at"
    assert all(getattr(trusted, name).array is given[name] for name in COLUMNS)


def test_columns_are_lists_in_json_and_in_a_dump(record: StagedCallRecord) -> None:
    expected = {"token_ids_delta": [10, 11, 12], "token_mask_delta": [0.0, 0.0, 1.0]}
    dumped = json.loads(record.model_dump_json())
    assert {name: dumped[name] for name in expected} == expected
    assert {name: type(value) for name, value in record.model_dump(include=set(COLUMNS)).items()} == dict.fromkeys(
        COLUMNS, list
    )
    assert list(dumped)[:3] == ["schema_version", "digest_version", "extras_digest_version"]
    schema = StagedCallRecord.model_json_schema()["properties"]["token_ids_delta"]
    assert schema["items"] == {"type": "integer"}


def test_a_record_is_pickled_with_its_arrays(record: StagedCallRecord) -> None:
    copied = pickle.loads(pickle.dumps(record))
    assert copied == record
    assert [getattr(copied, name).array.dtype for name in COLUMNS] == [np.uint32, np.bool_, np.float32]


def test_a_snapshot_is_a_record_read_back(record: StagedCallRecord) -> None:
    snapshot = StagedCallSnapshot(**record.model_dump())
    assert snapshot.extras == {"routed": [1, 2]}
    without = record.model_dump(exclude={"extras"})
    assert isinstance(snapshot, StagedCallBaseSnapshot)
    assert StagedCallBaseSnapshot(**without).digest == record.digest


def test_nothing_of_a_record_can_be_set(record: StagedCallRecord) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        record.weight_version = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("token_ids_delta", [10, 11, 13], "the values give"),
        ("weight_version", 4, "the values give"),
        ("weight_version", 2**64, "weight_version"),
        ("generation_log_probs_delta", [0.0, -0.5, -0.25], "belongs to a token that was not generated"),
        ("token_mask_delta", [0.0, 1.0], "columns differ in length"),
        ("token_ids_delta", np.array([10, 11, 2**63], np.uint64), "the values give"),
        ("token_ids_delta", np.array([[10, 11, 12]]), "token_ids_delta"),
        ("token_mask_delta", np.array([0, 0, 0.5]), "mask value 0.5 at index 2"),
        ("cum_len", 4, "cum_len is 4, and prev_len"),
        ("delta_len", 2, "cum_len is 3"),
        ("mode", "token_in", "mode of a call without a parent is 'text'"),
        ("parent_call_id", "c0", "mode of a call that continues 'c0' is 'token_in'"),
        ("extras", {"routed": [2, 1]}, "the extras give"),
        ("extras", None, "the extras give a1edc33c"),
        ("extras", {"routed": (1, 2)}, r"extras\['routed'\]: tuple is no type of JSON"),
        ("extras", {"routed": float("nan")}, "nan is not finite"),
        ("chain_hash", "A" * 64, "chain_hash"),
        ("chain_hash", "a" * 64 + "\n", "chain_hash"),
        ("attachments", {}, "Extra inputs are not permitted"),
    ],
)
def test_a_contradiction_is_named(record: StagedCallRecord, name: str, value: Any, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        StagedCallRecord(**{**record.model_dump(), name: value})


def test_extras_of_a_record_are_its_own() -> None:
    extras: dict[str, Any] = {"a": [1, {"b": 2}]}
    record = StagedRollout().add("c1", [1], [2], extras=extras)
    copied = StagedCallRecord(**{**record.model_dump(), "extras": extras})
    extras["c"] = 3
    extras["a"].append(4)
    extras["a"][1]["b"] = 5
    assert record.extras == copied.extras == {"a": [1, {"b": 2}]}


def test_an_admission_takes_its_prefix_as_an_array() -> None:
    admission = CaptureAdmission(**child(required_prefix_token_ids=np.array([10, 11, 12])))
    assert admission.required_prefix_token_ids == [10, 11, 12]
    assert admission == CaptureAdmission.model_validate_json(admission.model_dump_json())
    assert isinstance(CaptureAdmission(**child(staging_chain=["k"])).required_prefix_token_ids, Column)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"required_prefix_token_ids": [10, 11]}, "needs as many prefix ids, not 2"),
        ({"required_prefix_token_ids": [10, 11], "staging_chain": ["k"]}, "2 prefix ids cannot be the prefix"),
        ({"staging_chain": ["k", ""]}, "staging_chain.1"),
        ({"staging_chain": ["k"], "parent_chain_hash": None}, "needs its parent_chain_hash"),
        ({"staging_chain": ["k"], "prev_len": 0}, "prev_len is 0, although the call continues 'c1'"),
        ({"parent_call_id": None, "mode": "text"}, "prev_len is 3"),
        ({"parent_call_id": None, "mode": "text", "prev_len": 0}, "no parent_chain_hash"),
    ],
)
def test_an_admission_that_grants_nothing_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        CaptureAdmission(**child(**changed))


def test_inline_ids_may_stand_beside_a_chain() -> None:
    for ids in ([], [1, 2, 3], [1, 2, 3, 4]):
        assert CaptureAdmission(**child(staging_chain=["k"], required_prefix_token_ids=ids)).prev_len == 3


def test_coordinates_say_what_is_missing_or_too_much(record: StagedCallRecord) -> None:
    names = CommitCoords.model_fields.keys() & StagedCallRecord.model_fields.keys()
    staged = {**record.model_dump(include=set(names)), "staging_key": "k"}
    assert CommitCoords(**staged).disposition == "staged"
    with pytest.raises(ValidationError, match="needs digest, staging_key"):
        CommitCoords(**{**staged, "digest": None, "staging_key": None})
    with pytest.raises(ValidationError, match="has no chain_hash, cumulative_hash"):
        CommitCoords(
            **{**staged, "disposition": "capture_failed", "digest": None, "staging_key": None, "extras_digest": None}
        )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"ok": True}, "needs its staging_key"),
        ({"ok": False}, "needs its error"),
        ({"ok": False, "staging_key": "k", "error": ""}, "needs its error"),
    ],
)
def test_a_stage_result_says_what_it_lacks(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        StageResult(**fields)


def test_a_key_beside_a_failure_is_let_be() -> None:
    assert StageResult(ok=False, staging_key="k", error="disk full").error == "disk full"
