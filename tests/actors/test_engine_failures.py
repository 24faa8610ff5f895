"""An engine that fails is a recorded failure with its capture, and the other rollouts go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]
AGENT = Path(__file__).parent / "agents" / "asking_agent.py"

SETTINGS = f"""
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: sk-of-the-upstream, openai_model: m}}
asking_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""

EXPECTED = {
    "401": ("agent_run_error", 401, "auth"),
    "429": ("engine_unavailable", 429, "rate_limit"),
    "500": ("agent_run_error", 500, "upstream_error"),
    "503": ("engine_unavailable", 503, "upstream_error"),
    "hang": ("agent_timeout", None, "cancelled"),
    "cut": ("engine_unavailable", None, "connection"),
}


def test_every_kind_of_failing_engine_is_a_recorded_failure_with_its_call(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers
    from gym_ray.testing.numbered_upstream import failing_upstream

    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(failing_upstream())))
    source, paths = tmp_path / "rows.jsonl", RunPaths.of(tmp_path / "out.jsonl")
    row = {"agent_ref": {"name": "asking_agent"}}
    source.write_text("".join(json.dumps(row | {"responses_create_params": {"input": w}}) + "\n" for w in EXPECTED))
    plan = CollectionPlan(
        RunPlan(paths, source, RowOptions(), CollectionSettings(run_timeout_s=15), settings.capture_location), 16
    )
    servers = start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    try:
        with collecting(settings, plan, servers.directory, run_token="token-of-the-run") as running:
            get(running.collector.run.remote(), 300)
            assert get(running.collector.progress.remote(), 60).failed == len(EXPECTED)
    finally:
        servers.stop()
    assert paths.output.read_text() == ""
    records = [json.loads(line) for line in paths.failures.read_text().splitlines()]
    for record in records:
        word = list(EXPECTED)[record["_ng_task_index"]]
        failure_class, status, category = EXPECTED[word]
        assert record["_ng_failure_class"] == failure_class, record
        assert record.get("_ng_failure_http_status") == status, record
        (call,) = record["ng_model_call_capture"]["calls"]
        assert call["error_category"] == category, call
        assert "sk-of-the-upstream" not in json.dumps(record)
