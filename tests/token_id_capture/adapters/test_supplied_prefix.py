"""The proof that a prompt continues the parent's exact tokens (B94, B95, W35)."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.adapters.supplied_prefix import SuppliedPrefix
from gym_ray.token_id_capture.exact_tokens import ExactTokens, Untrainable
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids


def tokens(prompt: list[int]) -> ExactTokens:
    return ExactTokens(pack_token_ids(prompt), pack_token_ids([9]), pack_log_probs([-0.5]), ended_by="eos")


def prefix(ids: list[int], **members: Any) -> SuppliedPrefix:
    return SuppliedPrefix(pack_token_ids(ids), "required_prefix", **members)


def test_a_prompt_that_begins_with_the_tokens_proves_that_they_went_in() -> None:
    proven = prefix([40, 41]).proven(tokens([40, 41, 7]))
    assert isinstance(proven, ExactTokens)
    assert (proven.prefix_requested, proven.prefix_supplied, proven.token_in) == (True, True, "required_prefix")
    assert (proven.prompt_token_ids.tolist(), proven.ended_by) == ([40, 41, 7], "eos")


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ([40, 77, 7], "differs from index 1 on"),  # B39: retokenised history
        ([77], "differs from index 0 on"),
        ([40], "ends or goes on at index 1"),
        ([], "ends or goes on at index 0"),
    ],
)
def test_a_prompt_that_departs_is_not_used_and_says_where(prompt: list[int], where: str) -> None:
    outcome = prefix([40, 41]).proven(tokens(prompt))
    assert isinstance(outcome, Untrainable)
    assert (outcome.reason, outcome.prefix_requested) == ("prefix_not_supplied", True)
    assert where in outcome.detail
    assert "2 tokens went in" in outcome.detail


def test_a_prompt_that_is_wholly_supplied_may_hold_nothing_more() -> None:
    assert isinstance(prefix([1, 2], whole=True).proven(tokens([1, 2])), ExactTokens)
    assert isinstance(prefix([1, 2], whole=True).proven(tokens([1, 2, 3])), Untrainable)


def test_what_cannot_be_used_anyway_keeps_its_reason() -> None:
    outcome = prefix([1]).proven(Untrainable("usage_missing", "none"))
    assert outcome == Untrainable("usage_missing", "none", prefix_requested=True)


def test_wide_and_narrow_ids_are_compared_by_value() -> None:
    assert isinstance(prefix([1, 2]).proven(tokens([1, 2, 2**40])), ExactTokens)
