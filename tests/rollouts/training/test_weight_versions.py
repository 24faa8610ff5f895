"""Weight versions go forward, or back with a new epoch; every server hears them; old rows are told from new ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gym_ray.errors import ClusterError, SettingsError, StorageError
from gym_ray.model_server.weight_version import WEIGHT_VERSION_PATH
from gym_ray.rollouts.training.weight_versions import (
    STALE,
    UNKNOWN_VERSION,
    Spoken,
    VersionOrder,
    say_version,
    stale_reasons,
)
from gym_ray.testing.serving import served
from gym_ray.token_id_capture.token_table import token_table


def test_a_version_that_goes_back_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    order = VersionOrder(tmp_path)
    assert order.advance(3) == order.advance(3) == Spoken(3, 0)
    assert order.last == Spoken(3, 0)
    again = VersionOrder(tmp_path)
    with pytest.raises(SettingsError, match=r"2 goes back behind 3.*new_epoch=True"):
        again.advance(2)
    assert again.last == Spoken(3, 0)
    assert again.advance(2, new_epoch=True) == Spoken(2, 1)
    assert VersionOrder(tmp_path).last == Spoken(2, 1)


@pytest.mark.parametrize("version", [True, "3", 1.5, None, 2**63])
def test_a_version_is_a_whole_number(tmp_path: Path, version: Any) -> None:
    with pytest.raises(SettingsError, match="whole number"):
        VersionOrder(tmp_path).advance(version)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "weight-version.json").write_text('{"version": "3"}')
    with pytest.raises(StorageError, match=r"weight-version\.json"):
        VersionOrder(tmp_path)


def test_every_server_hears_a_version_and_each_that_does_not_is_named() -> None:
    heard: list[Any] = []

    async def hear(request: Request) -> JSONResponse:
        heard.append((await request.json(), request.headers.get("authorization")))
        return JSONResponse({})

    app = Starlette(routes=[Route(WEIGHT_VERSION_PATH, hear, methods=["POST"])])
    with served(app) as one, served(app) as two, served(Starlette()) as without:
        say_version({"one": one, "two": two}, 4, "secret")
        assert heard == [({"version": 4}, "Bearer secret")] * 2
        with pytest.raises(ClusterError, match=r"weight version 5 .*three: it captures no tokens.*four: ConnectError"):
            say_version({"one": one, "three": without, "four": "http://127.0.0.1:1"}, 5, None, patience_s=0)
    assert len(heard) == 3


def test_a_server_that_is_away_for_a_moment_hears_the_version_when_it_is_back() -> None:
    heard: list[Any] = []

    async def hear(request: Request) -> JSONResponse:
        heard.append(await request.json())
        return JSONResponse({}, 502 if len(heard) == 1 else 503 if len(heard) == 2 else 200)

    with served(Starlette(routes=[Route(WEIGHT_VERSION_PATH, hear, methods=["POST"])])) as url:
        say_version({"one": url}, 4, None)
        assert heard == [{"version": 4}] * 3


async def test_a_server_that_hangs_up_is_asked_again() -> None:
    tries: list[bytes] = []

    async def deaf_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(await reader.readuntil(b"\r\n\r\n"))
        if len(tries) > 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(deaf_at_first, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await asyncio.to_thread(say_version, {"one": f"http://127.0.0.1:{port}"}, 5, None)
    assert len(tries) == 2


def test_rows_are_told_by_the_version_of_their_oldest_token() -> None:
    def row(version: int | None) -> dict[str, Any]:
        spans = [] if version is None else [{"version": version, "start": 0, "end": 1}]
        policy = [{"kind": "policy", "start": 0, "end": 1}]
        base = {"rollout_id": "0-0", "chain_id": "main", "mask_sample": False, "reasons": []}
        return base | {
            "token_ids": [1],
            "loss_mask": [1],
            "policy_log_probs": [0.0],
            "spans": policy,
            "weight_spans": spans,
        }

    table = token_table([row(5), row(3), row(2), row(None)])
    assert list(stale_reasons(table, Spoken(5, 1), 2)) == [(), (), (STALE,), (UNKNOWN_VERSION,)]
