from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray import exact_json
from gym_ray.rollouts.collection import Progress
from gym_ray.rollouts.ending import EndPlan, RunEnding, end_run, incomplete, nothing_produced
from gym_ray.rollouts.metrics.scoring import AggregationOptions
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import RunPaths

NOTHING = RunEnding()


def progress(*, rows: int = 2, done: int = 0, failed: int = 0, unstored: int = 0) -> Progress:
    return Progress(rows, rows - done - failed - unstored, 0, 0, done, failed, unstored, 0, 0, 0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of two rows, both of which failed."""
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    (tmp_path / "in.jsonl").write_bytes(exact_json.dumps({**row, "n": 1}) + b"\n" + exact_json.dumps({**row, "n": 2}))
    paths = RunPaths.of(tmp_path / "out.jsonl")
    with RunLock(paths) as lock:
        begin_run(lock, tmp_path / "in.jsonl", RowOptions())
    key = {"_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "_ng_failure_class": "agent_timeout"}
    with RunOutputs(paths) as outputs:
        for task in range(2):
            outputs.append("failures", exact_json.dumps({**key, "_ng_task_index": task}))
    return paths


def test_a_run_without_a_result_produced_nothing() -> None:
    assert nothing_produced(progress(failed=2), NOTHING)
    assert nothing_produced(progress(), NOTHING), "nor did one that started nothing"
    assert not nothing_produced(progress(done=1, failed=1), NOTHING)
    assert not nothing_produced(progress(failed=1, unstored=1), NOTHING), "a reply may ask to be stored nowhere"
    assert not nothing_produced(progress(rows=0), NOTHING)


def test_failures_that_metrics_count_are_something(paths: RunPaths) -> None:
    """D38: options of D115 give such a run its figures."""
    for listed, produced in (({"agent_timeout"}, True), ({"judge_failed"}, False), (set(), False)):
        options = AggregationOptions(count_failure_classes_as_zero=frozenset(listed))
        ending = end_run(paths, EndPlan(aggregation=options))
        assert ending.problems == ()
        assert nothing_produced(progress(failed=2), ending) is not produced


def test_completeness_counts_rows_whatever_is_kept_or_aggregated(paths: RunPaths) -> None:
    """D39: keys count and not records that somebody retained, so that no aggregation is needed either."""
    plan = EndPlan(aggregation=None, require_complete=True)
    assert end_run(paths, plan) == NOTHING
    assert not incomplete(plan, progress(done=2))
    assert incomplete(plan, progress(done=1, failed=1))
    assert not incomplete(EndPlan(), progress(failed=2))
