"""What the checks of one record find, and what makes them blind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.evidence.health import CHECKS, PEER_RULES, RULES_VERSION, check_rollout, check_stored, unknown_checks

POLICY = {"type": "responses_api_models", "name": "policy"}
JUDGE = {"type": "responses_api_models", "name": "judge"}
SEEN_IN_RECORDS = CHECKS[3:12]


def call(name: str, **changed: Any) -> dict[str, Any]:
    """A captured call that succeeded; ``changed`` are members of the call, its metadata or its tokens."""
    made: dict[str, Any] = {
        "model_call_id": name,
        "started_at": None,
        "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}]},
        "response_metadata": {"response_id": f"r-{name}", "model_ref": POLICY, "status_code": 200},
        "token_stats": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    for key, value in changed.items():
        part = next((made[p] for p in ("response_metadata", "token_stats") if key in made[p]), None)
        if part is not None:
            part[key] = value
        elif key in ("error_category", "response_status", "finish_reason"):
            made["response_metadata"][key] = value
        else:
            made[key] = value
    return made


def turn(number: int, *names: str, **changed: Any) -> dict[str, Any]:
    return {
        "invocation_id": "root",
        "task_id": "0",
        "rollout_id": "0-0",
        "turn_no": number,
        "timestamp": float(number),
        "step_count": 0,
        "answer": "a",
        "model_calls": [{"model_call_id": name} for name in names],
        **changed,
    }


def invocation(*names: str, name: str = "root") -> dict[str, Any]:
    return {"invocation_id": name, "model_calls": [{"model_call_id": call_id} for call_id in names]}


def record(
    turns: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    *gaps: str | dict[str, Any],
    invocations: tuple[dict[str, Any], ...] = (),
    usage: tuple[int, int] | None = None,
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "ng_trajectory": {
            "task_id": "0",
            "rollout_id": "0-0",
            "invocations": list(invocations),
            "turns": turns,
            "model_calls": calls,
            "gaps": [{"code": gap} if isinstance(gap, str) else gap for gap in gaps],
        },
    }
    if usage is not None:
        made["response"] = {"usage": {"input_tokens": usage[0], "output_tokens": usage[1]}}
    return made


def found(record: dict[str, Any], check: str, **options: Any) -> list[dict[str, Any]] | None:
    """Findings of one check without its name; None when it could not look."""
    row = check_rollout(record, **options)
    mine = [
        {k: v for k, v in finding.items() if k != "check"} for finding in row["findings"] if finding["check"] == check
    ]
    assert not (mine and check in row["unobserved"])
    return None if check in row["unobserved"] else mine


def test_a_whole_record_is_healthy_and_named_by_its_attempt() -> None:
    whole = record([turn(1, "c0")], [call("c0")], usage=(10, 5)) | {"_ng_attempt_index": 2}
    row = check_rollout(whole)
    assert row["rollout_id"] == "0-0-a2"
    assert (row["verdict"], row["findings"], row["unobserved"]) == ("healthy", [], [])
    assert check_rollout(whole, trusted=True) == row


@pytest.mark.parametrize(
    "gap",
    [
        "model_calls_unavailable",
        "model_call_capture_incomplete",
        "model_call_capture_records_unreadable",
        "model_call_capture_unreadable",
        "model_call_capture_open_calls",
        "model_call_capture_writer_unreachable",
        "model_call_capture_calls_missing",
    ],
)
def test_a_capture_that_is_not_known_to_be_whole_blinds_all_checks_of_calls(gap: str) -> None:
    broken = record([turn(1, "zz")], [call("c0", status_code=500, completion_tokens=0)], gap, usage=(1, 1))
    row = check_rollout(broken)
    assert row["verdict"] == "unobserved"
    assert set(row["unobserved"]) == set(SEEN_IN_RECORDS) - {"rollout_missing_agent_turns", "agent_turn_hollow"}


def test_lost_turns_and_lost_projections_blind_what_needs_them() -> None:
    lost = check_rollout(record([], [call("c0")], "turns_unavailable", invocations=(invocation("c0"),)))
    assert {"rollout_missing_agent_turns", "agent_turn_hollow"} <= set(lost["unobserved"])
    projected = check_rollout(
        {"ng_trajectory": {"task_id": "0", "rollout_id": "0", "gaps": [{"code": "trajectory_projection_failed"}]}}
    )
    assert tuple(projected["unobserved"]) == SEEN_IN_RECORDS


def test_an_invalid_trajectory_is_a_finding_and_never_trusted_for_anything() -> None:
    broken = record([turn(1, "c0"), turn(1, "c0")], [call("c0")])
    row = check_rollout(broken)
    assert [finding["check"] for finding in row["findings"]] == ["record_unreadable"]
    assert row["findings"][0]["detail"]["error"].startswith("ng_trajectory: Value error, ")
    assert tuple(row["unobserved"]) == SEEN_IN_RECORDS
    assert check_rollout(broken, ignored=frozenset({"record_unreadable"}))["verdict"] == "unobserved"


@pytest.mark.parametrize("trusted", [True, False])
def test_a_trajectory_that_is_no_object_is_never_trusted(trusted: bool) -> None:
    row = check_rollout({"_ng_task_index": 0, "_ng_rollout_index": 0, "ng_trajectory": "text"}, trusted=trusted)
    assert [finding["check"] for finding in row["findings"]] == ["record_unreadable"]


def test_an_invalid_trajectory_names_its_first_problem() -> None:
    broken = record([turn(1, "c0", turn_no=0, timestamp="soon")], [call("c0")])
    error = check_rollout(broken)["findings"][0]["detail"]["error"]
    assert error == "ng_trajectory.turns.0.turn_no: Input should be greater than or equal to 1 (and 1 more)"


def test_lines_that_are_no_records_say_why() -> None:
    for value, problem in [
        ([1], "not a JSON object"),
        ({"_ng_rollout_index": 0}, "_ng_task_index"),
        ({"_ng_task_index": 0, "_ng_rollout_index": True}, "_ng_rollout_index"),
    ]:
        answer = check_stored(value, ignored=frozenset())
        assert isinstance(answer, str)
        assert problem in answer


def test_failed_calls_are_told_apart_from_those_that_were_retried() -> None:
    retried = [call("c0", status_code=429, started_at=1.0), call("c1", started_at=2.0)]
    findings = found(record([turn(1, "c0"), turn(2, "c1")], retried), "model_call_failed")
    assert findings == [
        {"locator": {"call_id": "c0"}, "detail": {"status": 429, "error_category": None, "terminal": False}}
    ]
    assert found(record([turn(1, "c0", "c1")], retried), "rollout_ended_on_failed_model_call") == []
    for change in ({"error_category": "timeout"}, {"response_status": "cancelled"}, {"status_code": 400}):
        ended = record([turn(1, "c0")], [call("c0"), call("c1", **change)])
        assert check_rollout(ended)["stats"]["failed_calls"], change


def test_calls_that_started_together_do_not_end_a_rollout_unless_all_failed() -> None:
    together = [call("c0", started_at=1.0), call("c1", started_at=1.0, status_code=500)]
    assert found(record([turn(1, "c0")], together), "rollout_ended_on_failed_model_call") == []
    each = [call("c0", started_at=1.0, model_ref=JUDGE), call("c1", started_at=1.0, status_code=500)]
    ended = found(record([turn(1, "c0")], each), "rollout_ended_on_failed_model_call")
    assert ended is not None
    assert [finding["locator"]["call_id"] for finding in ended] == ["c1"]


def test_tokens_are_looked_at_only_in_owned_calls() -> None:
    calls = [call("c0", completion_tokens=0), call("c1", prompt_tokens=None), call("c2", prompt_tokens=None)]
    mixed = record([turn(1, "c0")], calls, invocations=(invocation("c1"),))
    assert found(mixed, "model_call_zero_completion_tokens") == [
        {"locator": {"call_id": "c0"}, "detail": {"completion_tokens": 0}}
    ]
    assert found(mixed, "model_call_missing_token_counts") == [
        {"locator": {"call_id": "c1"}, "detail": {"missing": ["prompt_tokens"]}}
    ]
    assert found(record([turn(1)], calls), "model_call_zero_completion_tokens") is None


def test_token_totals_are_compared_with_every_owned_call_and_by_the_peers_rules_with_those_of_turns() -> None:
    calls = [call("c0"), call("c1"), call("judge", model_ref=JUDGE)]
    two = record([turn(1, "c0")], calls, invocations=(invocation("c0", "c1"),), usage=(20, 10))
    assert RULES_VERSION != PEER_RULES
    assert found(two, "rollout_token_count_mismatch") == []
    assert found(two, "rollout_token_count_mismatch", rules_version=PEER_RULES) == [
        {
            "detail": {
                "prompt_tokens": 20,
                "completion_tokens": 10,
                "capture_prompt_tokens": 10,
                "capture_completion_tokens": 5,
            }
        }
    ]
    one = record([turn(1, "c0")], calls, invocations=(invocation("c0", "c1"),), usage=(10, 5))
    assert found(one, "rollout_token_count_mismatch")
    assert found(one, "rollout_token_count_mismatch", rules_version=PEER_RULES) == []


def test_token_totals_are_not_compared_with_half_known_ones() -> None:
    for blind in (
        record([turn(1, "c0")], [call("c0")]),
        record([turn(1, "c0", "zz")], [call("c0")], usage=(10, 5)),
        record([turn(1, "c0")], [call("c0", completion_tokens=None)], usage=(10, 5)),
        record([turn(1, "c0")], [call("c0")], "turn_model_call_scope_incomplete", usage=(10, 5)),
        record([turn(1)], [call("c0")], usage=(10, 5)),
    ):
        assert found(blind, "rollout_token_count_mismatch") is None
        assert found(blind, "rollout_token_count_mismatch", rules_version=PEER_RULES) is None


def test_references_that_name_no_call_or_several_or_anothers_are_named_once() -> None:
    twins = [call("", response_id="same"), call("", response_id="same")]
    several = record(
        [
            turn(
                1,
                "zz",
                "zz",
                model_calls=[
                    {"model_call_id": "zz"},
                    {"model_call_id": "zz"},
                    {"model_ref": POLICY, "response_id": "same"},
                ],
            )
        ],
        twins,
        {"code": "model_call_reference_ambiguous", "invocation_id": "root", "detail": "same"},
        {"code": "model_call_reference_conflict", "invocation_id": "root", "detail": "model_calls:c7"},
    )
    assert found(several, "trajectory_capture_mismatch") == [
        {"locator": {"call_id": "zz"}, "detail": {"kind": "missing_captured_call"}},
        {"locator": {"call_id": "same"}, "detail": {"kind": "duplicated_captured_call"}},
        {
            "locator": {"call_id": "c7"},
            "detail": {
                "kind": "conflicting_call_ownership",
                "observation_gap": "model_call_reference_conflict",
                "invocation_id": "root",
            },
        },
    ]
    assert check_rollout(several)["stats"]["replayed_calls"] == 1
    assert found(record([turn(1)], [call("c0")]), "trajectory_capture_mismatch") is None


def test_hollow_turns_name_their_invocation_where_there_are_several() -> None:
    one = record([turn(1, answer=" \n")], [])
    assert found(one, "agent_turn_hollow") == [
        {"locator": {"turn": 1}, "detail": {"reason": "the turn has no content, no reasoning and no tool call"}}
    ]
    assert found(one, "rollout_missing_agent_turns")
    two = record([turn(1, "c0", answer=None), turn(1, "c0", invocation_id="sub")], [call("c0")])
    hollow = found(two, "agent_turn_hollow")
    assert hollow is not None
    assert hollow[0]["locator"] == {"turn": 1, "invocation_id": "root"}
    assert found(two, "rollout_missing_agent_turns") == []


def test_a_runaway_generation_said_nothing_before_the_limit() -> None:
    cut = {"finish_reason": "max_tokens"}
    silent = record(
        [turn(1, "c0")], [call("c0", response={"content": [{"type": "thinking", "thinking": "hm"}]}, **cut)]
    )
    assert found(silent, "model_call_runaway_generation") == [
        {"locator": {"call_id": "c0"}, "detail": {"finish_reason": "max_tokens"}}
    ]
    assert found(record([turn(1, "c0")], [call("c0", **cut)]), "model_call_runaway_generation") == []
    unseen = record([turn(1, "c0")], [call("c0", response=None, **cut)])
    assert found(unseen, "model_call_runaway_generation") is None
    spoke, unseen_call = call("c1", response={"content": "text"}, **cut), call("c0", response=None, **cut)
    assert found(record([turn(1, "c0", "c1")], [unseen_call, spoke]), "model_call_runaway_generation") is None
    silent_call = call("c1", response={"content": ""}, **cut)
    assert found(record([turn(1, "c0", "c1")], [unseen_call, silent_call]), "model_call_runaway_generation") == [
        {"locator": {"call_id": "c1"}, "detail": {"finish_reason": "max_tokens"}}
    ]


@pytest.mark.parametrize(
    ("said", "failed"),
    [
        ({"status_code": 400}, True),
        ({"status_code": 399}, False),
        ({"status_code": None}, False),
        ({"error_category": "timeout"}, True),
        ({"response_status": "failed"}, True),
        ({"response_status": "error"}, True),
        ({"response_status": "cancelled"}, True),
        ({"response_status": "incomplete"}, False),
        ({"response_status": "completed"}, False),
    ],
)
def test_what_makes_a_call_a_failed_one(said: dict[str, Any], failed: bool) -> None:
    whole = record([turn(1, "c0")], [call("c0", **said)])
    assert bool(found(whole, "model_call_failed")) is failed
    assert bool(found(whole, "rollout_ended_on_failed_model_call")) is failed


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        ("length", True),
        ("max_output_tokens", True),
        ("max_tokens", True),
        ("stop", False),
        ("tool_calls", False),
        (None, False),
    ],
)
def test_what_ends_a_generation_at_its_limit(reason: str | None, cut: bool) -> None:
    silent = record([turn(1, "c0")], [call("c0", response={"output": []}, finish_reason=reason)])
    assert bool(found(silent, "model_call_runaway_generation")) is cut


def test_payloads_by_reference_are_not_taken_for_silence() -> None:
    compact = record(
        [turn(1, "c0", answer=[])],
        [call("c0", response={"output": []}, finish_reason="length")],
        "payloads_by_reference",
    )
    row = check_rollout(compact)
    assert row["findings"] == []
    assert {"rollout_missing_agent_turns", "agent_turn_hollow", "model_call_runaway_generation"} <= set(
        row["unobserved"]
    )


def test_a_check_that_breaks_is_a_finding_and_unobserved() -> None:
    unnumbered = turn(1, "c0", answer=None)
    del unnumbered["turn_no"]
    strange = record([unnumbered], [call("c0", status_code=500)])
    row = check_rollout(strange, trusted=True)
    assert row["findings"][0] == {
        "check": "check_execution_error",
        "detail": {"failed_check": "agent_turn_hollow", "error": "KeyError: 'turn_no'"},
    }
    assert "agent_turn_hollow" in row["unobserved"]
    assert "model_call_failed" in {finding["check"] for finding in row["findings"]}
    ignored = check_rollout(strange, trusted=True, ignored=frozenset({"check_execution_error"}))
    assert "check_execution_error" not in {finding["check"] for finding in ignored["findings"]}
    assert "agent_turn_hollow" in ignored["unobserved"]


def test_answers_are_looked_into_however_deep_they_are() -> None:
    answer: Any = [" "]
    for _ in range(5000):
        answer = [answer]
    assert found(record([turn(1, "c0", answer=answer)], [call("c0")]), "agent_turn_hollow", trusted=True)


def test_ignored_checks_do_not_run_and_unknown_ones_are_named() -> None:
    failed = record([turn(1, "c0")], [call("c0", status_code=500)], usage=(10, 5))
    row = check_rollout(failed, ignored=frozenset({"model_call_failed", "rollout_ended_on_failed_model_call"}))
    assert row["verdict"] == "healthy"
    assert unknown_checks(["model_call_failed", "nope", "model_call_hollow"]) == ["model_call_hollow", "nope"]


def test_a_row_is_plain_json() -> None:
    row = check_rollout(record([turn(1, "zz")], [call("c0", status_code=500)]))
    assert json.loads(json.dumps(row)) == row


def test_a_call_without_a_time_may_have_been_the_last_one() -> None:
    failed, unknown = call("c0", started_at=5.0, status_code=500), call("c1")
    assert found(record([turn(1, "c0", "c1")], [failed, unknown]), "rollout_ended_on_failed_model_call") == []


@pytest.mark.parametrize(("started_at", "terminal"), [(4.0, True), (5.0, False), (6.0, False)])
def test_a_failure_is_terminal_when_no_success_began_with_it_or_later(started_at: float, terminal: bool) -> None:
    calls = [call("c0", started_at=5.0, status_code=500), call("c1", started_at=started_at)]
    findings = found(record([turn(1, "c0", "c1")], calls), "model_call_failed")
    assert [finding["detail"]["terminal"] for finding in findings or ()] == [terminal]


def test_references_to_one_id_that_say_different_things_are_looked_up_each() -> None:
    stranger = {"type": "responses_api_models", "name": "another"}
    first = turn(1) | {"model_calls": [{"model_call_id": "c0", "model_ref": stranger}]}
    both = record([first, turn(2, "c0")], [call("c0", completion_tokens=0)])
    assert found(both, "trajectory_capture_mismatch") == [
        {"locator": {"call_id": "c0"}, "detail": {"kind": "missing_captured_call"}}
    ]
    assert found(both, "model_call_zero_completion_tokens") is not None
