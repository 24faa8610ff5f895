"""What a model server counts arrives where Prometheus looks for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from gym_ray.errors import CaptureError
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.token_sinks import PlainTokenSink
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.external_staging import StagedCallCounts
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.staging import (
    AsyncRolloutTokenCapture,
    CaptureAdmission,
    MemoryStaging,
    RolloutTokenCapture,
)

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
                chosen = ("category", "dialect", "direction", "reason", "stage", "status")
                found[tuple(ours[key] for key in chosen if key in ours)] = float(value)
    return found


class Noted:
    """Stands for any of Ray's metrics, and keeps what it was told by name and tags."""

    told: ClassVar[Counter[tuple[str, ...]]] = Counter()

    def __init__(self, name: str, *_: object) -> None:
        self._name = name

    def set_default_tags(self, tags: dict[str, str]) -> None:
        assert tags == {"server": "m"}

    def inc(self, count: float, tags: dict[str, str]) -> None:
        self.told[(self._name, *tags.values())] += count

    def set(self, value: float) -> None:
        self.told[self._name,] = value


async def test_what_token_capture_counts_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_ray.actors import metrics
    from gym_ray.actors import publisher as publishing

    told = Counter[tuple[str, ...]]()
    monkeypatch.setattr(Noted, "told", told)
    for name in ("Counter", "Gauge"):
        monkeypatch.setattr(publishing, name, Noted)
    sink = PlainTokenSink()
    sink.failures["mark_incomplete"] = OSError("full")
    tokens = TokenCapture(sink, None)
    tokens.health.failed()
    publisher = metrics.TokenMetricsPublisher(tokens, "m")
    publisher.publish(publisher.take())
    assert told == {("gym_ray_token_marks_pending",): 0}, "what was counted before it began is not its own"
    for supplied in (0, 1):
        tokens.health.prefix(total=1, eligible=1, supplied=supplied)
        tokens.health.failed()
        tokens.health.untrainable("ids_missing")
        tokens.health.resolved(ParentResolutionStatus.RESOLVED)
        publisher.publish(publisher.take())
    tokens.mark_soon("0-0")
    publisher.publish(publisher.take())
    with pytest.raises(CaptureError, match="0-0"):
        await tokens.aclose()
    assert told == {
        ("gym_ray_token_marks_pending",): 1,
        ("gym_ray_token_capture_failures_total",): 2,
        ("gym_ray_token_untrainable_calls_total", "ids_missing"): 2,
        ("gym_ray_token_resolutions_total", "resolved"): 2,
        ("gym_ray_token_prefix_calls_total", "total"): 2,
        ("gym_ray_token_prefix_calls_total", "eligible"): 2,
        ("gym_ray_token_prefix_calls_total", "supplied"): 1,
    }


def test_how_staged_calls_ended_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_ray.actors import metrics
    from gym_ray.actors import publisher as publishing

    told = Counter[tuple[str, ...]]()
    monkeypatch.setattr(Noted, "told", told)
    monkeypatch.setattr(publishing, "Counter", Noted)
    counts = StagedCallCounts()
    counts.ended("text", "committed")
    publisher = metrics.StagingMetricsPublisher(counts, "m")
    publisher.publish(publisher.take())
    assert told == {}, "what was counted before it began is not its own"
    for mode, outcome in (("text", "committed"), ("token_in", "committed"), ("token_in", "worker_capture_failed")):
        counts.ended(mode, outcome)
        publisher.publish(publisher.take())
        publisher.publish(publisher.take())
    assert told == {
        ("gym_ray_staged_calls_total", "text", "committed"): 1,
        ("gym_ray_staged_calls_total", "token_in", "committed"): 1,
        ("gym_ray_staged_calls_total", "token_in", "worker_capture_failed"): 1,
    }


async def test_what_a_worker_did_not_stage_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_ray.actors import publisher as publishing
    from gym_ray.actors import worker_metrics

    told = Counter[tuple[str, ...]]()
    monkeypatch.setattr(Noted, "told", told)
    monkeypatch.setattr(publishing, "Counter", Noted)
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(MemoryStaging(), lambda: 1))
    publisher = worker_metrics.WorkerMetricsPublisher(capture, "m")
    admission = CaptureAdmission(rollout_id="0-0", model_call_id="c", mode="text")
    for _ in range(2):
        capture.refuse(admission, reason="storage is gone")
        publisher.publish(publisher.take())
        publisher.publish(publisher.take())
    await capture.aclose()
    assert told == {("gym_ray_worker_capture_failures_total", "failed_by_caller"): 2}


def test_the_counts_of_a_model_server_are_exported(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.servers import start_servers

    tokens_on = ("++token_id_capture.enabled=true", f"++token_id_capture.dir={tmp_path / 'tokens'}")
    settings = write_settings(MODEL % serve(FakeUpstream(text="some answer")), *tokens_on)
    servers = start_servers(settings, run_token=RUN_TOKEN, cache_dir=tmp_path)
    try:
        (endpoint,) = servers.directory.models["watched_model"]
        with httpx.Client(base_url=endpoint.url, headers={"authorization": f"Bearer {RUN_TOKEN}"}) as http:
            for _ in range(3):
                http.post("/ng-rollout/0-0/v1/responses", json={"input": "a"}).raise_for_status()
            assert http.post("/ng-rollout/0-0/v1/chat/completions", content=b"[]").status_code == 422
            http.post("/ng-rollout/.no-id/v1/responses", json={"input": "a"}).raise_for_status()
            turns = [{"role": "user", "content": "a"}]
            for _ in range(2):  # the engine reports no tokens, so the second call's parent is not known
                path = "/ng-rollout/1-0/training-token-capture/v1/responses"
                turns += http.post(path, json={"input": turns}).raise_for_status().json()["output"]
        wanted = {
            "gym_ray_model_calls_total": {("ok", "responses", "2xx"): 5.0, ("client_error", "chat", "4xx"): 1.0},
            "gym_ray_model_capture_lost_total": {("refused",): 1.0},
            "gym_ray_model_capture_bytes_total": {
                (): float(sum(path.stat().st_size for path in settings.capture_dir.glob("*.capture.jsonl")))
            },
            "gym_ray_model_call_latency_seconds_count": {("responses",): 5.0, ("chat",): 1.0},
            "gym_ray_model_capture_lag_seconds_count": {(): 6.0},
            "gym_ray_token_resolutions_total": {("root",): 1.0, ("unresolved",): 1.0},
            "gym_ray_token_untrainable_calls_total": {("ids_missing",): 2.0},
            "gym_ray_token_marks_pending": {(): 0.0},
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
