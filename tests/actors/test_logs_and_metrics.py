"""What a run's actors say where operators look: log files of the node, and the endpoint that Prometheus reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SETTINGS = f"""
logging_agent:
  responses_api_agents:
    callable_agent:
      callable: {Path(__file__).parent / "agents" / "logging_agent.py"}:agent
"""


def said_of(text: str, directory: Path) -> list[dict[str, Any]]:
    """Return the lines of the node's logs that hold a text."""
    lines = [line for path in directory.glob("worker-*.err") for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line) for line in lines if text in line]


def of_run(run: str) -> dict[str, float]:
    """Return the samples of a run in the node's export, by name and the label that is beside the run."""
    import ray

    (node,) = [node for node in ray.nodes() if node["Alive"]]
    text = httpx.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", trust_env=False, timeout=30).text
    found = {}
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.startswith("ray_gym_ray_run_") and f'run="{run}"' in head:
            found[head.partition("{")[0].removeprefix("ray_gym_ray_run_")] = float(value)
    return found


def once_counted(run: str, **wanted: float) -> dict[str, float]:
    """Return the samples of a run once some are as wanted; Ray exports them when it does."""
    deadline, found = time.monotonic() + 120, dict[str, float]()
    while not wanted.items() <= found.items():
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
        found = of_run(run)
    return found


def test_a_line_of_an_attempt_names_it_and_the_run_is_counted(
    ray_cluster: None, write_settings: Callable[..., Any], tmp_path: Path
) -> None:
    import ray

    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.server_directory import ServerDirectory

    run = f"watched-{tmp_path.name[-8:]}-{time.time_ns()}"
    source, paths = tmp_path / "rows.jsonl", RunPaths.of(tmp_path / f"{run}.jsonl")
    row = {"agent_ref": {"name": "logging_agent"}, "responses_create_params": {"input": "q"}}
    source.write_text("".join(json.dumps({**row, "fails": fails}) + "\n" for fails in ("", "told to")))
    settings = write_settings(SETTINGS, capture=False)
    plan = CollectionPlan(RunPlan(paths, source, RowOptions(), CollectionSettings(), None), 4)
    with collecting(settings, plan, ServerDirectory({}, {}), run_token=None) as running:
        while ray.get(running.collector.next_finished.remote(), timeout=60) is not None:
            pass
        logs = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[1] / "logs"
        counted = once_counted(run, rollouts_done_total=1, attempts_failed_total=1)
    told = {line["message"]: line for line in said_of("says hello", logs) if line["name"] == "an_agent"}
    for rollout_id in ("0-0", "1-0"):
        line = told[f"{rollout_id} says hello"]
        assert (line["rollout_id"], line["attempt"], line["levelname"]) == (rollout_id, 0, "WARNING")
        assert line["node_id"] == ray.nodes()[0]["NodeID"]
    assert (counted["rows_pending"], counted["rows_in_flight"], counted["paused"]) == (0, 0, 0)


def test_the_steps_of_a_loop_are_counted_together(
    ray_cluster: None, write_settings: Callable[..., Any], tmp_path: Path
) -> None:
    from gym_ray.actors import RolloutCollector

    loop_dir = tmp_path / f"loop-{time.time_ns()}"
    row = {"agent_ref": {"name": "logging_agent"}, "responses_create_params": {"input": "q"}}
    with RolloutCollector.start(
        write_settings(SETTINGS, capture=False), output_dir=loop_dir, cache_dir=tmp_path
    ) as loop:
        for fails in ("", "told to", ""):
            (result,) = loop.collect_batch([{**row, "fails": fails}]).results
            assert bool(result.failure_class) == bool(fails)
        counted = once_counted(loop_dir.name, rollouts_done_total=2, attempts_failed_total=1)
    assert (counted["rows_pending"], counted["rows_in_flight"], counted["rows_joining"]) == (0, 0, 0)
