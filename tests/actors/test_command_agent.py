"""Programs as agents on Ray: their calls are captured, and none of them outlives its rollout or its worker."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.agents.command_guard import running_processes
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.fake_upstream import FakeUpstream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
SDK_PROGRAM = HERE.parents[1] / "examples" / "agents" / "command_line_agent.py"
LINGERING = HERE / "programs" / "lingering_program.py"
PATIENCE_S = 240.0

SETTINGS = f"""
num_rollout_workers: 1
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: sk-of-the-upstream, openai_model: some-model}}
sdk_program:
  responses_api_agents:
    command_agent: {{command: ["{{python}}", "{SDK_PROGRAM}", "{{model}}"], model_server: {{name: policy_model}}}}
lingering:
  responses_api_agents:
    command_agent: {{command: ["{{python}}", "{LINGERING}", "TOLD"], model_server: {{name: policy_model}}}}
bounded:
  responses_api_agents:
    command_agent:
      command: ["{{python}}", "{LINGERING}", "TOLD"]
      model_server: {{name: policy_model}}
      timeout_s: 10
"""
AGENTS = ["sdk_program", "bounded", "lingering"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_programs_are_captured_and_end_with_their_rollout_and_with_their_worker(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers

    told = tmp_path / "told"
    told.mkdir()
    url = serve(FakeUpstream(text="forty two"))
    settings = write_settings(SETTINGS.replace("UPSTREAM", url).replace("TOLD", str(told)))
    source, paths = tmp_path / "rows.jsonl", RunPaths.of(tmp_path / "out.jsonl")
    source.write_text(
        "".join(
            json.dumps({"agent_ref": {"name": agent}, "responses_create_params": {"input": "hello?"}}) + "\n"
            for agent in AGENTS
        )
    )
    plan = CollectionPlan(
        RunPlan(paths, source, RowOptions(), CollectionSettings(run_timeout_s=900), settings.capture_location), 16
    )

    def runs(row: str) -> bool:
        """Whether the process that a row's first attempt started is still there."""
        return any(process.pid == pids[row] for process in running_processes())

    servers = start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    try:
        with collecting(settings, plan, servers.directory, run_token="token-of-the-run") as running:
            ended = running.collector.run.remote()
            eventually(lambda: all((told / row).exists() for row in ("1-0", "2-0")), "both asked the model")
            pids = {row: int((told / row).read_text()) for row in ("1-0", "2-0")}
            eventually(lambda: len(lines(paths.output) + lines(paths.failures)) == 2, "two of three have a record")
            assert not runs("1-0"), "what ran out of time has ended before its failure is recorded"
            assert runs("2-0")
            os.kill(get(running.seats["worker-0"].health.remote(), 60).pid, signal.SIGKILL)
            eventually(lambda: not runs("2-0"), "a program ends with its worker")
            get(ended, PATIENCE_S)
    finally:
        servers.stop()
    done = {record["ng_model_call_capture"]["rollout_id"]: record for record in lines(paths.output)}
    failed = {record["ng_model_call_capture"]["rollout_id"]: record for record in lines(paths.failures)}
    assert set(done) == {"0-0", "2-0-a1"}, "the row whose worker was lost ran again"
    assert set(failed) == {"1-0", "2-0"}
    assert failed["1-0"]["_ng_failure_class"] == "agent_timeout"
    assert "10 s" in failed["1-0"]["_ng_failure_message"]
    assert failed["2-0"]["_ng_failure_class"] == "worker_lost"
    for record in done.values():
        (item,) = record["response"]["output"]
        assert item["content"][0]["text"].strip() == "forty two"
    for rollout_id, record in {**done, **failed}.items():
        capture = record["ng_model_call_capture"]
        assert "gaps" not in capture
        (call,) = capture["calls"]
        assert (call["dialect"], call["status_code"], call["error_category"]) == ("responses", 200, None), call
        (line,) = (settings.capture_dir / f"{rollout_id}.capture.jsonl").read_text().splitlines()
        assert json.loads(line)["request"]["stream"] is True
        assert call["tokens_out"] == 2
