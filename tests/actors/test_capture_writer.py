"""A model server without the mount, the actor that writes for it, and a kill of that one in the middle."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
NAMESPACE, ROLLOUTS, CALLS, KILL_AFTER = "gym-ray/hosted-captures", 8, 40, 60

SETTINGS = """
policy:
  responses_api_models:
    openai_model: {openai_base_url: "UPSTREAM/v1", openai_api_key: sk-none, openai_model: some-model}
"""


def answer(request: UpstreamRequest) -> ScriptedAnswer:
    return json_answer("chat", f"number {json.loads(request.body or b'{}').get('user')}")


def test_a_killed_writer_loses_nothing_that_was_acknowledged_and_writes_nothing_twice(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.capture_writer import CaptureWriterHost
    from gym_ray.actors.cluster import LOOPBACK, close_actors, local_node, pick_ports, start_actor
    from gym_ray.actors.model_server import ModelServerHost

    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(FakeUpstream(answer))))
    node = local_node()
    (port,) = pick_ports(node, LOOPBACK, 1)
    writer = start_actor(CaptureWriterHost, node, "captures", settings.capture_location, namespace=NAMESPACE)
    actors = [writer]
    answered, done, acknowledged = Counter[str](), threading.Semaphore(0), threading.Lock()
    try:
        get(writer.ready.remote(), 60)
        server = start_actor(
            ModelServerHost,
            node,
            "policy",
            *(settings, "policy", LOOPBACK, port, "run-token", None, b"0" * 32, None, None, ("captures", NAMESPACE)),
        )
        actors.append(server)
        url = get(server.url.remote(), 120)

        def rollout(number: int) -> None:
            with httpx.Client(base_url=f"{url}/ng-rollout/{number}-0", timeout=60) as client:
                for call in range(CALLS):
                    body = {"model": "m", "user": f"{number}-{call}", "messages": [{"role": "user", "content": "hi"}]}
                    headers = {"Authorization": "Bearer run-token"}
                    assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
                    with acknowledged:
                        answered[f"{number}-0"] += 1
                    done.release()

        with ThreadPoolExecutor(ROLLOUTS) as pool:
            running = [pool.submit(rollout, number) for number in range(ROLLOUTS)]
            for _ in range(KILL_AFTER):
                assert done.acquire(timeout=60)
            os.kill(get(writer.health.remote(), 30).pid, signal.SIGKILL)
            for future in running:
                future.result(120)
        told = httpx.post(
            f"{url}/ng-capture/quiesce",
            json={"rollout_ids": [f"{number}-0" for number in range(ROLLOUTS)]},
            headers={"Authorization": "Bearer run-token"},
        ).json()
    finally:
        close_actors(actors, 30)
    store = CaptureStore(tmp_path / "model-calls")
    assert sum(answered.values()) == ROLLOUTS * CALLS
    for rollout_id, count in answered.items():
        exchanges, _ = store.read_available(rollout_id)
        users = [exchange["request"]["user"] for _, exchange in exchanges]
        assert sorted(users) == sorted(f"{rollout_id[:-2]}-{call}" for call in range(count))
        assert not store.is_incomplete(rollout_id)
        data = store.path_for(rollout_id).read_bytes()
        entry = told["rollouts"][rollout_id]
        assert (len(entry["recorded"]), entry["open"], entry["incomplete"]) == (count, [], False)
        for call_id, file, offset, length in entry["recorded"]:
            assert file == f"{rollout_id}.capture.jsonl"
            assert json.loads(data[offset : offset + length])["model_call_id"] == call_id
