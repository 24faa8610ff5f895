"""A resources server that is killed in the middle: its rollouts fail and say so, the others and the run go on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.numbered_upstream import numbered_upstream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
ROWS = 40

SETTINGS = """
policy_model:
  responses_api_models:
    openai_model: {openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered}
mcqa:
  resources_servers:
    mcqa: {}
mcqa_simple_agent:
  responses_api_agents:
    simple_agent: {model_server: {name: policy_model}, resources_server: {name: mcqa}}
"""


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_rollouts_of_a_killed_environment_fail_with_their_captures(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers

    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(numbered_upstream(0.1))))
    source, paths = tmp_path / "rows.jsonl", RunPaths.of(tmp_path / "out.jsonl")
    row = {"agent_ref": {"name": "mcqa_simple_agent"}, "options": [{"A": "yes"}], "expected_answer": "A"}
    source.write_text(
        "".join(json.dumps(row | {"responses_create_params": {"input": f"row {n}"}}) + "\n" for n in range(ROWS))
    )
    limits = CollectionSettings(num_samples_in_parallel=4, run_timeout_s=120)
    plan = CollectionPlan(RunPlan(paths, source, RowOptions(), limits, settings.capture_location), 16)
    servers = start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    try:
        with collecting(settings, plan, servers.directory, run_token="token-of-the-run") as running:
            pid = get(servers.hosts["environment-mcqa"].health.remote(), 60).pid
            ended = running.collector.run.remote()
            deadline = time.monotonic() + 120
            while not paths.output.exists() or len(records(paths.output)) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            get(ended, 120)
            assert get(running.collector.progress.remote(), 60).complete
    finally:
        servers.stop()
    done, failed = records(paths.output), records(paths.failures)
    assert len(done) + len(failed) == ROWS
    assert len(done) >= ROWS // 2, "the restarted server scores the rest"
    for record in done:
        assert record["reward"] == 0.0
        assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    for record in failed:
        assert "mcqa" in record["_ng_failure_message"]
        assert "rollout_id" in record["ng_model_call_capture"]
