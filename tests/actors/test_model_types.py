"""Agents speak the dialect of their own choice to engines that speak another, and no secret stays in what is captured.

One run for all of it: two model servers in front of scripted endpoints, and agents with the official SDKs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
AGENT = Path(__file__).parent / "agents" / "sdk_agent.py"
RUN_TOKEN, VLLM_KEY, CLAUDE_KEY = "token-of-the-run", "sk-of-the-vllm-server", "sk-of-anthropic"
PRIVATE = "AIza-of-somebody-else"

SETTINGS = f"""
capture_redaction: {{patterns: ['AIza[\\w-]+']}}
old_vllm:
  responses_api_models:
    vllm_model: {{base_url: "VLLM/v1", api_key: {VLLM_KEY}, model: some-model, dialects: [chat]}}
claude:
  responses_api_models:
    anthropic_model: {{anthropic_base_url: "CLAUDE/v1", anthropic_api_key: {CLAUDE_KEY}, anthropic_model: some-model}}
sdk_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""
ROWS = [
    {"server": "old_vllm", "speaks": "messages"},
    {"server": "old_vllm", "speaks": "responses"},
    {"server": "claude", "speaks": "responses"},
    {"server": "claude", "speaks": "messages"},
]


def telltale(request: UpstreamRequest) -> ScriptedAnswer:
    """Answer with the key that came, as a debugging endpoint would."""
    build = stream_answer if json.loads(request.body or b"{}").get("stream") else json_answer
    key = request.headers.get("authorization") or request.headers.get("x-api-key")
    return build(DIALECT_BY_PATH.get(request.path, "chat"), f"your key is {key}")


def asked(upstream: FakeUpstream) -> set[str]:
    return {request.path for request in upstream.requests if request.method == "POST"}


def read(capture_dir: Path, rollout_id: str) -> dict[str, Any]:
    """Return the only raw record of a rollout."""
    (line,) = (capture_dir / f"{rollout_id}.capture.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def test_any_dialect_works_with_any_engine_and_keys_stay_out_of_the_captures(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers

    vllm, claude = FakeUpstream(telltale), FakeUpstream(telltale)
    settings = write_settings(SETTINGS.replace("VLLM", serve(vllm)).replace("CLAUDE", serve(claude)))
    source, paths = tmp_path / "rows.jsonl", RunPaths.of(tmp_path / "out.jsonl")
    common = {"agent_ref": {"name": "sdk_agent"}, "responses_create_params": {"input": f"my key is {PRIVATE}"}}
    source.write_text("".join(json.dumps(common | row) + "\n" for row in ROWS))
    plan = CollectionPlan(RunPlan(paths, source, RowOptions(), CollectionSettings(), settings.capture_location), 16)
    servers = start_servers(settings, run_token=RUN_TOKEN, cache_dir=tmp_path)
    try:
        with collecting(settings, plan, servers.directory, run_token=RUN_TOKEN) as running:
            get(running.collector.run.remote(), 300)
    finally:
        servers.stop()
    assert paths.failures.read_text() == ""
    records = [json.loads(line) for line in paths.output.read_text().splitlines()]
    assert len(records) == len(ROWS)
    assert (asked(vllm), asked(claude)) == ({"/v1/chat/completions"}, {"/v1/messages"})
    digests = set()
    for record in records:
        capture = record["ng_model_call_capture"]
        assert "gaps" not in capture
        (call,) = capture["calls"]
        assert (call["dialect"], call["model_ref"]["name"]) == (record["speaks"], record["server"])
        assert (call["status_code"], call["error_category"]) == (200, None)
        assert (call["tokens_in"], call["tokens_out"]) == (7, record["words"])
        raw = read(settings.capture_dir, capture["rollout_id"])
        assert raw["request"]["stream"] is True
        assert re.search(r"your key is (Bearer )?\[redacted:", json.dumps(raw["response"])), raw
        digests.add(tuple(re.findall(r"\[redacted:[0-9a-f]{16}\]", json.dumps(raw["request"]))))
    ((somebody, token),) = digests  # the same at both servers, so that equal secrets can be joined
    assert somebody != token
    for path in settings.capture_dir.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o600, path
            for secret in (RUN_TOKEN, VLLM_KEY, CLAUDE_KEY, PRIVATE):
                assert secret.encode() not in path.read_bytes(), path
