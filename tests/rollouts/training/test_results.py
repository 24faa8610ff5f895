"""A result is masked with a reason or has its reward, and tokens that were lost come back out of the record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import CaptureError, StorageError
from gym_ray.rollouts.run_paths import Written
from gym_ray.rollouts.training.outcomes import Outcome, Requested, lost_outcome
from gym_ray.rollouts.training.results import NO_TOKEN_ROWS, ResultMaker, RolloutBatch, grouped
from gym_ray.rollouts.training.weight_versions import EARLIER_EPOCH, STALE, Spoken
from gym_ray.token_id_capture.token_table import token_arrays, token_table

ASKED = Requested(0, 0, "r-0-0", 0, 0, "trained")
WRITTEN = Written("main", 0, 10)


def row(chain: str = "main", *, masked: bool = False) -> dict[str, Any]:
    return {
        "rollout_id": "r-0-0",
        "chain_id": chain,
        "mask_sample": masked,
        "reasons": ["unproved"] if masked else [],
        "token_ids": [1, 2],
        "loss_mask": [0, 1],
        "policy_log_probs": [-0.5],
        "spans": [{"kind": "policy", "start": 1, "end": 2}],
        "weight_spans": [{"version": 1, "start": 1, "end": 2}],
    }


def maker(record: dict[str, Any] | None, table: Any = None, staleness: int | None = None) -> ResultMaker:
    def read(_: Outcome) -> bytes:
        if record is None:
            raise StorageError("gone")
        return exact_json.dumps(record)

    return ResultMaker(frozenset({"trained"}), staleness, lambda _: table, read)


def ended(**members: Any) -> Outcome:
    return Outcome(
        **({"requested": ASKED, "rollout_id": "r-0-0", "attempt": 0, "reward": 0.5, "written": WRITTEN} | members)
    )


def test_a_table_that_was_lost_is_made_of_the_record() -> None:
    record = {"reward": 0.5, "_ng_training_rows": [row()], "response": {}, "ng_perf": 1}
    result = maker(record).result(ended(token_rows="lost"), None)
    assert (result.reward, result.masked) == (0.5, False)
    assert token_arrays(result.tokens, 0)[0].tolist() == [1, 2]
    assert result.record == record
    assert result.reply() == {"reward": 0.5, "response": {}, "_ng_training_rows": [row()]}


def test_rows_that_nobody_can_read_mask_the_result() -> None:
    for record in (None, {"reward": 0.5}):
        result = maker(record).result(ended(), None)
        assert (result.reasons, result.reward) == ((NO_TOKEN_ROWS,), None)
        assert result.tokens is not None
        assert result.tokens.column("masked").to_pylist() == [True]


def test_a_lost_rollout_is_a_masked_row_and_a_reply_that_says_why() -> None:
    result = maker(None).result(lost_outcome(ASKED, "cancelled"), None)
    assert (result.masked, result.reward, result.record) == (True, None, None)
    assert result.reply() == {"reward": None, "mask_sample": True, "_ng_failure_class": "cancelled"}
    assert result.tokens is not None
    assert result.tokens.column("reasons").to_pylist() == [["cancelled"]]
    untrained = Requested(0, 0, "r-0-0", 0, 0, "plain")
    assert maker(None).result(lost_outcome(untrained, "cancelled"), None).tokens is None


def test_chains_are_judged_one_by_one_where_all_are_delivered() -> None:
    table = token_table([row(masked=True), row("branch-1")])
    result = maker({"reward": 1}, table).result(ended(reward=None, reasons=("several",), token_rows=1), None)
    assert (result.masked, result.reward, result.reasons) == (False, 1.0, ())
    assert result.tokens is not None
    assert result.tokens.column("reward").to_pylist() == [None, 1.0]


def test_old_rows_are_masked_and_an_empty_batch_is_an_error() -> None:
    make = maker({}, token_table([row()]), staleness=1)
    fresh = make.result(ended(token_rows=1), Spoken(2, 0))
    old = make.result(ended(token_rows=1), Spoken(3, 0))
    assert (fresh.reasons, old.reasons, old.reward) == ((), (STALE,), None)
    assert RolloutBatch((fresh, old)).usable == (fresh,)
    assert RolloutBatch((fresh, old)).tokens.num_rows == 2
    group = grouped([fresh, old])
    assert (group.usable, group.reasons) == ((fresh,), (STALE,))
    with pytest.raises(CaptureError, match=r"none of 1 rollouts .*stale_weights: 1"):
        _ = RolloutBatch((old,)).usable


@pytest.mark.parametrize("staleness", [None, 9])
def test_what_began_in_an_earlier_epoch_is_masked_whatever_its_version_says(staleness: int | None) -> None:
    make, now = maker({"reward": 0.5}, token_table([row()]), staleness=staleness), Spoken(1, 1)
    old = make.result(ended(token_rows=1, epoch=0), now)
    assert (old.masked, old.reward, old.reasons) == (True, None, (EARLIER_EPOCH,))
    assert old.tokens is not None
    assert old.tokens.column("masked").to_pylist() == [True]
    assert old.tokens.column("reasons").to_pylist() == [[EARLIER_EPOCH]]
    fresh = make.result(ended(token_rows=1, epoch=1), now)
    assert (fresh.masked, fresh.reward) == (False, 0.5)
    plain = make.result(ended(requested=Requested(0, 0, "r-0-0", 0, 0, "plain")), now)
    assert (plain.reasons, plain.reward, plain.tokens) == ((EARLIER_EPOCH,), None, None)
    never = make.result(lost_outcome(ASKED, "cancelled"), now)
    assert never.reasons == ("cancelled",), "what never began belongs to no epoch"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 10**400, True, "1", None])
def test_a_reward_that_measures_nothing_is_none(reward: Any) -> None:
    table = token_table([row(masked=True), row("branch-1")])
    make = ResultMaker(frozenset({"trained"}), None, lambda _: table, lambda _: json.dumps({"reward": reward}).encode())
    result = make.result(ended(reward=None, reasons=("several",), token_rows=1), None)
    assert (result.masked, result.reward) == (True, None)
    assert result.reasons[0] == "several"
