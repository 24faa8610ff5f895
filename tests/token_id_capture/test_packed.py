from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gym_ray.token_id_capture.extras import CallExtras
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

BASE: dict[str, Any] = {
    "rollout_id": "r0",
    "model_call_id": "c0",
    "prompt_token_ids": [5, 2**33],
    "generation_token_ids": [7],
    "generation_log_probs": [-0.1],
}
ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
PROPERTIES = [name for name in TokenEntry.model_fields if name != "schema_version"]

scalars: st.SearchStrategy[Any] = (
    st.sampled_from([None, True, False, 0, 1, 2, -1, 2**70, 1.0, 1.5, 0.0, "", "5", "x", "é", "root", "RESOLVED"])
    | st.sampled_from(["resolved", "unresolved", "\ud800", float("nan"), float("inf"), [], {}, [{}], [{"a": [1]}]])
    | st.sampled_from([["x"], [None], {"a": 1}, "true", "1.0", "1e2", b"b", (1,), "nan"])
)
numbers = st.sampled_from(
    [0, 1, -1, 7, 2**32, 2**64 - 1, 2**64, 1.0, 1.5, -0.25, -0.1, "5", "x", None, True, float("nan")]
)
number_lists = st.lists(numbers, max_size=3) | scalars
names = st.sampled_from([*TokenEntry.model_fields, "gym_ray", "site", "é", "\ud800"])


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A good record with a few members replaced by anything or left out."""
    record: dict[str, Any] = {**BASE, "output_items": [{"type": "message"}], "parent_call_id": "p"}
    for name in draw(st.lists(names, max_size=5)):
        record[name] = draw(number_lists if name in ARRAYS else scalars)
    for name in draw(st.lists(st.sampled_from(list(record)), max_size=1)):
        del record[name]
    return record


def validated(record: dict[str, Any]) -> tuple[TokenEntry | None, list[tuple[Any, ...]]]:
    try:
        return TokenEntry.model_validate(record), []
    except ValidationError as error:
        return None, errors_of(error)


def errors_of(error: ValidationError) -> list[tuple[Any, ...]]:
    return [(one["type"], one["loc"], one["msg"]) for one in error.errors()]


def fits(entry: TokenEntry) -> bool:
    try:
        pack_token_ids(entry.prompt_token_ids)
        pack_token_ids(entry.generation_token_ids)
        pack_log_probs(entry.generation_log_probs)
    except ValueError:
        return False
    return True


@given(records())
def test_a_packed_record_takes_and_refuses_what_a_token_entry_does(record: dict[str, Any]) -> None:
    before = copy.deepcopy(record)
    entry, errors = validated(record)
    if entry is None:
        with pytest.raises(ValidationError) as refused:
            PackedEntry.of_json(record)
        assert errors_of(refused.value) == errors
        return
    if not fits(entry):
        with pytest.raises(ValueError, match=f"call {entry.model_call_id!r}: "):
            PackedEntry.of_json(record)
        with pytest.raises(ValueError, match=f"call {entry.model_call_id!r}: "):
            PackedEntry.of_entry(entry)
        return
    for packed in (PackedEntry.of_json(record), PackedEntry.of_entry(entry)):
        assert repr(packed.entry()) == repr(entry)
        for name in PROPERTIES:
            value = getattr(packed, name)
            assert repr(value.tolist() if name in ARRAYS else value) == repr(getattr(entry, name))
    assert repr(record) == repr(before)


def test_a_plain_record_is_packed_without_a_token_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TokenEntry, "__pydantic_validator__")
    packed = PackedEntry.of_json({**BASE, "created_at": 1, "parent_resolution": "root", "site": "lab"})
    assert packed.prompt_token_ids.tolist() == [5, 2**33]
    assert packed.parent_resolution is ParentResolutionStatus.ROOT
    assert packed.created_at == 1.0
    assert not packed.rest.keys() & set(ARRAYS)


@pytest.mark.parametrize("name", ARRAYS)
def test_an_odd_sequence_is_read_once(name: str) -> None:
    record = {**BASE, "generation_token_ids": [7, 8], "generation_log_probs": [-0.5, -0.5], "model": None}
    record[name] = iter(record[name])
    with pytest.raises(ValidationError, match="model"):
        PackedEntry.of_json(record)
    record = {**record, name: iter([1, 2]), "model": "m"}
    assert getattr(PackedEntry.of_json(record), name).tolist() == [1, 2]


def test_tokens_are_held_as_arrays() -> None:
    record = {**BASE, "prompt_token_ids": list(range(1000)), "generation_log_probs": [-0.5]}
    packed = PackedEntry.of_json(record)
    assert packed.prompt_token_ids.dtype == np.uint32
    assert packed.prompt_token_ids.nbytes == 4000
    assert packed.generation_log_probs.dtype == np.float32
    for array in (packed.prompt_token_ids, packed.generation_token_ids, packed.generation_log_probs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("members", [{"site": "lab"}, {"gym_ray": {"later": 1}}, {"output_items": [{"a": {"b": 1}}]}])
def test_what_is_not_declared_is_kept(members: dict[str, Any]) -> None:
    record = {**BASE, **members}
    packed = PackedEntry.of_json(record)
    assert packed.entry() == TokenEntry.model_validate(record)
    assert {name: packed.rest[name] for name in members} == members


def test_an_entry_of_a_packed_record_has_its_own_lists() -> None:
    packed = PackedEntry.of_json({**BASE, "output_items": [{"type": "message"}]})
    entry = packed.entry()
    entry.output_items[0]["type"] = "other"
    entry.prompt_token_ids.append(1)
    assert packed.output_items == [{"type": "message"}]
    assert packed.entry().prompt_token_ids == [5, 2**33]


def test_an_assignment_that_contradicts_the_record_is_refused() -> None:
    entry = TokenEntry(**BASE)
    entry.generation_log_probs = []
    with pytest.raises(ValidationError, match="has 1 tokens, generation_log_probs 0 values"):
        PackedEntry.of_entry(entry)
    entry = TokenEntry(**BASE)
    entry.prompt_token_ids = np.array([1, 2], np.int64)  # type: ignore[assignment]
    assert PackedEntry.of_entry(entry).prompt_token_ids.tolist() == [1, 2]


def test_extras_are_read_from_their_member() -> None:
    packed = PackedEntry.of_json({**BASE, "gym_ray": {"ended_by": "eos", "later": 1}})
    assert packed.extras == CallExtras(ended_by="eos", unknown={"later": 1})
    assert packed.extras is packed.extras
    assert PackedEntry.of_json(BASE).extras == CallExtras()
    assert PackedEntry.of_json({**BASE, "gym_ray": "odd"}).extras == CallExtras()
