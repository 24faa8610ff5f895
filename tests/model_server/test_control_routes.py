from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from gym_ray.errors import CaptureError
from gym_ray.model_server.control_routes import CONTROL_PREFIX, MAX_IDS, control_routes
from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging import MemoryCaptureLedger, RolloutManifest

SECRET = "s3cret-é"
AUTHORISED = {b"authorization": b"Bearer " + SECRET.encode()}
MANIFEST = f"{CONTROL_PREFIX}/rollouts/r1/manifest"
RETIRE, DELETE = (f"{CONTROL_PREFIX}/rollouts/{what}" for what in ("retire", "delete"))


@pytest.fixture
async def ledger() -> MemoryCaptureLedger:
    ledger = MemoryCaptureLedger()
    await ledger.record(commit_of_turn(0))
    return ledger


@pytest.fixture
async def client(ledger: MemoryCaptureLedger) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Starlette(routes=control_routes(ledger, SECRET)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def test_a_manifest_is_whole(client: httpx.AsyncClient, ledger: MemoryCaptureLedger) -> None:
    answer = await client.get(MANIFEST, headers=AUTHORISED)
    assert answer.status_code == 200
    assert RolloutManifest.model_validate_json(answer.content) == await ledger.manifest("r1")
    empty = await client.get(MANIFEST.replace("r1", "unknown"), headers=AUTHORISED)
    assert (empty.status_code, empty.json()["records"], empty.json()["failures"]) == (200, [], [])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"bearer " + SECRET.encode())],
        [(b"authorization", b"Bearer " + SECRET.encode() + b" ")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [*AUTHORISED.items(), (b"authorization", b"Bearer wrong")],
        [(b"x-api-key", SECRET.encode())],
    ],
)
async def test_nothing_is_looked_at_before_the_secret(
    client: httpx.AsyncClient, ledger: MemoryCaptureLedger, headers: list[tuple[bytes, bytes]]
) -> None:
    asked = [
        await client.get(MANIFEST, headers=headers),
        await client.get(MANIFEST.replace("r1", "a%20b"), headers=headers),
        await client.post(RETIRE, headers=headers, json={"rollout_ids": ["r1"]}),
        await client.post(DELETE, headers=headers, content=b"no json"),
    ]
    assert [answer.status_code for answer in asked] == [401] * 4
    assert await ledger.has_rows("r1")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", MANIFEST, 405),
        ("GET", RETIRE, 405),
        ("PUT", DELETE, 405),
        ("GET", f"{CONTROL_PREFIX}/rollouts/a%2Fb/manifest", 404),
        ("GET", f"{CONTROL_PREFIX}/rollouts", 404),
        ("GET", f"{CONTROL_PREFIX}/rollouts/a%20b/manifest", 400),
        ("GET", f"{CONTROL_PREFIX}/rollouts/../manifest", 404),
    ],
)
async def test_other_paths_and_methods(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path, headers=AUTHORISED)
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"rollout_ids": []}',
        b'{"rollout_ids": "r1"}',
        b'{"rollout_ids": [1]}',
        b'{"rollout_ids": ["r1"], "more": 1}',
        b'{"rollout_ids": [' + b'"r",' * MAX_IDS + b'"r"]}',
        b'{"rollout_ids": ["\xff"]}',
    ],
)
async def test_bad_bodies_change_nothing(client: httpx.AsyncClient, ledger: MemoryCaptureLedger, body: bytes) -> None:
    answer = await client.post(RETIRE, headers=AUTHORISED, content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert await ledger.has_rows("r1")


async def test_one_bad_id_changes_nothing(client: httpx.AsyncClient, ledger: MemoryCaptureLedger) -> None:
    for path in (RETIRE, DELETE):
        answer = await client.post(path, headers=AUTHORISED, json={"rollout_ids": ["r1", "a b"]})
        assert (answer.status_code, answer.json()) == (400, {"detail": "Invalid rollout id: 'a b'"})
    assert await ledger.has_rows("r1")


async def test_a_huge_body_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(RETIRE, headers=AUTHORISED, content=b" " * (4 * 1024**2 + 1))
    assert answer.status_code == 413


async def test_what_is_retired_answers_so_until_it_is_deleted(client: httpx.AsyncClient) -> None:
    ids = {"rollout_ids": ["r1", "r2", "r1"]}
    retired = await client.post(RETIRE, headers=AUTHORISED, json=ids)
    assert (retired.status_code, retired.json()["removed"], retired.json()["absent"]) == (200, ["r1"], ["r2"])
    for rollout_id in ("r1", "r2"):
        gone = await client.get(MANIFEST.replace("r1", rollout_id), headers=AUTHORISED)
        assert gone.status_code == 410
        assert rollout_id in gone.json()["detail"]
    deleted = await client.post(DELETE, headers=AUTHORISED, json=ids)
    assert (deleted.status_code, deleted.json()["absent"]) == (200, ["r1", "r2"])
    assert (await client.get(MANIFEST, headers=AUTHORISED)).status_code == 200


async def test_a_ledger_that_cannot_be_read_is_no_empty_manifest(
    client: httpx.AsyncClient, ledger: MemoryCaptureLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(rollout_id: str) -> Any:
        raise CaptureError(f"the disk of {rollout_id} is gone")

    monkeypatch.setattr(ledger, "manifest", fail)
    answer = await client.get(MANIFEST, headers=AUTHORISED)
    assert (answer.status_code, answer.json()) == (503, {"detail": "the disk of r1 is gone"})
