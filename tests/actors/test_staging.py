"""Workers and writers on Ray actors: what they acknowledged is in storage, and a killed one goes on from there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gym_ray.errors import ClusterError
from gym_ray.model_server.control_client import ControlClient
from gym_ray.settings import StagingSettings
from gym_ray.token_id_capture.staging import (
    CaptureAdmission,
    CommitCoords,
    RolloutTokenCapture,
    build_receipt,
    verify_and_linearize,
)
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSource

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

TOKEN = {"authorization": "Bearer token-of-the-run"}
CONTROL = "a trainer's secret"
QUESTIONS = ("Where is order 1043?", "Thanks. And who carries it?", "Good.")
SHORT = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["It is shipped.", "It is on hold."]}}}


def eventually(check: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.05)


@pytest.mark.model
def test_a_killed_worker_of_the_embedded_engine_continues_its_rollouts_from_storage(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.servers import start_servers

    settings = write_settings(
        f"""
policy_model:
  responses_api_models:
    local_model: {{n_ctx: 2048, n_parallel: 2, n_threads: 1}}
trained:
  responses_api_agents:
    callable_agent: {{callable: "somewhere:agent", token_id_capture: true}}
token_id_capture:
  enabled: true
  external_staging: true
  rebuild_response: false
  dir: {tmp_path / "ledger"}
  staging: {{where: {tmp_path / "staged"}}}
"""
    )
    cache_dir = Path.home() / ".cache" / "gym-ray"
    servers = start_servers(settings, run_token="token-of-the-run", control_token=CONTROL, cache_dir=cache_dir)
    messages: list[dict[str, Any]] = []
    try:
        (endpoint,) = servers.directory.models["policy_model"]
        (worker,) = (handle for name, handle in servers.engines.items() if name.startswith("worker-"))
        answer: dict[str, Any] = {}
        said = httpx.post(f"{endpoint.url}/ng-token-capture/weight-version", json={"version": 5}, headers=TOKEN)
        assert said.json() == {"version": 5, "previous": 0}
        for question in QUESTIONS:
            if messages:
                kill(get(worker.health.remote(), 60).pid, lambda: get(worker.health.remote(), 60).pid)
            messages.append({"role": "user", "content": question})
            answer = ask(endpoint.url, messages)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        with ControlClient(endpoint.url, CONTROL, timeout_s=20) as control:
            manifest = control.manifest("0-0")
    finally:
        servers.stop()
    assert manifest.failures == []
    receipt = build_receipt(manifest, None, reward=1.0, declared_response_id=answer["id"])
    assert (receipt.capture_poisoned, receipt.failure_reason) == (False, None)
    snapshots = ParquetStagingSource(tmp_path / "staged").fetch([row.staging_key for row in receipt.manifest])
    row = verify_and_linearize(receipt, snapshots)
    assert list(row.weight_versions) == [5] * len(QUESTIONS), "a restarted worker knows what the first was told"
    writers = {key.split(":")[3].split("-")[0] for key in (one.staging_key for one in manifest.records)}
    assert len(writers) == len(QUESTIONS), "each worker had a name of its own"


def kill(pid: int, pid_now: Callable[[], int]) -> None:
    """Kill an actor's process, and return when another one answers."""
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        try:
            return pid_now() != pid
        except ClusterError:
            return False

    eventually(is_back, "a new process")


def ask(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask until a restarted worker answers: a call that it could not take is an error, and no part of the rollout."""
    body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 48, "response_format": SHORT}
    path = f"{url}/ng-rollout/0-0/training-token-capture/v1/chat/completions"
    plain = f"{url}/v1/chat/completions"

    def serves() -> bool:
        return httpx.post(plain, json=body, headers=TOKEN, timeout=60).status_code == 200

    eventually(serves, "an answer of the worker")
    response = httpx.post(path, json=body, headers=TOKEN, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def complete(capture: RolloutTokenCapture, number: int, pixels: Any) -> CommitCoords:
    call = capture.begin_call(CaptureAdmission(rollout_id=f"{number}-0", model_call_id="call", mode="text"))
    return capture.complete_call(
        call,
        prompt_token_ids=np.arange(number, number + 50, dtype=np.uint32),
        generated_token_ids=np.arange(100, dtype=np.uint32),
        generated_logprobs=np.full(100, -0.5, np.float32),
        extras={"number": number},
        attachments=None if pixels is None else {"pixels": pixels},
    )


def test_workers_without_a_mount_stage_through_a_writer_which_may_be_killed(ray_cluster: None, tmp_path: Path) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, start_actor
    from gym_ray.actors.staging_writer import RemoteStagingSink, StagingWriterHost

    settings = StagingSettings(where=str(tmp_path / "staged"))
    writer = start_actor(StagingWriterHost, local_node(), "staging-writer", settings)
    try:
        get(writer.ready.remote(), 60)
        capture = RolloutTokenCapture(RemoteStagingSink(writer, timeout_s=60), lambda: 4)
        pixels = np.random.default_rng(1).random((3, 8, 8), np.float32)
        with ThreadPoolExecutor(32) as pool:
            staged = list(pool.map(lambda number: complete(capture, number, pixels * number), range(64)))
        assert {coords.disposition for coords in staged} == {"staged"}
        kill(get(writer.health.remote(), 60).pid, lambda: get(writer.health.remote(), 60).pid)
        get(writer.ready.remote(), 60)
        staged.append(complete(capture, 64, None))
        assert staged[-1].disposition == "staged"
    finally:
        close_actors([writer], 10)
    gone = complete(capture, 65, None)
    assert gone.disposition == "capture_failed"
    source = ParquetStagingSource(tmp_path / "staged")
    keys = [str(coords.staging_key) for coords in staged]
    for number, (snapshot, extras) in enumerate(zip(source.fetch(keys), source.fetch_extras(keys), strict=True)):
        assert snapshot.token_ids_delta == [*range(number, number + 50), *range(100)]
        assert (snapshot.digest, extras) == (staged[number].digest, {"number": number})
    for number in (0, 63):
        assert np.array_equal(source.fetch_attachments(keys[number])["pixels"].read(), pixels * number)
    assert source.fetch_attachments(keys[64]) == {}
    assert len(list((tmp_path / "staged").rglob("*.calls.parquet"))) < 64, "calls that waited together share a segment"
