"""The table of B120: what makes a rollout one that must not be trained on."""

from __future__ import annotations

import pytest

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import PER_REQUEST, PREFIX_MERGING, BuildOutput, run_builder
from gym_ray.token_id_capture.terminal import TerminalAttribution
from gym_ray.token_id_capture.verdict import attribution_metric, build_metrics, doubts_of

UNKNOWN = TerminalAttribution(None, "", "response_has_no_id")


def straight() -> TokenRollout:
    rollout = TokenRollout()
    rollout.call("c1", [1], [2])
    rollout.call("c2", [3], [4, 5], "c1")
    return rollout


def forked() -> TokenRollout:
    rollout = straight()
    rollout.call("b2", [6], [7], "c1")
    return rollout


def with_two_roots() -> TokenRollout:
    rollout = straight()
    rollout.call("r2", [8], [9])
    return rollout


def retried() -> TokenRollout:
    rollout = straight()
    rollout.call("c2b", [3], [6], "c1")
    return rollout


def orphaned() -> TokenRollout:
    rollout = straight()
    rollout.call("c3", [3], [6], "c2", delta=False, parent_call_id=None, parent_resolution="unresolved")
    return rollout


def silent() -> TokenRollout:
    rollout = TokenRollout()
    rollout.call("c1", [1], [])
    return rollout


def doubts(
    rollout: TokenRollout, end: str | None = None, *, declared: bool = False, builder: str = PREFIX_MERGING
) -> set[str]:
    attribution = UNKNOWN if end is None else TerminalAttribution(end, "explicit", "")
    return set(doubts_of(run_builder(rollout.packed(), builder, end), attribution, is_end_declared=declared))


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        (straight(), set()),
        (forked(), {"several_chains"}),
        (with_two_roots(), {"several_roots", "several_chains"}),
        (retried(), {"unresolved_retries"}),
        (orphaned(), {"unresolved_parent_calls", "several_roots", "several_chains"}),
        (silent(), {"nothing_generated"}),
    ],
    ids=["straight", "forked", "two roots", "retried", "orphaned", "silent"],
)
def test_any_doubt_masks_while_no_end_is_known(rollout: TokenRollout, expected: set[str]) -> None:
    assert doubts(rollout) == expected


def test_a_delivered_end_leaves_no_doubt_about_other_calls() -> None:
    for rollout in (forked(), with_two_roots(), retried(), orphaned()):
        assert doubts(rollout, "c2") == set()


def test_an_end_that_is_not_delivered_masks_whatever_else_holds() -> None:
    assert doubts(straight(), "gone") == {"terminal_not_captured"}
    assert doubts(orphaned(), "c3") == {"terminal_broken"}
    assert doubts(straight(), declared=True) == {"terminal_not_attributed"}


def test_sequences_of_single_requests_are_doubted_for_their_records_alone() -> None:
    assert doubts(forked(), builder=PER_REQUEST) == set()
    rollout = forked()
    rollout.records["b2"]["digest"] = "0" * 64
    assert doubts(rollout, builder=PER_REQUEST) == {"unresolved_parent_calls"}


def test_the_metrics_count_what_was_captured_and_delivered() -> None:
    output: BuildOutput = run_builder(retried().packed())
    metrics = build_metrics(3, output, UNKNOWN)
    assert (metrics["n_calls"], metrics["chains"], metrics["roots"]) == (3, 1, 1)
    assert (metrics["quarantined_calls"], metrics["quarantined_fraction"]) == (1, 0.3333)
    assert (metrics["generated_tokens_captured"], metrics["generated_tokens_delivered"]) == (4, 3)
    assert metrics["delivered_fraction"] == 0.75
    assert metrics["terminal_attribution"] == attribution_metric(UNKNOWN, "")
    assert attribution_metric(UNKNOWN, "") == {
        "method": "none",
        "call_id": None,
        "reason": "response_has_no_id",
        "chain": "",
    }
