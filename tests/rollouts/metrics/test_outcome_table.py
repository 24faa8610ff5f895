from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.facts import RecordFacts, facts_of_record
from gym_ray.rollouts.metrics.outcome_table import OutcomeTable


def key(task: Any, repeat: Any, agent: str = "a") -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": agent}}


def facts(task: Any, repeat: Any, agent: str = "a", **fields: Any) -> RecordFacts:
    found = RecordFacts.parse(facts_of_record({**key(task, repeat, agent), **fields}, {}))
    assert found is not None
    return found


def states(table: OutcomeTable, agent: str | None = None) -> dict[tuple[Any, Any], str]:
    return {(task.task, one.repeat): one.state for task in table.tasks(agent) for one in task.rollouts}


def test_the_last_record_of_a_rollout_counts_and_a_record_more_than_any_failure(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        table.add_record(facts(0, 0, reward=0.25))
        table.add_record(facts(0, 0, reward=0.75))
        for message in ("first", "second"):
            table.add_failure(facts(0, 0, _ng_failure_class=message))
            table.add_failure(facts(0, 1, _ng_failure_class=message))
        for repeat in range(3):
            table.add_row(key(0, repeat))
        (task,) = table.tasks()
    done, failed, missing = task.rollouts
    assert (done.state, failed.state, missing.state) == ("done", "failed", "missing")
    assert done.reply is not None
    assert done.reply["reward"] == 0.75
    assert done.duplicates == 1
    assert [one["failure_class"] for one in done.failures] == ["first", "second"]
    assert failed.summary is not None
    assert failed.summary["failure_class"] == "second"
    assert len(failed.failures) == 1
    assert (missing.reply, missing.summary, missing.failures) == (None, None, ())


def test_tasks_come_in_their_order_whatever_order_they_ended_in(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        for task in ("b", 10, 9, "a", 2**70, -1):
            for repeat in (10, 9):
                table.add_record(facts(task, repeat))
        assert list(states(table)) == [(t, r) for t in (-1, 9, 10, 2**70, "a", "b") for r in (9, 10)]
        assert table.task_count() == 6


def test_true_one_and_text_one_are_three_tasks(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        for task in (1, True, "1"):
            table.add_record(facts(task, 0))
        assert len(list(table.tasks())) == 3


def test_records_that_name_no_rollout_are_never_taken_for_one(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        for _ in range(3):
            table.add_record(facts(None, None))
            table.add_record(facts(4, None))
        assert [len(task.rollouts) for task in table.tasks()] == [3, 3]
        assert {one.repeat for task in table.tasks() for one in task.rollouts} == {None}


def test_one_agent_has_its_own_rollouts_only(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        table.add_record(facts(0, 0, "a"))
        table.add_record(facts(0, 1, "b"))
        table.add_record(facts(1, 0, "b"))
        assert table.agents() == ["a", "b"]
        assert list(states(table, "a")) == [(0, 0)]
        assert list(states(table, "b")) == [(0, 1), (1, 0)]


def test_no_rows_are_no_tasks(tmp_path: Path) -> None:
    with OutcomeTable(tmp_path) as table:
        assert list(table.tasks()) == []
    with pytest.raises(ValueError, match="closed"):
        table.add_record(facts(0, 0))
    assert list(tmp_path.iterdir()) == [], "the temporary file never has a name"


events = st.lists(
    st.tuples(st.sampled_from(["row", "failure", "record"]), st.integers(0, 3), st.integers(0, 2)), max_size=25
)


@given(events)
def test_every_rollout_has_one_end_in_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, int, int]]
) -> None:
    expected: dict[tuple[int, int], str] = {}
    rank = {"missing": 0, "failed": 1, "done": 2}
    with OutcomeTable(tmp_path_factory.getbasetemp()) as table:
        for kind, task, repeat in said:
            if kind == "row":
                table.add_row(key(task, repeat))
            elif kind == "failure":
                table.add_failure(facts(task, repeat, _ng_failure_class="f"))
            else:
                table.add_record(facts(task, repeat))
            state = {"row": "missing", "failure": "failed", "record": "done"}[kind]
            known = expected.get((task, repeat), "missing")
            expected[task, repeat] = max(state, known, key=rank.__getitem__)
        assert states(table) == expected
