"""A finished attempt has a reward that was measured, or a reason why it has none; never neither, never both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gym_ray.evidence.summary import RolloutSummary, summarise
from gym_ray.rollouts.attempts.attempt_flow import Finished
from gym_ray.rollouts.run_paths import Written
from gym_ray.rollouts.training.outcomes import Requested, lost_outcome, outcome_of
from gym_ray.rollouts.training.results import ResultMaker

ASKED = Requested(3, 1, "r-1-0", 1, 0, "plain")
WRITTEN = Written("main", 0, 10)


def finished(written: Written | None = WRITTEN, **figures: Any) -> Finished:
    summary: RolloutSummary = summarise({"reward": 0.5}, None, "r-1-0-a2", 1.0)
    return Finished(written, replace(summary, **figures), False, 3, 2, "tokens")


def test_an_attempt_that_was_scored_has_its_reward_and_no_reason() -> None:
    outcome = outcome_of(ASKED, finished(), epoch=4)
    assert (outcome.rollout_id, outcome.attempt, outcome.reward, outcome.reasons) == ("r-1-0-a2", 2, 0.5, ())
    assert (outcome.written, outcome.token_rows, outcome.epoch) == (WRITTEN, "tokens", 4)
    assert outcome_of(ASKED, finished(reward=0.0)).reward == 0.0, "a measured zero is a reward"


@pytest.mark.parametrize(
    ("ended", "reasons"),
    [
        (finished(failure_class="node_lost"), ("node_lost",)),
        (finished(failure_class="node_lost", token_mask_reasons=("capture_incomplete",)), ("node_lost",)),
        (finished(token_mask_reasons=("capture_incomplete", "unproved")), ("capture_incomplete", "unproved")),
        (finished(masked=True), ("mask_sample",)),
        (finished(None), ("not_recorded",)),
        (finished(reward=None), ("no_reward",)),
        (finished(None, failure_class="agent_timeout", reward=None), ("agent_timeout",)),
    ],
)
def test_whatever_speaks_against_an_attempt_takes_its_reward_and_is_its_reason(
    ended: Finished, reasons: tuple[str, ...]
) -> None:
    outcome = outcome_of(ASKED, ended)
    assert (outcome.reward, outcome.reasons) == (None, reasons)
    assert outcome.failure_class == ended.summary.failure_class
    result = ResultMaker(frozenset(), None, lambda _: None, lambda _: b"{}").result(outcome, None)
    assert (result.masked, result.reward, result.reasons) == (True, None, reasons)


def test_an_outcome_that_has_a_reason_gives_no_reward_whatever_it_was_scored_with() -> None:
    outcome = replace(lost_outcome(ASKED, "deadline"), reward=1.0)
    result = ResultMaker(frozenset(), None, lambda _: None, lambda _: b"{}").result(outcome, None)
    assert (result.masked, result.reward, result.attempt) == (True, None, None)
