from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.rows import RowWeightSpan, TokenSpan, TrainingRow, training_rows


def rows(rollout: TokenRollout, *, end: str | None = None, **options: Any) -> list[TrainingRow]:
    return training_rows("r0", run_builder(rollout.packed(), terminal_call_id=end), **options)


def forked() -> TokenRollout:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12, 13, 14], "c1")
    rollout.call("f2", [6], [15], "c1")
    rollout.call("f3", [], [16], "f2")
    return rollout


def learned(row: TrainingRow) -> list[int]:
    return row.token_ids[row.loss_mask()].tolist()


def test_a_row_says_of_every_token_where_it_came_from() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12], "c1")
    rollout.call("c3", [], [13], "c2")
    (row,) = rows(rollout)
    assert (row.rollout_id, row.chain_id, row.mask_sample, row.reasons) == ("r0", "main", False, ())
    assert row.token_ids.tolist() == [1, 2, 3, 10, 11, 4, 5, 12, 13]
    assert row.spans == (
        TokenSpan("prompt", 0, 3, "c1", loss=False),
        TokenSpan("policy", 3, 5, "c1", loss=True),
        TokenSpan("interstitial", 5, 7, "c2", loss=False),
        TokenSpan("policy", 7, 8, "c2", loss=True),
        TokenSpan("policy", 8, 9, "c3", loss=True),
    )
    assert row.policy_log_probs.tolist() == [-0.5, -0.25, -0.5, -0.5]
    assert row.loss_mask().tolist() == [False] * 3 + [True] * 2 + [False] * 2 + [True] * 2
    assert row.dense_log_probs().tolist() == [0, 0, 0, -0.5, -0.25, 0, 0, -0.5, -0.5]
    assert row.dense_log_probs().dtype == np.float32
    assert (row.shared_prefix, row.shared_with) == (0, None)


def test_every_policy_token_has_its_own_log_prob() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [10, 11], generation_log_probs=[-1.0, -2.0])
    rollout.call("c2", [3], [12], "c1", generation_log_probs=[-3.0])
    rollout.call("c3", [], [13, 14], "c2", generation_log_probs=[-4.0, -5.0])
    (row,) = rows(rollout)
    assert row.policy_log_probs.tolist() == [-1, -2, -3, -4, -5]
    assert dict(zip(row.token_ids.tolist(), row.dense_log_probs().tolist(), strict=True)) == {
        **dict.fromkeys((1, 2, 3), 0.0),
        10: -1.0,
        11: -2.0,
        12: -3.0,
        13: -4.0,
        14: -5.0,
    }


def test_only_the_main_chain_is_delivered_unless_all_are_asked_for() -> None:
    assert [row.chain_id for row in rows(forked())] == ["main"]
    assert [row.chain_id for row in rows(forked(), branches=True)] == ["main", "branch-0"]


def test_shared_policy_tokens_carry_loss_once() -> None:
    main, branch = rows(forked(), branches=True)
    assert learned(main) == [10, 11, 12, 13, 14]
    assert learned(branch) == [15, 16]
    assert (branch.shared_prefix, branch.shared_with) == (5, "main")
    assert branch.token_ids[: branch.shared_prefix].tolist() == main.token_ids[: branch.shared_prefix].tolist()
    assert branch.dense_log_probs().tolist()[3:5] == [-0.5, -0.25]  # known, whether learned from or not


def test_shared_policy_tokens_carry_loss_in_every_row_where_that_is_asked_for() -> None:
    main, branch = rows(forked(), branches=True, shared_prefix_loss="all")
    assert learned(main) == [10, 11, 12, 13, 14]
    assert learned(branch) == [10, 11, 15, 16]


def test_a_masked_row_takes_no_loss_from_the_rows_behind_it() -> None:
    rollout = forked()
    rollout.call("c2b", [4, 5], [12, 13, 99], "c1")  # nobody knows which of the two counted
    main, branch = rows(rollout, branches=True)
    assert (main.mask_sample, main.reasons) == (True, ("unresolved_retry",))
    assert (branch.mask_sample, branch.shared_with) == (False, "main")
    assert learned(branch) == [10, 11, 15, 16]


def test_a_known_end_says_nothing_about_retries_that_do_not_lead_to_it() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10])
    rollout.call("agent", [500], [501])
    rollout.call("again", [502], [503], "agent")
    rollout.call("again-too", [502], [504], "agent")  # nobody knows which of the two the sub-agent used
    rollout.call("equal", [502, 600], [601], "agent")
    rollout.call("equal-too", [502, 600], [601], "agent")  # whichever it used, these are its tokens
    rollout.call("c2", [4], [11], "c1")
    found = {row.spans[-1].model_call_id: row for row in rows(rollout, end="c2", branches=True)}
    assert {call_id: row.reasons for call_id, row in found.items()} == {
        "c2": (),
        "again": ("unresolved_retry",),
        "equal": (),
    }


def test_each_row_shares_with_the_first_that_holds_its_deepest_common_call() -> None:
    rollout = forked()
    rollout.call("f3b", [7], [17], "f2")
    found = {row.spans[-1].model_call_id: row for row in rows(rollout, branches=True)}
    assert (found["c2"].shared_prefix, found["c2"].shared_with) == (0, None)
    assert (found["f3"].shared_prefix, found["f3"].shared_with) == (5, "main")
    assert (found["f3b"].shared_prefix, found["f3b"].shared_with) == (7, found["f3"].chain_id)
    every = [token for row in found.values() for token in learned(row)]
    assert sorted(every) == [10, 11, 12, 13, 14, 15, 16, 17]


def test_sub_agents_and_compacted_contexts_are_rows_of_their_own() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("agent", [500], [501])
    rollout.call("compacted", [80, 81], [82])
    rollout.call("rewritten", [90, 91], [92], parent_resolution="unresolved")
    rollout.call("after", [93], [94], "rewritten")
    found = {row.spans[-1].model_call_id: row for row in rows(rollout, branches=True)}
    assert {call_id: (row.mask_sample, row.reasons) for call_id, row in found.items()} == {
        "c1": (False, ()),
        "agent": (False, ()),
        "compacted": (False, ()),
        "after": (True, ("parent_unresolved",)),
    }
    assert all(row.shared_prefix == 0 for row in found.values())


def test_the_verdict_on_the_rollout_masks_every_row() -> None:
    found = rows(forked(), branches=True, mask_sample=True, reasons=["capture_incomplete"])
    assert [(row.mask_sample, row.reasons) for row in found] == [(True, ("capture_incomplete",))] * 2
    (clean,) = rows(forked(), reasons=["not asked for"])
    assert (clean.mask_sample, clean.reasons) == (False, ())


def test_a_build_of_single_requests_gives_a_row_a_request() -> None:
    rollout = forked()
    rollout.call("e4", [7], [], "f3")
    found = training_rows("r0", run_builder(rollout.packed(), builder="per_request"))
    assert [row.token_ids.tolist() for row in found] == [
        rollout.sequences[call_id] for call_id in ("c1", "f2", "c2", "f3", "e4")
    ]
    assert [learned(row) for row in found] == [[10, 11], [15], [12, 13, 14], [16], []]
    assert (found[-1].mask_sample, found[-1].reasons) == (True, ("nothing_generated",))
    assert found[-1].policy_log_probs.tolist() == []


def test_versions_of_the_weights_lie_where_their_tokens_do() -> None:
    rollout = TokenRollout()
    spans = [{"version": 7, "start": 0, "end": 1}, {"version": 8, "start": 1, "end": 99}]
    rollout.call("c1", [1, 2], [10, 11, 12], gym_ray={"weight_spans": spans, "version_start": "stamped"})
    rollout.call("c2", [3], [13], "c1", gym_ray={"version_start": "a", "version_end": "a"})
    rollout.call("c3", [], [14, 15], "c2", gym_ray={"version_start": "a", "version_end": "b"})
    rollout.call("c4", [4], [16], "c3")
    rollout.call("c5", [5], [17], "c4", gym_ray={"version_start": 0})
    (row,) = rows(rollout)
    assert row.weight_spans == (
        RowWeightSpan(7, 2, 3),
        RowWeightSpan(8, 3, 5),
        RowWeightSpan("a", 6, 7),
        RowWeightSpan("a", 7, 9),
        RowWeightSpan("b", 7, 9),
        RowWeightSpan(0, 12, 13),
    )


def test_calls_under_a_grammar_are_named() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1], [10])
    rollout.call("c2", [2], [11], "c1", gym_ray={"constrained": True})
    assert rows(rollout)[0].constrained_calls == ("c2",)


def test_a_row_is_a_view_where_the_records_lie_in_one_buffer() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("c2", [4, 5], [12], "c1")
    entries = rollout.packed_in_one_buffer()
    (row,) = training_rows("r0", run_builder(entries))
    assert np.shares_memory(row.token_ids, entries[0].prompt_token_ids)
    assert np.shares_memory(row.policy_log_probs, entries[1].generation_log_probs)
    assert not row.token_ids.flags.writeable
    assert not row.policy_log_probs.flags.writeable


def test_ids_and_log_probs_keep_their_width() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1], [2**40])
    rollout.call("c2", [2], [3], "c1", generation_log_probs=[-0.1])
    (row,) = rows(rollout)
    assert row.token_ids.tolist() == [1, 2**40, 2, 3]
    assert row.policy_log_probs.tolist() == [-0.5, -0.1]


def test_a_row_travels_between_processes() -> None:
    (row,) = rows(forked())
    copy = pickle.loads(pickle.dumps(row))
    assert copy.token_ids.tolist() == row.token_ids.tolist()
    assert copy.spans == row.spans


def test_a_chain_that_contradicts_its_records_makes_no_row() -> None:
    entries = forked().entries()
    entries[0].generation_log_probs = [-0.5]
    with pytest.raises(ValueError, match="'c1': generation_token_ids has 2 tokens, generation_log_probs 1"):
        training_rows("r0", run_builder(entries))
