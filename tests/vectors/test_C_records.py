"""Records of staging (C20-C79): what they accept, what they refuse, and how they stand in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from gym_ray.testing.spelled_values import as_array, spelled
from gym_ray.token_id_capture.staging import ledger_records, records
from gym_ray.token_id_capture.staging.records import default_staging_key

COLUMNS = ("required_prefix_token_ids", "token_ids_delta", "token_mask_delta", "generation_log_probs_delta")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    document = json.loads((metafunc.config.getoption("--vectors") / "C_records.json").read_text("utf-8"))
    if "key" in metafunc.fixturenames:
        metafunc.parametrize("key", document["staging_key"], ids=[case["id"] for case in document["staging_key"]])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["list", "tuple", "array", "float32"])


def in_form(values: Any, form: str) -> Any:
    if form == "tuple" and isinstance(values, list):
        return tuple(values)
    array = as_array(values) if form in ("array", "float32") else None
    if array is None:
        return values
    return array.astype(np.float32) if form == "float32" and array.dtype.kind == "f" else array


def as_held(expected: dict[str, Any], form: str) -> dict[str, Any]:
    """The record in JSON: log probabilities that came as an array are those of float32."""
    name = "generation_log_probs_delta"
    if name not in expected or form not in ("array", "float32"):
        return expected
    return {**expected, name: np.array(expected[name], np.float32).tolist()}


def model_of(case: dict[str, Any]) -> type[BaseModel]:
    found: type[BaseModel] = getattr(records, case["model"], None) or getattr(ledger_records, case["model"])
    return found


def changed(case: dict[str, Any], departures: dict[str, Any]) -> str:
    """The member of an admission that is refused by rule where the peer accepts it, or empty."""
    given = case["input"]
    if case["model"] != "CaptureAdmission" or "error" in case or not given.get("staging_chain"):
        return ""
    if "" in given["staging_chain"]:
        return str(departures["keys_of_a_chain_are_not_empty"]["member"])
    short = 0 < len(given.get("required_prefix_token_ids", ())) < given["prev_len"]
    return str(departures["a_short_prefix_is_no_prefix"]["member"]) if short else ""


def test_record(case: dict[str, Any], departures: dict[str, Any], form: str) -> None:
    given = {name: in_form(value, form) if name in COLUMNS else value for name, value in spelled(case["input"]).items()}
    member = changed(case, departures)
    if "error" in case or member:
        assert case.get("error", "ValidationError") == "ValidationError"
        with pytest.raises(ValidationError, match=member or "."):
            model_of(case)(**given)
        return
    record = model_of(case)(**given)
    dumped = json.loads(record.model_dump_json())
    assert dumped == as_held(case["ok"], form)
    assert list(dumped) == list(case["ok"])
    assert json.loads(json.dumps(record.model_dump())) == dumped
    assert (
        model_of(case).model_validate_json(record.model_dump_json()) == record == model_of(case)(**record.model_dump())
    )


def test_staging_key(key: dict[str, Any]) -> None:
    if "error" in key:
        with pytest.raises(ValueError, match="two ids"):
            default_staging_key(key["rollout_id"], key["model_call_id"])
        return
    assert default_staging_key(key["rollout_id"], key["model_call_id"]) == key["ok"]


def test_a_snapshot_knows_its_key(case: dict[str, Any]) -> None:
    if "ok" in case and "token_ids_delta" in case["ok"]:
        record = model_of(case)(**spelled(case["input"]))
        assert record.staging_key == f"{record.rollout_id}/{record.model_call_id}"  # type: ignore[attr-defined]
        assert "staging_key" not in record.model_dump()
