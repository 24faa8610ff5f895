"""What a model server counts arrives where Prometheus looks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.testing.fake_upstream import FakeUpstream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
RUN_TOKEN = "token-of-the-run"
API_KEY = "sk-of-the-upstream"

MODEL = """
watched_model:
  responses_api_models:
    openai_model: {openai_base_url: "%s/v1", openai_api_key: sk-of-the-upstream, openai_model: some-model}
"""


def exported() -> str:
    """Return what the node's metrics agent exports of ours."""
    import ray

    (node,) = [node for node in ray.nodes() if node["Alive"]]
    text = httpx.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", trust_env=False, timeout=30).text
    return "\n".join(line for line in text.splitlines() if "gym_ray_" in line)


def samples(name: str, text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of this test's server by the tags that are ours, in alphabetical order."""
    found = {}
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] in (f"ray_{name}", name):
            labels = dict(part.split("=", 1) for part in head.partition("{")[2].rstrip("}").split(",") if "=" in part)
            ours = {key: label.strip('"') for key, label in labels.items()}
            if ours["server"] == "watched_model":  # servers of other tests stay in the export for a while
                chosen = ("category", "dialect", "direction", "reason", "status")
                found[tuple(ours[key] for key in chosen if key in ours)] = float(value)
    return found


def test_the_counts_of_a_model_server_are_exported(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.servers import start_servers

    settings = write_settings(MODEL % serve(FakeUpstream(text="some answer")))
    servers = start_servers(settings, run_token=RUN_TOKEN, cache_dir=tmp_path)
    try:
        (endpoint,) = servers.directory.models["watched_model"]
        with httpx.Client(base_url=endpoint.url, headers={"authorization": f"Bearer {RUN_TOKEN}"}) as http:
            for _ in range(3):
                http.post("/ng-rollout/0-0/v1/responses", json={"input": "a"}).raise_for_status()
            assert http.post("/ng-rollout/0-0/v1/chat/completions", content=b"[]").status_code == 422
            http.post("/ng-rollout/.no-id/v1/responses", json={"input": "a"}).raise_for_status()
        wanted = {
            "gym_ray_model_calls_total": {("ok", "responses", "2xx"): 3.0, ("client_error", "chat", "4xx"): 1.0},
            "gym_ray_model_capture_lost_total": {("refused",): 1.0},
            "gym_ray_model_capture_bytes_total": {
                (): float((settings.capture_dir / "0-0.capture.jsonl").stat().st_size)
            },
            "gym_ray_model_call_latency_seconds_count": {("responses",): 3.0, ("chat",): 1.0},
            "gym_ray_model_capture_lag_seconds_count": {(): 4.0},
        }
        deadline = time.monotonic() + 180
        text = exported()
        while {name: samples(name, text) for name in wanted} != wanted:  # they may be exported one after the other
            assert time.monotonic() < deadline, text
            time.sleep(0.5)
            text = exported()
    finally:
        servers.stop()
    tokens = samples("gym_ray_model_call_tokens_total", text)
    assert set(tokens) == {("responses", "in"), ("responses", "out")}
    assert all(count > 0 for count in tokens.values())
    assert RUN_TOKEN not in text
    assert API_KEY not in text
