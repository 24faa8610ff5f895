"""Token records (B3-B8, B13-B16): from lists, from arrays, and as the packed record."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import (
    ParentResolutionStatus,
    TokenEntry,
    cumulative_tokens,
    stamp_lineage,
)

SECTIONS = {
    "field": "fields",
    "construct": "construct",
    "non_finite": "non_finite_log_probs",
    "stamp": "stamp_lineage",
    "cumulative": "cumulative_tokens",
}
ARRAYS = {"prompt_token_ids": np.int64, "generation_token_ids": np.int64, "generation_log_probs": np.float64}
MESSAGES = {
    "schema_too_new": "upgrade",
    "schema_too_old": "below the supported minimum 1",
    "generation_arrays_length_mismatch": r"has \d tokens, generation_log_probs \d values",
    "token_item_index_out_of_range": r"token_item_index -?\d is outside the \d output items",
    "resolved_needs_parent_id": "'resolved' needs a parent_call_id",
    "root_or_unresolved_with_parent_id": "must not have a parent_call_id",
    "delta_needs_resolved_parent": "prompt_is_delta needs",
    "bad_enum": "parent_resolution",
    "missing_field": "Field required",
    "not_an_integer": "prompt_token_ids",
    "not_a_number": "generation_log_probs",
    "not_an_object": "output_items",
    "not_a_string": "valid string",
    "cumulative_of_delta": "delta prompt",
    "cumulative_mismatch": "differ",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / "B_records.json").read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[case.get("name", case.get("log_prob")) for case in cases])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["list", "tuple", "array"])


def in_form(record: dict[str, Any], form: str) -> dict[str, Any]:
    """The record with its plain number lists as tuples or arrays; unusual spellings stay lists."""
    made = dict(record)
    for name, dtype in ARRAYS.items():
        values = made.get(name)
        plain = isinstance(values, list) and all(type(value) in (int, float) for value in values)
        if plain and np.array_equal(np.array(values, dtype), values):
            made[name] = tuple(values) if form == "tuple" else np.array(values, dtype) if form == "array" else values
    return made


def test_field(field: dict[str, Any]) -> None:
    declared = TokenEntry.model_fields[field["name"]]
    assert declared.is_required() == field["required"]
    if not field["required"]:
        assert declared.get_default(call_default_factory=True) == field["default"]


def test_statuses(document: dict[str, Any]) -> None:
    assert {status.value for status in ParentResolutionStatus} >= set(document["statuses"])
    assert [f"{status}" for status in ParentResolutionStatus] == ["root", "resolved", "unresolved"]
    assert ParentResolutionStatus.ROOT == "root"


def test_construct(construct: dict[str, Any], form: str) -> None:
    record = in_form(construct["input"], form)
    if "error" in construct:
        with pytest.raises(ValidationError, match=MESSAGES[construct["error"]["kind"]]):
            TokenEntry(**record)
        return
    entry = TokenEntry(**record)
    dumped = json.loads(entry.model_dump_json())
    assert {name: dumped[name] for name in construct["ok"]} == construct["ok"]
    assert {name: value for name, value in dumped.items() if name not in construct["ok"]} == {
        name: TokenEntry.model_fields[name].get_default(call_default_factory=True)
        for name in dumped.keys() - construct["ok"].keys()
    }


def test_construct_packed(construct: dict[str, Any]) -> None:
    if "error" in construct:
        with pytest.raises(ValidationError, match=MESSAGES[construct["error"]["kind"]]):
            PackedEntry.of_json(construct["input"])
        return
    entry = TokenEntry(**construct["input"])
    if min([0, *entry.prompt_token_ids, *entry.generation_token_ids]) < 0:
        with pytest.raises(ValueError, match="is negative"):
            PackedEntry.of_json(construct["input"])
        return
    assert PackedEntry.of_json(construct["input"]).entry() == entry == PackedEntry.of_entry(entry).entry()


def test_reload(document: dict[str, Any]) -> None:
    assert [case["name"] for case in document["reload"]] == ["extra_survives_json"]
    [case] = document["reload"]
    record = {"rollout_id": "r0", "model_call_id": "c0", "site": case["value"], **{name: [] for name in ARRAYS}}
    for again in (
        TokenEntry.model_validate_json(TokenEntry(**record).model_dump_json()),
        PackedEntry.of_json(json.loads(TokenEntry(**record).model_dump_json())).entry(),
    ):
        assert again.model_extra == {"site": case["value"]}


def test_non_finite_log_probs(non_finite: dict[str, Any]) -> None:
    record = {"rollout_id": "r0", "model_call_id": "c0", "prompt_token_ids": [1], "generation_token_ids": [2]}
    entry = TokenEntry(**record, generation_log_probs=[float(non_finite["log_prob"])])
    assert non_finite["constructs"]
    text = entry.model_dump_json()
    assert json.loads(text)["generation_log_probs"] == non_finite["json_of_log_probs"]
    with pytest.raises(ValidationError, match=MESSAGES[non_finite["reload"]["error"]["kind"]]):
        TokenEntry.model_validate_json(text)
    with pytest.raises(ValueError, match=r"log prob .* at index 0 is not finite"):
        PackedEntry.of_entry(entry)


def test_stamp_lineage(stamp: dict[str, Any], form: str) -> None:
    entry = TokenEntry(**in_form(stamp["entry"], form))
    before = entry.model_copy(deep=True)
    cumulative = stamp["cumulative"]
    if cumulative is not None and form != "list":
        cumulative = tuple(cumulative) if form == "tuple" else np.array(cumulative, np.uint32)
    status = None if stamp["parent_resolution"] is None else ParentResolutionStatus(stamp["parent_resolution"])
    if "error" in stamp:
        with pytest.raises(ValueError, match=MESSAGES[stamp["error"]["kind"]]):
            stamp_lineage(entry, stamp["parent_call_id"], status, cumulative)
        assert entry == before
        return
    returned = stamp_lineage(entry, stamp["parent_call_id"], parent_resolution=status, cumulative=cumulative)
    assert returned is entry
    dumped = entry.model_dump(mode="json")
    assert {name: dumped[name] for name in stamp["ok"]} == stamp["ok"]
    assert {**dumped, **dict.fromkeys(stamp["ok"])} == {**before.model_dump(mode="json"), **dict.fromkeys(stamp["ok"])}


def test_cumulative_tokens(cumulative: dict[str, Any], form: str) -> None:
    entry = TokenEntry(**in_form(cumulative["entry"], form))
    if "error" in cumulative:
        with pytest.raises(ValueError, match=f"'{entry.model_call_id}' holds a delta prompt"):
            cumulative_tokens(entry)
        return
    whole = cumulative_tokens(entry)
    assert whole == cumulative["ok"]
    whole.append(99)
    assert cumulative_tokens(entry) == cumulative["ok"]
