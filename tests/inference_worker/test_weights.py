from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gym_ray.errors import DamagedRecordError, StorageError
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.app import build_app
from gym_ray.model_server.serving import AppServer
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.token_id_capture.external_staging import ExternalStaging, HostedWorker
from gym_ray.token_id_capture.staging import MemoryCaptureLedger

PATH = "/ng-token-capture/weight-version"


async def test_a_restarted_worker_stamps_calls_as_before(tmp_path: Path) -> None:
    weights = WeightVersion.kept_in(PosixStore(tmp_path), "worker of a/b")
    assert weights() == 0
    assert await weights.say(7) == 0
    assert WeightVersion.kept_in(PosixStore(tmp_path), "worker of a/b")() == 7
    assert WeightVersion.kept_in(PosixStore(tmp_path), "another worker")() == 0


async def test_a_version_that_cannot_be_kept_is_not_taken(tmp_path: Path) -> None:
    calls = FaultyCalls(lambda path: path.endswith(".json") or "workers" in path)
    weights = WeightVersion(3, PosixStore(tmp_path, calls=calls), "w")
    calls.write_error = OSError(errno.ENOSPC, "full")
    with pytest.raises(StorageError, match="full"):
        await weights.say(4)
    assert weights() == 3
    calls.write_error = None
    await asyncio.gather(*(weights.say(number) for number in range(20)))
    assert WeightVersion.kept_in(PosixStore(tmp_path), "w")() == weights()


@pytest.mark.parametrize("kept", [b"", b"{}", b'{"weight_version": -1}', b'{"weight_version": "7"}', b"\xff"])
def test_what_is_no_version_is_named_and_not_taken_for_0(tmp_path: Path, kept: bytes) -> None:
    PosixStore(tmp_path).publish("workers/w.json", kept)
    with pytest.raises(DamagedRecordError, match=r"workers/w\.json holds no weight version"):
        WeightVersion.kept_in(PosixStore(tmp_path), "w")


async def asked(worker: HostedWorker, body: object, token: str = "run") -> httpx.Response:
    """Say a version to a model server in front of a worker."""
    external = ExternalStaging(MemoryCaptureLedger(), "vllm_worker", "control", worker=worker)
    app = build_app(FakeEngine(), server_name="m", capture=None, run_token="run", external=external)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://m", headers=headers) as client:
        return await client.post(PATH, json=body)


async def test_a_model_server_hands_the_version_to_its_worker() -> None:
    said: list[tuple[str, object]] = []

    async def worker(request: Request) -> JSONResponse:
        said.append((request.headers["authorization"], json.loads(await request.body())))
        return JSONResponse({"previous": 1}, 200 if len(said) == 1 else 422)

    server = AppServer(Starlette(routes=[Route(PATH, worker, methods=["POST"])]))
    await server.start()
    hosted = HostedWorker(server.url, "its key")
    try:
        first, second = await asked(hosted, {"version": 4}), await asked(hosted, {"version": "x"})
        stranger = await asked(hosted, {"version": 5}, token="another")
    finally:
        await server.stop(1)
    assert (first.status_code, first.json(), second.status_code) == (200, {"previous": 1}, 422)
    assert stranger.status_code == 401
    assert said == [("Bearer its key", {"version": 4}), ("Bearer its key", {"version": "x"})]
    gone = await asked(hosted, {"version": 4})
    assert gone.status_code == 502
    assert "did not answer" in gone.json()["error"]["message"]
    assert "its key" not in gone.text
