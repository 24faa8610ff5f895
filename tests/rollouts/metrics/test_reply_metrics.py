from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from gym_ray.rollouts.metrics.reply_metrics import ReplyMetrics


def reply(task: Any, repeat: Any, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, **fields}


def defaults_of(replies: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = ReplyMetrics()
    by_task = groupby(replies, key=lambda one: one["_ng_task_index"])
    groups = [entry for task, own in by_task if (entry := metrics.add_task(task, list(own))) is not None]
    return {"group_level_metrics": groups, **metrics.result()}


def test_an_unmeasured_reward_is_counted_and_is_no_zero() -> None:
    found = defaults_of([reply(0, 0, reward=None), reply(0, 1, reward=1.0), reply(1, 0, reward=None)])
    assert found["agent_metrics"]["mean/reward"] == 1.0
    assert found["agent_metrics"]["coverage/unmeasured_rollouts"] == 2
    assert found["key_metrics"]["coverage/unmeasured_rollouts"] == 2
    silent = found["group_level_metrics"][1]
    assert silent["rollout_infos"] == [{"rollout_id": "1:0", "_ng_task_index": 1, "_ng_rollout_index": 0}]
    assert "mean/reward" not in silent


def test_fields_that_only_some_replies_have_count_where_they_are() -> None:
    found = defaults_of(
        [
            reply(0, 0, reward=1, passed=True, _private=9, text="x", mask_sample=False),
            reply(0, 1, reward=0, response={"usage": {"input_tokens": 5, "details": {"a": 1}}}),
            reply(1, 0, reward=1, passed=False, big=10**400),
        ]
    )
    metrics = found["agent_metrics"]
    assert metrics["mean/passed"] == 0.5
    assert metrics["mean/input_tokens"] == 5.0
    assert sorted(name for name in metrics if name.startswith("max/")) == [
        "max/input_tokens",
        "max/passed",
        "max/reward",
    ]
    by_repeat = {entry["_ng_rollout_index"]: entry for entry in found["repeat_level_metrics"]}
    assert by_repeat[0]["sample_count"] == 2
    assert by_repeat[1] == {**by_repeat[1], "missing_count": 1, "sem/reward": 0.0, "ci_low_95/reward": 0.0}
    # One repeat has it: there is no spread across repeats to speak of.
    assert "mean_across_repeats/mean/reward" in metrics
    assert "mean_across_repeats/mean/input_tokens" not in metrics


def test_rollouts_that_gave_nothing_are_missing_from_their_task() -> None:
    metrics = ReplyMetrics()
    entry = metrics.add_task("t", [reply("t", 0, reward=1.0)], missing=3)
    assert entry is not None
    assert (entry["num_rollouts"], entry["expected_num_rollouts"], entry["missing_num_rollouts"]) == (1, 4, 3)
    assert entry["reward_profile_completion_pct"] == 25.0
    assert metrics.add_task("none", [], missing=2) is None
    assert "coverage/fully_masked_tasks" not in metrics.result()["agent_metrics"], "no reply is not a masked one"


def test_replies_may_name_any_number_of_fields_and_their_statistics_stay_few() -> None:
    metrics = ReplyMetrics()
    for task in range(3):
        fields = {f"metric_{task}_{n}": n for n in range(300)}
        entry = metrics.add_task(task, [reply(task, 0, reward=1.0, **fields)])
        assert entry is not None
        assert len(entry["rollout_infos"][0]) <= 256 + 3
    found = metrics.result()["agent_metrics"]
    assert sum(name.startswith("mean/") for name in found) == 256
    assert found["fields_left_out"] == 256


@pytest.mark.parametrize("index", [None, "r", 1.5, True, 10**30])
def test_indices_of_any_kind_are_taken(index: Any) -> None:
    found = defaults_of([reply(index, 0, reward=1.0), reply(index, index, reward=0.0)])
    assert found["agent_metrics"]["num_repeats"] == 2
    assert found["group_level_metrics"][0]["num_rollouts"] == 2
    assert len(found["repeat_level_metrics"]) == 2
