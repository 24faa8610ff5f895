"""Tables of training rows: the same from a build and from its record, and never an error that loses a record."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gym_ray.errors import UnusableTokensError
from gym_ray.rollouts.tokens.token_tables import built_table, recorded_table

ROW: dict[str, Any] = {
    "rollout_id": "0-0",
    "chain_id": "main",
    "mask_sample": False,
    "reasons": [],
    "token_ids": [1, 2],
    "loss_mask": [0, 1],
    "policy_log_probs": [-0.5],
    "spans": [{"kind": "policy", "start": 1, "end": 2}],
    "weight_spans": [],
}


def test_a_build_and_its_record_give_the_same_table() -> None:
    built = built_table("0-0", {"training_rows": [ROW]})
    assert built is not None
    assert built.equals(recorded_table({"_ng_training_rows": [ROW], "reward": 1.0}))


@pytest.mark.parametrize("build", [None, {}, {"training_rows": []}])
def test_what_has_no_rows_has_no_table(build: dict[str, Any] | None) -> None:
    assert built_table("0-0", build) is None
    assert recorded_table({}) is None
    assert recorded_table({"_ng_training_rows": "text"}) is None


def test_rows_that_no_table_can_hold_are_named_and_stay_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    wide = ROW | {"token_ids": [1, 2**32]}
    with caplog.at_level(logging.ERROR):
        assert built_table("0-0", {"training_rows": [wide]}) is None
    assert "more than 32 bits" in caplog.text
    with pytest.raises(UnusableTokensError, match="more than 32 bits"):
        recorded_table({"_ng_training_rows": [wide]})
