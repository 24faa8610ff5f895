"""Agents that take their process with them: what they leave behind asks on, or their memory is gone (D25, D57)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture import CaptureStore
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
AGENT = Path(__file__).parent / "agents" / "lethal_agent.py"
TOKEN = "token-of-the-run"
LATE_CALLS = 3  # of a child, when its agent is dead and the next attempt has begun
FATES = ["leaves a child", "is refused memory", "", "dies of its leak", ""]

SETTINGS = f"""
num_rollout_workers: 1
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered}}
lethal_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@contextmanager
def lethal_run(directory: Path, settings: Any, diary: Path) -> Iterator[Any]:
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers

    row = {"agent_ref": {"name": "lethal_agent"}, "diary": str(diary)}
    row |= {name: str(directory / name) for name in ("gate", "late")}
    rows = [row | {"fate": fate, "responses_create_params": {"input": f"row {n}"}} for n, fate in enumerate(FATES)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = CollectionSettings(num_samples_in_parallel=1, run_timeout_s=120)  # or a leak takes others with it
    paths = RunPaths.of(directory / "records.jsonl")
    plan = RunPlan(paths, directory / "rows.jsonl", RowOptions(), limits, settings.capture_location)
    servers = start_servers(settings, run_token=TOKEN, cache_dir=directory)
    try:
        with collecting(settings, CollectionPlan(plan, 16), servers.directory, run_token=TOKEN) as running:
            yield running
    finally:
        servers.stop()


def test_what_a_dead_agent_still_asks_is_in_no_other_attempt_and_a_leak_ends_its_own_rollout_alone(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get

    asked: dict[str, str] = {}
    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(numbered_upstream(0.0, answered=asked))))
    paths, diary = RunPaths.of(tmp_path / "records.jsonl"), tmp_path / "diary.jsonl"
    with lethal_run(tmp_path, settings, diary) as running:
        get(running.collector.run.remote(), 300)
    judge = RunJudge(paths, settings.capture_dir, diary, rows=len(FATES), asked=asked)
    standing = judge.look()
    assert standing.done == {0, 2, 4}, standing
    failed = {
        record["ng_model_call_capture"]["rollout_id"]: (record["_ng_failure_class"], record["_ng_failure_type"])
        for record in records(paths.failures)
    }
    lost = ("worker_lost", "ProcessLost")
    assert failed == {"0-0": lost, "1-0": ("agent_run_error", "MemoryError"), "3-0": lost, "3-0-a1": lost}
    late = [entry["id"] for entry in records(tmp_path / "late")]
    assert len(late) == LATE_CALLS, "the child did not ask"
    for record in records(paths.output):
        capture = record["ng_model_call_capture"]
        assert [call["response_id"] for call in capture["calls"]] == record["answers"]
        calls, _ = CaptureStore(settings.capture_dir).read_available(capture["rollout_id"])
        assert [call["response"]["id"] for _, call in calls] == record["answers"]
        assert not set(late) & set(record["answers"]), f"{late} were given to nobody in {capture['rollout_id']}"
