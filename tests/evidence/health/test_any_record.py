"""Whatever a stored record holds, it gets a verdict; and a report does not depend on the order of its rows."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.evidence.health import CHECKS, HealthReport, check_rollout, check_stored, finished_row

POLICY = {"type": "responses_api_models", "name": "policy"}
RECORD = {
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
    "response": {"usage": {"input_tokens": 20, "output_tokens": 10}},
    "ng_trajectory": {
        "task_id": "0",
        "rollout_id": "0-0",
        "invocations": [
            {
                "invocation_id": "root",
                "model_calls": [{"model_call_id": "c0"}, {"model_ref": POLICY, "response_id": "r1"}],
            }
        ],
        "turns": [
            {
                "invocation_id": "root",
                "task_id": "0",
                "rollout_id": "0-0",
                "turn_no": number + 1,
                "timestamp": 1.0,
                "step_count": 0,
                "answer": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}],
                "reasoning_content": None,
                "model_calls": [{"model_call_id": f"c{number}", "model_ref": POLICY}],
            }
            for number in range(2)
        ],
        "model_calls": [
            {
                "model_call_id": f"c{number}",
                "started_at": 1.0 + number,
                "response": {"output": []},
                "response_metadata": {
                    "response_id": f"r{number}",
                    "model_ref": POLICY,
                    "status_code": 500 * number,
                    "finish_reason": "length",
                },
                "token_stats": {"prompt_tokens": 10, "completion_tokens": 5},
            }
            for number in range(2)
        ],
        "gaps": [{"code": "model_call_reference_conflict", "invocation_id": "root", "detail": "model_calls:c1"}],
    },
}

KEYS = st.sampled_from(["type", "name", "text", "content", "code"])
TEXTS = st.sampled_from(["", " ", "c0", "r1", "length"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 600) | st.floats(allow_nan=True) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += nodes(item, (*path, key))
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(nodes(RECORD)), anything), min_size=1, max_size=3), st.booleans())
def test_a_record_changed_anywhere_gets_a_whole_row_or_a_reason(changes: list[Any], removed: bool) -> None:
    record = copy.deepcopy(RECORD)
    for path, value in changes:
        holder: Any = record
        try:
            for key in path[:-1]:
                holder = holder[key]
            if removed:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    answer = check_stored(json.loads(json.dumps(record)), ignored=frozenset())
    if isinstance(answer, str):
        return
    assert {finding["check"] for finding in answer["findings"]} <= set(CHECKS) - {"check_execution_error"}
    unobserved = set(answer["unobserved"])
    assert unobserved <= set(CHECKS)
    assert not unobserved & {finding["check"] for finding in answer["findings"]}
    expected = "unhealthy" if answer["findings"] else "unobserved" if unobserved else "healthy"
    assert answer["verdict"] == expected
    report = HealthReport()
    report.add(0, answer)
    assert report.summary()["run"]["verdicts"][expected] == 1


row = st.builds(
    lambda task, rollout, hollow, bound, good: _row(task, rollout, hollow=hollow, bound=bound, good=good),
    st.sampled_from([0, 1, "0", "a", 10]),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def _row(task: Any, rollout: int, *, hollow: bool, bound: bool, good: bool) -> dict[str, Any]:
    made = check_rollout({"_ng_task_index": task, "_ng_rollout_index": rollout})
    findings = [{"check": "agent_turn_hollow", "detail": {}}] if hollow else []
    stats = made["stats"] | {"turns_fully_bound": bound, "turn_call_succeeded": good}
    return made | {
        "verdict": "unhealthy" if hollow else "healthy",
        "findings": findings,
        "unobserved": [],
        "stats": stats,
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(row, max_size=12), st.randoms(use_true_random=False), st.booleans())
def test_a_report_does_not_depend_on_the_order_of_its_rows(rows: list[Any], random: Any, ignore: bool) -> None:
    ignored = frozenset({"rollout_duplicate_identity"} if ignore else ())
    shuffled = random.sample(rows, len(rows))
    summaries, finished = [], []
    for order in (rows, shuffled):
        report = HealthReport(ignored)
        for place, one in enumerate(order):
            report.add(place, one)
        finished.append([finished_row(order[place], copies, ignored) for place, copies in report.ordered()])
        summaries.append(report.summary())
    assert summaries[0] == summaries[1]
    one, other = (Counter(json.dumps(row, sort_keys=True) for row in rows) for rows in finished)
    assert one == other
    keys = [[(str(row["_ng_task_index"]), row["_ng_rollout_index"]) for row in rows] for rows in finished]
    assert keys[0] == keys[1]
    counted = Counter((str(row["_ng_task_index"]), row["_ng_rollout_index"]) for row in rows)
    assert summaries[0]["tasks"].keys() == {task for task, _ in counted}
    for task, entry in summaries[0]["tasks"].items():
        assert entry["repeats"] == sum(name == task for name, _ in counted)
        assert entry["healthy"] + entry["unhealthy"] + entry["unobserved"] == entry["repeats"]


@pytest.mark.parametrize("task", [{}, [], {"a": 1}])
def test_a_task_that_is_no_scalar_names_none(task: Any) -> None:
    record = {"_ng_task_index": task, "_ng_rollout_index": 0}
    answer = check_stored(record, ignored=frozenset())
    assert answer == "the record names no task: _ng_task_index is missing or no scalar"
