"""From receipt and snapshots to a row (C150-C169): every code, with the columns as lists and as arrays."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.testing.spelled_values import as_array, spelled
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.manifest_graph import check_manifest_graph
from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot, StagedCallRecord
from gym_ray.token_id_capture.staging.verify import (
    LinearizedRow,
    RebuildError,
    ReceiptVerificationError,
    linearize,
    verify_and_linearize,
)

COLUMNS = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
ERRORS = {
    "ReceiptVerificationError": ReceiptVerificationError,
    "RebuildError": RebuildError,
    "TypeError": TypeError,
    "ValidationError": ValidationError,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "linear" in metafunc.fixturenames:
        cases = json.loads((metafunc.config.getoption("--vectors") / "C_verify.json").read_text("utf-8"))["linearize"]
        metafunc.parametrize("linear", cases, ids=[case["id"] for case in cases])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["list", "array"])


def in_form(fields: dict[str, Any], form: str) -> dict[str, Any]:
    arrays = {name: as_array(fields[name]) for name in COLUMNS} if form == "array" else {}
    return {**fields, **{name: array for name, array in arrays.items() if array is not None}}


def snapshot(fields: dict[str, Any], form: str, *, unvalidated: bool) -> StagedCallBaseSnapshot:
    kind = StagedCallRecord if "extras" in fields else StagedCallBaseSnapshot
    return kind.model_construct(**in_form(fields, form)) if unvalidated else kind(**in_form(fields, form))


def receipt(fields: dict[str, Any], *, unvalidated: bool) -> RolloutReceipt:
    if not unvalidated:
        return RolloutReceipt(**fields)
    rows = [CallRecord.model_construct(**row) for row in fields["manifest"]]
    return RolloutReceipt.model_construct(**{**fields, "manifest": rows})


def of_row(row: LinearizedRow) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in ("token_ids", "token_mask", "logprobs")}
    plain = {name: column.tolist() for name, column in columns.items()}
    return json.loads(json.dumps({**asdict(row), **plain, "call_ids": row.call_ids}))  # type: ignore[no-any-return]


@pytest.fixture
def good(request: pytest.FixtureRequest) -> dict[str, Any]:
    document = json.loads((request.config.getoption("--vectors") / "C_verify.json").read_text("utf-8"))
    found: dict[str, Any] = next(case for case in document["cases"] if case["id"] == "verify/three_call_chain")
    return found


def test_verify(case: dict[str, Any], form: str, good: dict[str, Any]) -> None:
    source = case if "receipt" in case else good
    unvalidated = case.get("unvalidated", False)
    given: Any = receipt(spelled(source["receipt"]), unvalidated=unvalidated)
    calls: list[Any] = [snapshot(fields, form, unvalidated=unvalidated) for fields in spelled(source["snapshots"])]
    if case["id"] == "verify/type/receipt_dict":
        given = source["receipt"]
    if case["id"] == "verify/type/snapshot_dict":
        calls = source["snapshots"]
    if "error" not in case:
        expected = {**case["ok"]}
        if form == "array":
            expected["logprobs"] = np.array(expected["logprobs"], np.float32).tolist()
        assert of_row(verify_and_linearize(given, calls)) == expected
        return
    with pytest.raises(ERRORS[case["error"]]) as raised:
        verify_and_linearize(given, calls)
    assert type(raised.value) is ERRORS[case["error"]]
    if "code" in case:
        assert raised.value.code == case["code"] == str(raised.value).split(":")[0]  # type: ignore[attr-defined]


def _outcome(linear: dict[str, Any], good: dict[str, Any]) -> object:
    rows = [CallRecord(**row) for row in good["receipt"]["manifest"]]
    calls = [snapshot(fields, "list", unvalidated=False) for fields in good["snapshots"]]
    if linear["id"] == "graph/lineage_cycle_code":
        bypassed = {"prev_len": 4, "cum_len": 4, "delta_len": 0}
        x = rows[1].model_copy(update={"model_call_id": "x", "parent_call_id": "y", **bypassed})
        y = rows[1].model_copy(update={"model_call_id": "y", "parent_call_id": "x", **bypassed})
        return check_manifest_graph([x, y])
    if linear["id"] == "linearize/empty_manifest":
        rows, calls = [], []
    hint = None if linear["id"] == "linearize/no_hint" else "c3"
    return list(linearize("r1", calls, rows, terminal_hint=hint).model_call_ids)


def test_linearize(linear: dict[str, Any], good: dict[str, Any]) -> None:
    if "ok" in linear:
        assert _outcome(linear, good) == linear["ok"]
        return
    with pytest.raises(ERRORS[linear["error"]]) as raised:
        _outcome(linear, good)
    assert type(raised.value) is ERRORS[linear["error"]]
    assert getattr(raised.value, "code", None) == linear.get("code")
