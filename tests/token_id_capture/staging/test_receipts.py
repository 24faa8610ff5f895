"""Receipts: witnesses, then the shape of the calls, then a mask; and which failures poison (C194, C340, C349)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging import (
    UNCOMMITTED_CALL_REASON,
    CallRecord,
    ManifestFailure,
    RolloutManifest,
    RolloutReceipt,
    build_receipt,
    primary_reason,
)

ANSWER_1: dict[str, Any] = {"output": [{"role": "assistant", "content": "answer 1"}]}


def rows(count: int = 3) -> list[CallRecord]:
    return [commit_of_turn(turn).record for turn in range(count)]


def manifest(records: list[CallRecord] | None = None, *reasons: str) -> RolloutManifest:
    failures = [ManifestFailure(model_call_id=f"f{number}", reason=reason) for number, reason in enumerate(reasons)]
    return RolloutManifest(rollout_id="r1", records=rows() if records is None else records, failures=failures)


def ended(receipt: RolloutReceipt) -> tuple[str | None, str | None, bool, str | None]:
    return (
        receipt.terminal_model_call_id,
        receipt.terminal_selection,
        receipt.capture_poisoned,
        receipt.failure_reason,
    )


class TestPrecedence:
    def test_a_response_names_its_call(self) -> None:
        receipt = build_receipt(manifest(), {"id": "resp-c1", **ANSWER_1}, reward=0.5)
        assert ended(receipt) == ("c1", "response_id", False, None)
        assert receipt.reward == 0.5
        assert receipt.manifest == rows()
        assert receipt.terminal_attribution_reason == "corroborated_by=content"

    def test_content_names_a_call(self) -> None:
        assert ended(build_receipt(manifest(), ANSWER_1, reward=1.0)) == ("c1", "content", False, None)

    @pytest.mark.parametrize("response", [None, {"id": "unknown", "output": []}])
    def test_the_shape_is_asked_when_no_witness_names_a_call(self, response: object) -> None:
        receipt = build_receipt(manifest(), response, reward=None)
        assert ended(receipt) == ("c2", "heuristic", False, None)
        assert receipt.terminal_attribution_reason is not None
        assert receipt.terminal_attribution_reason.endswith(",selected")

    @pytest.mark.parametrize("failed", ["c1", "c2"])
    def test_a_call_that_failed_as_well_is_no_end_by_its_shape(self, failed: str) -> None:
        failure = ManifestFailure(model_call_id=failed, reason=UNCOMMITTED_CALL_REASON)
        contradicting = RolloutManifest(rollout_id="r1", records=rows(), failures=[failure])
        receipt = build_receipt(contradicting, None, reward=1.0)
        wanted = (None, "heuristic", True, None) if failed == "c2" else ("c2", "heuristic", False, None)
        assert ended(receipt) == wanted
        reason = "no_response_object,selected" + (",terminal_failed_as_well" if failed == "c2" else "")
        assert receipt.terminal_attribution_reason == reason
        assert build_receipt(contradicting, {"id": f"resp-{failed}"}, reward=1.0).terminal_model_call_id == failed

    def test_a_declared_response_counts_as_declared(self) -> None:
        receipt = build_receipt(manifest(), None, reward=1.0, declared_response_id="resp-c0")
        assert ended(receipt) == ("c0", "declared", False, None)

    def test_a_call_that_the_agent_named_counts_as_declared(self) -> None:
        receipt = build_receipt(manifest(), None, reward=1.0, explicit_call_id="c0")
        assert ended(receipt) == ("c0", "declared", False, None)

    def test_a_declared_response_that_is_not_there_masks(self) -> None:
        receipt = build_receipt(manifest(), {"id": "resp-c1"}, reward=1.0, declared_response_id="gone")
        assert ended(receipt) == (None, "declared", True, None)
        assert receipt.terminal_attribution_reason == "declared_terminal_not_captured"

    @pytest.mark.parametrize(("response", "stage"), [(None, "declared"), ({"id": "gone"}, "content")])
    def test_a_named_call_that_is_not_there_is_never_guessed(self, response: object, stage: str) -> None:
        receipt = build_receipt(manifest(), response, reward=1.0, explicit_call_id="gone")
        assert ended(receipt) == (None, stage, True, None)

    def test_a_named_call_that_is_not_there_leaves_it_to_the_other_witnesses(self) -> None:
        receipt = build_receipt(manifest(), {"id": "resp-c1"}, reward=1.0, explicit_call_id="gone")
        assert ended(receipt) == ("c1", "response_id", False, None)

    def test_witnesses_that_disagree_mask(self) -> None:
        receipt = build_receipt(manifest(), {"id": "resp-c2", **ANSWER_1}, reward=1.0)
        assert ended(receipt) == (None, "content", True, None)
        assert receipt.terminal_attribution_reason == "witness_disagreement[response_id=c2;content=c1]"

    def test_calls_that_cannot_be_told_apart_mask(self) -> None:
        retry = commit_of_turn(2, call_id="retry", tokens="others").record
        receipt = build_receipt(manifest([*rows(), retry]), None, reward=1.0)
        assert ended(receipt) == (None, "heuristic", True, None)
        assert receipt.terminal_attribution_reason == "no_response_object,ambiguous_terminal"

    def test_nothing_that_was_captured_masks(self) -> None:
        receipt = build_receipt(manifest([]), None, reward=1.0)
        assert ended(receipt) == (None, "heuristic", True, None)
        assert receipt.terminal_attribution_reason == "no_response_object,no_records"


class TestPoison:
    def test_the_first_failure_that_poisons_is_the_reason(self) -> None:
        failures = (UNCOMMITTED_CALL_REASON, "worker_capture_failed", "of another version")
        receipt = build_receipt(manifest(None, *failures), {"id": "resp-c2"}, reward=1.0)
        assert ended(receipt) == ("c2", "response_id", True, "worker_capture_failed")

    def test_an_answer_that_never_committed_does_not_poison(self) -> None:
        for response in ({"id": "resp-c1"}, None):
            receipt = build_receipt(manifest(None, UNCOMMITTED_CALL_REASON), response, reward=1.0)
            assert not receipt.capture_poisoned

    def test_a_response_of_an_answer_that_never_committed_has_no_end(self) -> None:
        receipt = build_receipt(manifest(None, UNCOMMITTED_CALL_REASON), {"id": "never committed"}, reward=1.0)
        assert ended(receipt) == (None, "content", True, None)

    def test_the_primary_reason_is_none_without_one(self) -> None:
        assert primary_reason([]) is None
        assert primary_reason(manifest(None, UNCOMMITTED_CALL_REASON).failures) is None


class TestRows:
    def test_copies_of_a_row_are_one(self) -> None:
        receipt = build_receipt(manifest([*rows(), *rows()]), None, reward=1.0)
        assert receipt.manifest == rows()
        assert ended(receipt) == ("c2", "heuristic", False, None)

    def test_rows_of_one_call_that_differ_mask(self) -> None:
        other = commit_of_turn(1, admitted_at=7.0).record
        receipt = build_receipt(manifest([*rows(), other]), {"id": "resp-c2"}, reward=1.0)
        assert ended(receipt) == (None, None, True, "duplicate_manifest_row")
        assert receipt.manifest == []

    @pytest.mark.parametrize("reward", [math.nan, math.inf])
    def test_a_reward_is_a_number(self, reward: float) -> None:
        with pytest.raises(ValueError, match="reward"):
            build_receipt(manifest(), None, reward=reward)
