from __future__ import annotations

import inspect
import pickle
from array import array
from enum import Enum
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.token_id_capture import records
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, cumulative_tokens, stamp_lineage

BASE: dict[str, Any] = {
    "rollout_id": "r0",
    "model_call_id": "c0",
    "prompt_token_ids": [5, 6],
    "generation_token_ids": [7],
    "generation_log_probs": [-0.5],
}


# The contract's page of this module, name by name.
FIELDS: dict[str, tuple[str, Any]] = {
    "schema_version": ("int", 1),
    "rollout_id": ("str", ...),
    "model_call_id": ("str", ...),
    "model": ("str", ""),
    "prompt_token_ids": ("list[int]", ...),
    "generation_token_ids": ("list[int]", ...),
    "generation_log_probs": ("list[float]", ...),
    "routed_experts": ("Any | None", None),
    "output_items": ("list[dict]", []),
    "token_item_index": ("int | None", None),
    "response_id": ("str | None", None),
    "created_at": ("float", 0.0),
    "parent_call_id": ("str | None", None),
    "cum_len": ("int | None", None),
    "digest": ("str | None", None),
    "parent_resolution": ("ParentResolutionStatus | None", None),
    "parent_resolution_reason": ("str", ""),
    "continuation_fingerprint": ("str", ""),
    "continuation_context_len": ("int", 0),
    "continuation_context_digest": ("str", ""),
    "fingerprint_version": ("int | None", None),
    "prompt_is_delta": ("bool", False),
    "prefix_requested": ("bool", False),
    "prefix_supplied": ("bool", False),
}
TYPES: dict[str, Any] = {
    "Any | None": Any | None,
    "ParentResolutionStatus | None": ParentResolutionStatus | None,
    "bool": bool,
    "float": float,
    "int": int,
    "int | None": int | None,
    "list[dict]": list[dict[Any, Any]],
    "list[float]": list[float],
    "list[int]": list[int],
    "str": str,
    "str | None": str | None,
}
SIGNATURES = {
    "compute_digest": {"token_ids": ...},
    "cumulative_tokens": {"entry": ...},
    "encode_token_ids": {"token_ids": ...},
    "extract_token_fields": {"response_json": ...},
    "response_to_output_items": {"payload": ...},
    "stamp_lineage": {"entry": ..., "parent_call_id": ..., "parent_resolution": None, "cumulative": None},
    "strip_token_fields": {"items": ...},
}
CONSTANTS = {
    "DIGEST_VERSION": 1,
    "TOKEN_ENTRY_MIN_SCHEMA_VERSION": 1,
    "TOKEN_ENTRY_RECORD_SCHEMA_VERSION": 1,
    "TOKEN_FIELDS": ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"),
    "_DIGEST_DOMAIN": b"nemo-gym-tokens",
    "_EMPTY_DIGEST": "2e222d36d0c6ae1db1ec18b3f96d9a46df5db61b40137bbfbac4cdf0acde9763",
    "UNRESOLVED_PARENT_REASON": "unresolved_parent",
    "UNCOMMITTED_CALL_REASON": "request_finished_without_staged_coordinates",
    "LEDGER_ROW_MISSING_RESPONSE_ID_REASON": "ledger_row_missing_response_id",
    "LEDGER_ROW_MISSING_CHAIN_HASH_REASON": "ledger_row_missing_chain_hash",
}


def test_every_constant_of_the_contract_has_its_value() -> None:
    assert {name: getattr(records, name) for name in CONSTANTS} == CONSTANTS
    assert {*CONSTANTS, *SIGNATURES, "ParentResolutionStatus", "TokenEntry"} <= set(records.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_function_of_the_contract_takes_its_arguments(name: str) -> None:
    taken = inspect.signature(getattr(records, name)).parameters
    assert {each.name: ... if each.default is each.empty else each.default for each in taken.values()} == (
        SIGNATURES[name]
    )
    assert {each.kind for each in taken.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_a_record_has_exactly_the_fields_of_the_contract() -> None:
    assert TokenEntry.model_config == {"extra": "allow"}
    assert callable(TokenEntry._refuse_a_newer_record)
    declared = TokenEntry.model_fields
    assert {
        name: ... if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in declared.items()
    } == {name: default for name, (_, default) in FIELDS.items()}
    assert {name: field.annotation for name, field in declared.items()} == {
        name: TYPES[kind] for name, (kind, _) in FIELDS.items()
    }


def test_statuses_are_an_enumeration_that_reads_as_text() -> None:
    assert issubclass(ParentResolutionStatus, Enum)
    assert {status.name: status.value for status in ParentResolutionStatus} == {
        "ROOT": "root",
        "RESOLVED": "resolved",
        "UNRESOLVED": "unresolved",
    }
    with pytest.raises(ValidationError, match="parent_resolution"):
        TokenEntry(**BASE, parent_resolution="ROOT")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"schema_version": 2, "generation_log_probs": []}, "schema version 2, this reader knows up to 1"),
        ({"schema_version": 0, "generation_log_probs": []}, "schema version 0, below the supported minimum 1"),
        ({"generation_log_probs": [], "token_item_index": 0}, "has 1 tokens, generation_log_probs 0 values"),
        ({"token_item_index": 0, "parent_resolution": "resolved"}, "token_item_index 0 is outside the 0 output items"),
        ({"parent_resolution": "resolved", "prompt_is_delta": True}, "'resolved' needs a parent_call_id"),
        ({"parent_resolution": "root", "parent_call_id": "", "prompt_is_delta": True}, "'root' must not have"),
        ({"parent_call_id": "p", "prompt_is_delta": True}, "prompt_is_delta needs"),
        ({"parent_resolution": "root", "prompt_is_delta": True}, "prompt_is_delta needs"),
    ],
)
def test_the_first_broken_rule_is_named(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TokenEntry(**{**BASE, **members})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_token_ids", np.array([1.0, 2.0])),
        ("prompt_token_ids", np.array([[1], [2]])),
        ("prompt_token_ids", np.array([True])),
        ("generation_token_ids", array("d", [1.0])),
        ("generation_log_probs", np.array([[0.5]])),
        ("generation_log_probs", np.array(["a"])),
    ],
)
def test_an_array_of_another_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{name}\n.*one-dimensional array of (integers|numbers), not"):
        TokenEntry(**{**BASE, name: value})


def test_arrays_and_buffers_become_lists() -> None:
    entry = TokenEntry(
        **{
            **BASE,
            "prompt_token_ids": memoryview(array("I", [5, 6])),
            "generation_token_ids": array("Q", [2**63]),
            "generation_log_probs": np.array([-0.5], np.float32),
        }
    )
    assert entry.prompt_token_ids == [5, 6]
    assert entry.generation_token_ids == [2**63]
    assert entry.generation_log_probs == [-0.5]
    assert type(entry.prompt_token_ids[0]) is int
    assert type(entry.generation_log_probs[0]) is float
    assert TokenEntry(**{**BASE, "generation_log_probs": memoryview(array("d", [-1.0]))}).generation_log_probs == [-1.0]


def test_an_assignment_is_not_checked_but_a_reload_is() -> None:
    entry = TokenEntry(**BASE)
    entry.schema_version = 9
    copied = entry.model_copy(update={"generation_token_ids": []})
    with pytest.raises(ValidationError, match="schema version 9"):
        TokenEntry.model_validate(copied.model_dump())


def test_records_travel_between_processes() -> None:
    entry = TokenEntry(**BASE, parent_resolution="root", site="lab")
    again = pickle.loads(pickle.dumps(entry))
    assert again == entry
    assert again.model_extra == {"site": "lab"}


def test_stamping_takes_both_spellings_of_its_arguments() -> None:
    positional = stamp_lineage(TokenEntry(**BASE), "p", ParentResolutionStatus.RESOLVED, [5, 6, 7])
    by_name = stamp_lineage(TokenEntry(**BASE), parent_call_id="p", parent_resolution="resolved")  # type: ignore[arg-type]
    assert positional == by_name
    assert positional.parent_resolution is ParentResolutionStatus.RESOLVED


@pytest.mark.parametrize(
    ("members", "arguments", "message"),
    [
        ({}, ("", ParentResolutionStatus.RESOLVED), "'resolved' needs a parent_call_id"),
        ({}, ("", ParentResolutionStatus.ROOT), "must not have a parent_call_id"),
        ({}, (None, None, [5, 6]), "differ from the record's prompt and generation"),
        ({}, (None, None, [5, 6, 8]), "differ from the record's prompt and generation"),
        ({}, (None, None, [5, 6, -7]), "token id -7 at index 2 is negative"),
        ({"prompt_token_ids": [-1]}, (None,), "token id -1 at index 0 is negative"),
        ({"prompt_token_ids": [2**64]}, (None,), "2\\*\\*64 or more"),
        (
            {"prompt_is_delta": True, "parent_call_id": "p", "parent_resolution": "resolved"},
            ("p", ParentResolutionStatus.RESOLVED),
            "'c0' holds a delta prompt",
        ),
    ],
)
def test_a_refused_stamp_leaves_the_record_as_it_was(
    members: dict[str, Any], arguments: tuple[Any, ...], message: str
) -> None:
    entry = TokenEntry(**{**BASE, **members})
    before = entry.model_copy(deep=True)
    with pytest.raises(ValueError, match=message):
        stamp_lineage(entry, *arguments)
    assert entry == before


def test_cumulative_tokens_are_the_callers_own() -> None:
    entry = TokenEntry(**BASE)
    whole = cumulative_tokens(entry)
    whole.clear()
    assert cumulative_tokens(entry) == [5, 6, 7]
