"""A record that was written is equal to the one that is read; what cannot be read back is refused before that."""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.errors import RefusedRecordError, RolloutIdError
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink, ParquetTokenSource
from gym_ray.token_id_capture.staging.parquet.tokens.token_rows import TokenRow, records_of, table_of_records

IDS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 100) | st.integers(2**31 - 1, 2**32), max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def read_back(*entries: TokenEntry | PackedEntry) -> list[TokenEntry]:
    table = table_of_records([TokenRow.of(entry) for entry in entries])
    rollout_id = entries[0].rollout_id
    return [record.entry(rollout_id).entry() for record in records_of(table, rollout_id, "s", 0)]


def entry(**members: Any) -> TokenEntry:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    return TokenEntry(**{"rollout_id": "r", "model_call_id": "c", **tokens, **members})


@settings(max_examples=150, deadline=None)
@given(prompt=IDS, generation=IDS, extra=JSON, data=st.data())
def test_any_record_comes_back(prompt: list[int], generation: list[int], extra: Any, data: st.DataObject) -> None:
    number = st.floats(allow_nan=False, allow_infinity=False) | st.just(-0.0) | st.floats(-5, 0, width=32)
    log_probs = data.draw(st.lists(number, min_size=len(generation), max_size=len(generation)))
    given = entry(
        prompt_token_ids=prompt, generation_token_ids=generation, generation_log_probs=log_probs, gym_ray={"x": extra}
    )
    other = entry(model_call_id="other", created_at=1.25)
    first, second = read_back(given, other)
    assert first.model_dump() == given.model_dump()
    assert list(map(repr, first.generation_log_probs)) == list(map(repr, given.generation_log_probs))
    assert second.model_dump() == other.model_dump()


def test_log_probs_are_single_where_that_is_exact_and_double_elsewhere() -> None:
    table = table_of_records([TokenRow.of(entry()), TokenRow.of(entry(generation_log_probs=[-0.1]))])
    assert table.column("log_probs").to_pylist() == [[-0.5], None]
    assert table.column("log_probs_wide").to_pylist() == [None, [-0.1]]


def test_ids_are_narrow_where_they_fit() -> None:
    widest = [2**31 - 1, 2**31, 2**64 - 1]
    table = table_of_records([TokenRow.of(entry(prompt_token_ids=[number])) for number in widest])
    assert table.column("prompt_token_ids").to_pylist() == [[2**31 - 1], None, None]
    assert table.column("prompt_token_ids_wide").to_pylist() == [None, [2**31], [2**64 - 1]]


def test_every_field_and_unknown_members_survive() -> None:
    root = call_entry("c0", [1, 2], [3])
    given = call_entry(
        "c1",
        [4],
        [5, 6],
        root,
        model="m",
        response_id="resp",
        created_at=17.25,
        routed_experts={"data": "AAAA", "shape": [1, 2]},
        continuation_fingerprint="f",
        continuation_context_len=3,
        continuation_context_digest="d",
        fingerprint_version=2,
        prefix_requested=True,
        prefix_supplied=True,
        site={"big": 2**80, "half": "\ud800", "text": "ü\n"},
    )
    assert [one.model_dump() for one in read_back(given)] == [given.model_dump()]


def test_a_packed_record_is_the_same_row_as_its_lists() -> None:
    given = call_entry("c0", [1, 2**40], [3])
    lists, packed = TokenRow.of(given), TokenRow.of(PackedEntry.of_entry(given))
    assert lists.digest == packed.digest
    assert lists.entry_json == packed.entry_json


def test_a_digest_leaves_out_only_the_time() -> None:
    given = entry(created_at=1.0)
    assert TokenRow.of(given).digest == TokenRow.of(entry(created_at=2.0)).digest
    others = [
        entry(model_call_id="d"),
        entry(rollout_id="rc", model_call_id=""),
        entry(prompt_token_ids=[1, 2], generation_token_ids=[], generation_log_probs=[]),
        entry(generation_log_probs=[math.nextafter(-0.5, 0)]),
        entry(model="n"),
        entry(site=1),
    ]
    assert len({TokenRow.of(one).digest for one in [given, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"generation_log_probs": [math.nan]}, "log prob nan at index 0"),
        ({"generation_log_probs": [-math.inf]}, "log prob -inf"),
        ({"prompt_token_ids": [-1]}, "-1"),
        ({"generation_token_ids": [2**64]}, str(2**64)),
        ({"model_call_id": "\ud800"}, "the id of a call"),
    ],
)
def test_what_cannot_be_read_back_is_refused_by_name(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(RefusedRecordError, match=problem):
        TokenRow.of(entry(**members))


def test_a_record_that_was_changed_to_contradict_itself_is_refused() -> None:
    given = entry()
    given.generation_log_probs = []
    with pytest.raises(RefusedRecordError, match="generation_token_ids has 1 tokens"):
        TokenRow.of(given)


def test_a_record_that_holds_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(RefusedRecordError, match="call 'c'"):
        TokenRow.of(entry(site=object()))


@pytest.mark.parametrize("rollout_id", ["", "\udfff", "é" * 60])
def test_ids_that_no_marker_can_have(rollout_id: str) -> None:
    with pytest.raises(RolloutIdError):
        TokenRow.of(entry(rollout_id=rollout_id))


@pytest.mark.parametrize(
    "rollout_id", ["..", ".hidden", "-x", "a/b", "a b", "ü", "%2E", "a.json", "x" * 190, "dropped/a", "\n"]
)
async def test_odd_rollout_ids_are_kept_apart(tmp_path: Path, rollout_id: str) -> None:
    sink, source = ParquetTokenSink(tmp_path), ParquetTokenSource(tmp_path)
    try:
        await sink.put(entry(rollout_id=rollout_id))
        await sink.put(entry(rollout_id=rollout_id + "0"))
        snapshot = await source.freeze(rollout_id)
        assert [one.rollout_id for one in snapshot.entries] == [rollout_id]
        assert await source.drop(rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        assert len((await source.freeze(rollout_id + "0")).entries) == 1
    finally:
        await sink.close()
        await source.close()


async def test_arrays_are_packed_in_one_buffer_behind_a_freeze() -> None:
    where = f"memory://{secrets.token_hex(6)}"
    sink, source = ParquetTokenSink(where), ParquetTokenSource(where)
    root = call_entry("c0", [1, 2], [3])
    child = call_entry("c1", [4], [5], root)
    try:
        await sink.put(root)
        await sink.put(child)
        first, second = (await source.freeze("3-1")).packed
    finally:
        await sink.close()
        await source.close()
    assert first.prompt_token_ids.dtype == np.uint32
    assert second.prompt_token_ids.tolist() == [1, 2, 3, 4]
    assert not second.generation_log_probs.flags.writeable
