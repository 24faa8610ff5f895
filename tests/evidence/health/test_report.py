"""Duplicates, the checks of tasks, order and totals of a report over rows that come in any order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gym_ray.evidence.health import CHECKS, HealthReport, check_rollout, finished_row, unreadable_row


def row(
    task: Any, rollout: int = 0, verdict: str = "healthy", *, bound: bool = True, succeeded: bool = True, **changed: Any
) -> dict[str, Any]:
    made = check_rollout({"_ng_task_index": task, "_ng_rollout_index": rollout})
    findings = [{"check": "agent_turn_hollow", "locator": {"turn": 1}, "detail": {}}] if verdict == "unhealthy" else []
    unobserved = ["rollout_token_count_mismatch"] if verdict == "unobserved" else []
    stats = made["stats"] | {"turns_fully_bound": bound, "turn_call_succeeded": succeeded}
    return {**made, "verdict": verdict, "findings": findings, "unobserved": unobserved, "stats": stats, **changed}


def report(*rows: dict[str, Any], ignored: tuple[str, ...] = ()) -> HealthReport:
    made = HealthReport(frozenset(ignored))
    for place, one in enumerate(rows):
        made.add(place, one)
    return made


def tasks(*rows: dict[str, Any], ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    result: dict[str, Any] = report(*rows, ignored=ignored).summary()["tasks"]
    return result


def test_rows_are_ordered_by_task_and_rollout_numbers_before_names() -> None:
    keys = [(-3, 0), (2, 0), (2, 1), (10, 0), (1 << 40, 0), ("02", 0), (str(10**30), 0), ("b", 0), ("b", 10), ("é", 2)]
    shuffled = random.Random(1).sample(keys, len(keys))
    made = report(*(row(task, rollout) for task, rollout in shuffled))
    assert [shuffled[place] for place, _ in made.ordered()] == keys
    assert list(made.summary()["tasks"]) == ["-3", "2", "10", str(1 << 40), "02", str(10**30), "b", "é"]


def test_an_empty_report_is_one() -> None:
    made = report()
    assert list(made.ordered()) == []
    summary = made.summary()
    assert summary["tasks"] == {}
    assert summary["run"]["artifacts"]["records"] == 0
    assert set(summary["run"]["issues"]) == set(CHECKS)


def test_every_copy_of_an_identity_has_the_finding_and_a_task_counts_it_once() -> None:
    rows = [row(0), row(0, 1), row(0), row("0"), row(1), row(0, stage_index=1)]
    made = report(*rows)
    assert sorted(made.ordered()) == [(0, 3), (1, 1), (2, 3), (3, 3), (4, 1), (5, 1)]
    summary = made.summary()
    assert summary["run"]["issues"]["rollout_duplicate_identity"] == 3
    assert summary["run"]["verdicts"] == {"healthy": 3, "unhealthy": 3, "unobserved": 0}
    assert summary["tasks"]["0"] == {"repeats": 3, "healthy": 2, "unhealthy": 1, "unobserved": 0, "flags": []}
    assert made.first_findings == {"rollout_duplicate_identity": "0-0"}


def test_a_finished_row_has_the_duplicate_behind_what_could_not_be_read() -> None:
    broken = unreadable_row("r.jsonl", 4, "the line is not JSON")
    broken["findings"].append({"check": "agent_turn_hollow", "detail": {}})
    finished = finished_row(broken, 2)
    assert [finding["check"] for finding in finished["findings"]] == [
        "record_unreadable",
        "rollout_duplicate_identity",
        "agent_turn_hollow",
    ]
    assert "stats" not in finished
    ignored = finished_row(row(0), 2, frozenset({"rollout_duplicate_identity"}))
    assert ignored["verdict"] == "healthy"


def test_copies_whose_verdicts_differ_are_an_unobserved_repeat() -> None:
    ignored = ("rollout_duplicate_identity",)
    assert tasks(row(0), row(0, 0, "unhealthy"), ignored=ignored)["0"]["unobserved"] == 1
    assert tasks(row(0), row(0), ignored=ignored)["0"]["healthy"] == 1


@pytest.mark.parametrize(
    ("verdicts", "flagged", "seen"),
    [
        (["unhealthy"], False, False),
        (["unhealthy", "unobserved"], False, False),
        (["unhealthy", "unhealthy", "unobserved"], True, True),
        (["unhealthy", "healthy"], False, True),
    ],
)
def test_a_task_is_consistently_unhealthy_when_all_its_computable_repeats_are(
    verdicts: list[str], flagged: bool, seen: bool
) -> None:
    summary = report(*(row(0, number, verdict) for number, verdict in enumerate(verdicts))).summary()
    check = "task_consistently_unhealthy"
    assert (check in summary["tasks"]["0"]["flags"]) is flagged
    assert summary["run"]["artifacts"]["coverage"][check]["evaluated"] == seen
    assert summary["run"]["issues"][check] == flagged


def test_a_task_without_a_successful_call_is_flagged_only_when_all_its_calls_are_known() -> None:
    check = "task_no_successful_model_calls"
    failed = [row(0, number, succeeded=False) for number in range(3)]
    assert tasks(*failed)["0"]["flags"] == [check]
    assert tasks(*failed, ignored=(check,))["0"]["flags"] == []
    assert tasks(*failed, row(0, 3, bound=False, succeeded=False))["0"]["flags"] == []
    assert tasks(*failed, row(0, 3))["0"]["flags"] == []


def test_severity_counts_findings_of_rollouts_and_tasks() -> None:
    made = report(row(0, 0, "unhealthy", succeeded=False), row(0, 1, "unhealthy", succeeded=False))
    summary = made.summary()["run"]
    # Two hollow turns and a task that is always unhealthy; a task without a successful call.
    assert summary["severity"] == {"error": 1, "warning": 3}
    assert made.first_findings["task_no_successful_model_calls"] == "task 0"


def test_ignored_checks_are_covered_by_nobody() -> None:
    summary = report(row(0), row(1), ignored=("model_call_failed", "task_consistently_unhealthy")).summary()["run"]
    assert summary["ignored_checks"] == ["model_call_failed", "task_consistently_unhealthy"]
    coverage = summary["artifacts"]["coverage"]
    assert coverage["model_call_failed"] == {"evaluated": 0, "unobserved": 0, "ignored": 2}
    assert coverage["task_consistently_unhealthy"]["ignored"] == 2


@pytest.mark.parametrize("stage", ["two", 1.5, True, [], {}, 1 << 63, -(1 << 63), 10**30])
def test_a_stage_that_is_no_index_is_none(stage: Any) -> None:
    made = check_rollout({"_ng_task_index": 0, "_ng_rollout_index": 0, "stage_index": stage})
    assert "stage_index" not in made
    assert list(report(made, made).ordered()) == [(0, 2), (1, 2)]


def test_every_stage_is_one_of_its_own_also_below_zero() -> None:
    keyed = {"_ng_task_index": 0, "_ng_rollout_index": 0}
    stages: list[int | None] = [None, -1, 0, 1, -(1 << 63) + 1, (1 << 63) - 1]
    made = report(*(check_rollout({**keyed, "stage_index": stage}) for stage in stages))
    assert {copies for _, copies in made.ordered()} == {1}


def test_copies_of_a_repeat_are_bound_only_when_each_of_them_is() -> None:
    rows = [row(0, bound=True, succeeded=False), row(0, bound=False, succeeded=False)]
    ignored = ("rollout_duplicate_identity",)
    assert "task_no_successful_model_calls" not in tasks(*rows, ignored=ignored)["0"]["flags"]
    assert "task_no_successful_model_calls" in tasks(rows[0], rows[0], ignored=ignored)["0"]["flags"]
