from __future__ import annotations

import hashlib
import tracemalloc
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import RefusedRecordError
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem, calls_table
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_SCHEMA


def with_columns(**columns: Any) -> Any:
    record = numbered_call(1, len(next(iter(columns.values()))))
    return record.model_copy(update={name: Column(values) for name, values in columns.items()})


def test_rows_say_what_the_records_say() -> None:
    records = [numbered_call(number, 3 + number, extras={"é": [number]} if number else None) for number in range(3)]
    table = calls_table([CallItem(record, None) for record in records], [None] * 3)
    assert table.schema.equals(CALLS_SCHEMA)
    for row, record in zip(table.to_pylist(), records, strict=True):
        assert row.pop("row_kind") == "call"
        assert row.pop("token_ids") == record.token_ids_delta.tolist()
        assert row.pop("token_mask") == [bool(value) for value in record.token_mask_delta]
        assert row.pop("log_probs") == record.generation_log_probs_delta.tolist()
        for name in ("digest", "extras_digest", "chain_hash", "cumulative_hash"):
            assert row.pop(name).hex() == getattr(record, name)
        extras = row.pop("extras_json")
        assert extras == (None if record.extras is None else f'{{"é":[{record.extras["é"][0]}]}}')
        assert {row.pop(name) for name in ("token_ids_wide", "attachments", "media_data")} == {None}
        for name, value in row.items():
            assert value == getattr(record, name), name


def test_an_id_that_int32_cannot_hold_makes_its_call_wide_and_no_other() -> None:
    edge = with_columns(token_ids_delta=np.array([2**31 - 1], np.uint32))
    wide = with_columns(token_ids_delta=np.array([1, 2**31], np.uint32))
    widest = with_columns(token_ids_delta=np.array([2**64 - 1], np.uint64))
    rows = calls_table([CallItem(record, None) for record in (edge, wide, widest)], [None] * 3).to_pylist()
    assert [row["token_ids"] for row in rows] == [[2**31 - 1], None, None]
    assert [row["token_ids_wide"] for row in rows] == [None, [1, 2**31], [2**64 - 1]]


def test_small_ids_in_a_wide_array_are_narrow() -> None:
    record = with_columns(token_ids_delta=np.array([5, 2**31 - 1], np.uint64))
    (row,) = calls_table([CallItem(record, None)], [None]).to_pylist()
    assert (row["token_ids"], row["token_ids_wide"]) == ([5, 2**31 - 1], None)


def test_log_probs_are_kept_as_they_were_hashed() -> None:
    record = with_columns(generation_log_probs_delta=np.array([-0.1, -1e-60, -3.4028234663852886e38]))
    (row,) = calls_table([CallItem(record, None)], [None]).to_pylist()
    assert row["log_probs"] == np.array([-0.1, 0, -3.4028234663852886e38], np.float32).tolist()
    assert np.signbit(row["log_probs"][1])


def test_a_mask_with_a_signed_zero_is_refused() -> None:
    record = with_columns(token_mask_delta=np.array([-0.0, 1.0], np.float32))
    with pytest.raises(RefusedRecordError, match=r"r1/c1: token_mask_delta holds a -0\.0"):
        CallItem(record, None)


def test_attachments_stand_in_the_row_with_their_hashes() -> None:
    media = {"pixels": np.arange(6, dtype=np.float32).reshape(2, 3), "none": b""}
    item = CallItem(numbered_call(1), prepare_attachments(media))
    first, second = (
        calls_table([item, CallItem(numbered_call(2), [])], [[7, None], []]).column("attachments").to_pylist()
    )
    pixels = media["pixels"]
    assert isinstance(pixels, np.ndarray)
    assert first == [
        {
            "name": "pixels",
            "item": 0,
            "dtype": "float32",
            "shape": [2, 3],
            "nbytes": 24,
            "sha256": hashlib.sha256(pixels.tobytes()).digest(),
            "media_row": 7,
        },
        {
            "name": "none",
            "item": 0,
            "dtype": "bytes",
            "shape": [0],
            "nbytes": 0,
            "sha256": hashlib.sha256().digest(),
            "media_row": None,
        },
    ]
    assert second == []


def test_what_makes_two_stagings_the_same() -> None:
    def content(number: int, media: dict[str, Any] | None = None) -> bytes:
        return CallItem(numbered_call(number), None if media is None else prepare_attachments(media)).content()

    assert content(1) == content(1) == content(1, {})
    assert content(1, {"a": b"x"}) == content(1, {"a": b"x"})
    others = [
        content(1),
        content(2),
        content(1, {"a": b"x"}),
        content(1, {"a": b"y"}),
        content(1, {"b": b"x"}),
        content(1, {"a": "x"}),
        content(1, {"a": [b"x"]}),
        content(1, {"a": np.zeros(4, np.uint8)}),
        content(1, {"a": np.zeros((2, 2), np.uint8)}),
    ]
    assert len(set(others)) == len(others)


def test_a_waiting_call_takes_at_most_twelve_bytes_a_token() -> None:
    tokens = 200_000
    lists = numbered_call(1, tokens).model_dump()
    record = type(numbered_call(1)).model_validate(lists)
    del lists
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        item = CallItem(record, None)
        added = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    kept = item.token_ids.nbytes + item.token_mask.nbytes + item.log_probs.nbytes
    assert kept == 9 * tokens
    assert added <= 12 * tokens
    assert kept <= item.nbytes <= kept + 4096
