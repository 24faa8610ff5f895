from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.rollouts.metrics import AggregationOptions, aggregate
from gym_ray.rollouts.metrics.perf_summary import PerfSummary
from gym_ray.rollouts.metrics.reply_metrics import ReplyMetrics
from gym_ray.rollouts.run_paths import RunPaths


def close(found: Any, expected: Any, path: str = "$") -> None:
    """The same JSON value; numbers that were computed may differ in their last digits."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), path
        assert sorted(found) == sorted(expected), path
        for key, value in expected.items():
            close(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), path
        assert len(found) == len(expected), path
        for index, value in enumerate(expected):
            close(found[index], value, f"{path}[{index}]")
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        assert isinstance(found, int | float), path
        assert not isinstance(found, bool), path
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-12), path
    else:
        assert found == expected, path


async def test_vector(case: dict[str, Any]) -> None:
    if case["kind"] == "perf_summary":
        found: Any = summary_of(case["ng_perf"], case["total_rollouts"])
    elif case["kind"] == "aggregate":
        found = defaults_of(case["verify_responses"])
    else:
        assert case["kind"] == "pass_majority"
        found = await environment_metrics(case["tasks"])
    close(found, case["expected"])


def summary_of(perfs: list[Any], records: int) -> Any:
    summary = PerfSummary()
    for perf in perfs + [None] * (records - len(perfs)):
        summary.add(perf)
    return summary.result()


def defaults_of(replies: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = ReplyMetrics()
    by_task = groupby(replies, key=lambda reply: reply["_ng_task_index"])
    groups = [entry for task, own in by_task if (entry := metrics.add_task(task, list(own))) is not None]
    return {"group_level_metrics": groups, **metrics.result()}


async def environment_metrics(tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """What the environment answers on its route, without the mean reward, which is no metric of D158's families."""
    replies = [
        {**reply, "_ng_task_index": task, "_ng_rollout_index": repeat}
        for task, repeats in enumerate(tasks)
        for repeat, reply in enumerate(repeats)
    ]
    transport = httpx.ASGITransport(build_environment_app(McqaEnvironment(), "mcqa"))
    async with httpx.AsyncClient(transport=transport, base_url="http://mcqa") as client:
        answer = await client.post("/aggregate_metrics", json={"verify_responses": replies})
    found: dict[str, Any] = answer.json()["agent_metrics"]
    assert found.pop("mean/reward") == pytest.approx(sum(reply["reward"] for reply in replies) / len(replies))
    return found


def test_agents_of_whole_runs_are_asked_with_the_peers_bodies(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The output files of ``D_run.json`` give the bodies that the peer posted for them (D112, D113, D115)."""
    document = json.loads((request.config.getoption("--vectors") / "D_run.json").read_text("utf-8"))
    asked = 0
    for number, case in enumerate(document["cases"]):
        posts = (case.get("expected") or {}).get("aggregate_posts")
        if not posts:
            continue
        paths = RunPaths.of(tmp_path / f"{number}.jsonl")
        write(paths.output, case["expected"]["output"])
        write(paths.failures, case["expected"]["failures"] or [])
        classes = case["run"]["config"].get("count_failure_classes_as_zero", [])
        assert bodies(paths, AggregationOptions(frozenset(classes))) == [post["body"] for post in posts], case["name"]
        asked += 1
    assert asked > 10


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def bodies(paths: RunPaths, options: AggregationOptions) -> list[Any]:
    found: list[Any] = []

    def post(_agent: str, chunks: Iterator[bytes]) -> None:
        found.append(json.loads(b"".join(chunks)))

    aggregate(paths, None, options=options, post=post)
    return found
