"""Training rows as Arrow tables: the values of the record, as views that nobody can write."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gym_ray.errors import UnusableTokensError
from gym_ray.token_id_capture.token_table import (
    TOKEN_TABLE_SCHEMA,
    masked_table,
    token_arrays,
    token_table,
    with_masks,
)

ROW: dict[str, Any] = {
    "rollout_id": "0-0",
    "chain_id": "main",
    "mask_sample": False,
    "reasons": [],
    "token_ids": [5, 6, 7, 4294967295, 9],
    "loss_mask": [0, 1, 1, 0, 1],
    "policy_log_probs": [-0.5, -1.5, -0.25],
    "spans": [
        {"kind": "prompt", "start": 0, "end": 1, "model_call_id": "a", "loss": False},
        {"kind": "policy", "start": 1, "end": 3, "model_call_id": "a", "loss": True},
        {"kind": "interstitial", "start": 3, "end": 4, "model_call_id": "b", "loss": False},
        {"kind": "policy", "start": 4, "end": 5, "model_call_id": "b", "loss": True},
    ],
    "weight_spans": [{"version": 3, "start": 1, "end": 3}, {"version": "2", "start": 4, "end": 5}],
}


def changed(**members: Any) -> dict[str, Any]:
    return copy.deepcopy(ROW) | members


def test_a_table_holds_what_the_row_says_with_a_log_probability_for_each_token() -> None:
    table = token_table([ROW], reward=0.5)
    assert table.schema == TOKEN_TABLE_SCHEMA
    ids, mask, log_probs = token_arrays(table, 0)
    assert ids.tolist() == ROW["token_ids"]
    assert mask.tolist() == ROW["loss_mask"]
    assert log_probs.tolist() == [0.0, -0.5, -1.5, 0.0, -0.25]
    assert [array.dtype for array in (ids, mask, log_probs)] == [np.uint32, np.uint8, np.float32]
    assert table.column("weight_spans").to_pylist() == [
        [{"version": "3", "start": 1, "end": 3}, {"version": "2", "start": 4, "end": 5}]
    ]
    assert table.column("oldest_weight_version").to_pylist() == [2]
    assert table.column("reward").to_pylist() == [0.5]
    assert table.column("masked").to_pylist() == [False]


def test_the_arrays_are_views_of_the_tables_own_buffers_and_read_only() -> None:
    table = pa.concat_tables([token_table([ROW]), token_table([changed(chain_id="other"), ROW])])
    for row in range(3):
        chunk = table.column("token_ids").chunk(0 if row == 0 else 1)
        ids, mask, log_probs = token_arrays(table, row)
        values = chunk.values.buffers()[1]
        assert values.address <= ids.__array_interface__["data"][0] < values.address + values.size
        for array in (ids, mask, log_probs):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(IndexError, match="row 3"):
        token_arrays(table, 3)


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [{"version": 3, "start": 1, "end": 3}],
        [{"version": "step-4", "start": 1, "end": 5}],
        [{"version": None, "start": 1, "end": 5}],
        [{"version": True, "start": 1, "end": 5}],
    ],
)
def test_the_oldest_version_is_unknown_unless_every_sampled_token_has_a_number(spans: list[Any]) -> None:
    assert token_table([changed(weight_spans=spans)]).column("oldest_weight_version").to_pylist() == [None]


def test_a_masked_row_has_no_reward() -> None:
    table = token_table([changed(mask_sample=True, reasons=["capture_incomplete"]), ROW], reward=1.0)
    assert table.column("reward").to_pylist() == [None, 1.0]
    assert table.column("reasons").to_pylist() == [["capture_incomplete"], []]


def test_what_gave_no_tokens_is_an_empty_masked_row() -> None:
    table = masked_table("4-1", ["worker_lost"])
    assert table.schema == TOKEN_TABLE_SCHEMA
    assert [array.size for array in token_arrays(table, 0)] == [0, 0, 0]
    (row,) = table.select(["rollout_id", "masked", "reasons", "reward"]).to_pylist()
    assert row == {"rollout_id": "4-1", "masked": True, "reasons": ["worker_lost"], "reward": None}


def test_masking_more_keeps_the_buffers_of_tokens_and_takes_the_reward() -> None:
    table = token_table([ROW, changed(chain_id="other", mask_sample=True, reasons=["old"])], reward=1.0)
    masked = with_masks(table, [("stale",), ("stale", "old")], 2.0)
    assert masked.column("masked").to_pylist() == [True, True]
    assert masked.column("reasons").to_pylist() == [["stale"], ["old", "stale"]]
    assert masked.column("reward").to_pylist() == [None, None]
    for name in ("token_ids", "loss_mask", "log_probs"):
        before, after = (t.column(name).chunk(0).values.buffers()[1].address for t in (table, masked))
        assert before == after
    assert with_masks(table, [(), ()], 2.0).column("reward").to_pylist() == [2.0, None]


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"token_ids": [1, 2, 3, 4, 2**32]}, "more than 32 bits"),
        ({"token_ids": [1, 2, 3, 4, -1]}, "main"),
        ({"loss_mask": [0, 1]}, "loss mask"),
        ({"policy_log_probs": [-0.5]}, "main"),
        ({"policy_log_probs": [-0.5] * 9}, "9 log probabilities for 3"),
        ({"spans": None}, "main"),
    ],
)
def test_what_is_no_row_is_named(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnusableTokensError, match=problem) as caught:
        token_table([changed(**members)])
    assert "0-0" in str(caught.value)
