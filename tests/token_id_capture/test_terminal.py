from __future__ import annotations

from typing import Any

import pytest

from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.fingerprint import assistant_fingerprint
from gym_ray.token_id_capture.staging import CallRecord
from gym_ray.token_id_capture.terminal import TerminalAttribution, resolve_terminal


def answer(*texts: str, **members: Any) -> dict[str, Any]:
    return {"output": [{"type": "message", "role": "assistant", "content": text} for text in texts], **members}


def rollout() -> TokenRollout:
    told = TokenRollout()
    told.call("c1", [1], [2], response_id="resp_1")
    told.call("c2", [3], [4], "c1", response_id="resp_2")
    return told


def test_a_missing_explicit_call_leaves_the_decision_to_the_others() -> None:
    found = resolve_terminal(rollout().packed(), answer("said by c2"), "unknown")
    reason = "explicit_terminal_not_captured,response_has_no_id"
    assert found == TerminalAttribution("c2", "content_output", reason)


def test_a_missing_declared_response_stops_everything_else() -> None:
    found = resolve_terminal(rollout().packed(), answer("said by c2"), "unknown", declared_response_id="resp_9")
    assert found == (None, "", "explicit_terminal_not_captured,declared_terminal_not_captured")


def test_copies_of_one_record_are_one_call() -> None:
    entries = rollout().packed()
    assert resolve_terminal([*entries, *entries], {"id": "resp_2"}).model_call_id == "c2"


def test_calls_of_one_token_sequence_are_interchangeable_and_the_smallest_id_stands_for_them() -> None:
    told = rollout()
    told.call("c2b", [3], [4], "c1", response_id="resp_2")
    for digests in (True, False):
        if not digests:
            for record in told.records.values():
                record["digest"] = None
        assert resolve_terminal(told.packed(), {"id": "resp_2"}).model_call_id == "c2"
    told.call("c2c", [3], [5], "c1", response_id="resp_2")
    assert resolve_terminal(told.packed(), {"id": "resp_2"}).reason == "response_id_ambiguous,response_has_no_output"


def test_a_whole_record_and_a_delta_of_one_sequence_are_interchangeable() -> None:
    told = rollout()
    told.call("c2b", [3], [4], "c1", delta=False, response_id="resp_2")
    assert [record.prompt_is_delta for record in told.packed()] == [False, True, False]
    assert resolve_terminal(told.packed(), {"id": "resp_2"}).model_call_id == "c2"
    told.records["c2b"]["digest"] = None  # what claims nothing is compared by its arrays
    assert resolve_terminal(told.packed(), {"id": "resp_2"}).model_call_id is None


def test_deltas_of_different_parents_are_different_sequences() -> None:
    told = rollout()
    told.call("d1", [7], [2], response_id="resp_x")
    told.call("d2", [3], [4], "d1", response_id="resp_2")
    for record in told.records.values():
        record["digest"] = None
    assert resolve_terminal(told.packed(), {"id": "resp_2"}).model_call_id is None


def test_a_response_that_is_nothing_names_nothing() -> None:
    for response in (None, "text", 5, [answer("said by c2")]):
        assert resolve_terminal(rollout().packed(), response) == (None, "", "no_response_object")
    for output in (None, [], "text", [1, None]):
        found = resolve_terminal(rollout().packed(), {"id": [7], "output": output})
        assert found == (None, "", "response_has_no_id,response_has_no_output")


def test_records_that_cannot_be_put_into_words_match_nothing() -> None:
    told = rollout()
    told.records["c1"]["output_items"] = [{"role": "assistant", "content": 5}]
    entries = told.entries()
    entries.append(entries[1].model_copy(update={"model_call_id": "bad", "prompt_token_ids": [-1]}))
    assert resolve_terminal(entries, answer("said by c2")).model_call_id == "c2"


def test_witnesses_that_disagree_leave_no_end() -> None:
    found = resolve_terminal(rollout().packed(), answer("said by c1", id="resp_2"), declared_response_id="resp_2")
    assert found.model_call_id is None
    assert found.reason == "witness_disagreement[declared=c2;response_id=c2;content_output=c1]"


def test_witnesses_of_one_sequence_agree_and_the_first_names_the_call() -> None:
    told = rollout()
    told.call("a2", [3], [4], "c1", response_id="resp_9")
    found = resolve_terminal(told.packed(), answer("said by a2"), declared_response_id="resp_2")
    assert (found.model_call_id, found.method) == ("c2", "declared")


def test_custody_rows_and_records_are_asked_alike() -> None:
    custody = [commit_of_turn(turn, "r1").record for turn in range(2)]
    rows = [*rollout().packed(), *custody]
    assert resolve_terminal(rows, {"id": "resp-c1"}) == ("c1", "response_id", "response_has_no_output")
    assert resolve_terminal(rows, {"id": 7}).reason == "response_id_no_match,response_has_no_output"
    assert resolve_terminal(custody, answer("answer 0", "answer 1")).method == "content"


def test_a_response_that_is_nested_too_deep_or_counted_too_far_is_no_witness() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    found = resolve_terminal(rollout().packed(), {"id": 10**5000, **answer(deep)})
    assert found == (None, "", "response_has_no_id,response_output_unfingerprintable")
    assert resolve_terminal(rollout().packed(), {"id": 2**64}).reason == "response_has_no_id,response_has_no_output"
    assert resolve_terminal(rollout().packed(), {"id": 7}).reason == "response_id_no_match,response_has_no_output"


def custody(turn: int, call_id: str, *texts: str, **changed: Any) -> CallRecord:
    written = assistant_fingerprint(answer(*texts)["output"]) if texts else None
    return commit_of_turn(turn, call_id=call_id, **{"output_fingerprint": written, **changed}).record


def test_a_true_is_no_id() -> None:
    assert resolve_terminal(rollout().packed(), {"id": True}).reason == "response_has_no_id,response_has_no_output"


def test_the_tail_of_a_transcript_is_all_that_the_model_wrote_last() -> None:
    rows = [custody(0, "a", "one"), custody(1, "b", "two", "three"), custody(2, "c", "three")]
    asked = {"role": "user", "content": "more"}
    output = [*answer("one")["output"], asked, *answer("two", "three")["output"]]
    assert resolve_terminal(rows, {"output": output}).model_call_id == "b"
    assert resolve_terminal(rows, {"output": [*output, asked]}).reason == "response_has_no_id,no_content_match"


def test_what_a_call_continued_to_and_what_another_wrote_are_equally_good() -> None:
    same = assistant_fingerprint(answer("same")["output"])
    rows = [custody(1, "a", continuation_fingerprint=same), custody(2, "b", "same")]
    assert resolve_terminal(rows, answer("same")).reason == "response_has_no_id,content_ambiguous"
    assert resolve_terminal(rows[:1], answer("same")).model_call_id == "a"
    assert resolve_terminal(rows[1:], answer("same")).model_call_id == "b"


@pytest.mark.parametrize(
    "member", [{"chain_hash": "0" * 64}, {"cumulative_hash": "0" * 64}, {"delta_len": 11, "cum_len": 11}]
)
def test_custody_rows_are_of_one_sequence_only_if_nothing_about_it_differs(member: dict[str, Any]) -> None:
    rows = [custody(0, name, response_id="resp_1") for name in "ab"]
    assert resolve_terminal(rows, {"id": "resp_1"}).model_call_id == "a"
    rows[1] = custody(0, "b", response_id="resp_1", **member)
    assert resolve_terminal(rows, {"id": "resp_1"}).reason == "response_id_ambiguous,response_has_no_output"
