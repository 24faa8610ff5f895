"""Captures of a directory and of an object store, held to the same: recorded, joined, cleared, marked, lost."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gym_ray.capture_location import CaptureLocation
from gym_ray.evidence.build import JoinOptions
from gym_ray.evidence.run_result import RunResult
from gym_ray.model_call_capture.captures import Captures, open_captures, open_existing_captures
from gym_ray.model_call_capture.lines import parse_lines
from gym_ray.model_call_capture.quiesce import QUIESCE_PATH, WrittenCalls, quiesce_endpoint
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, Lost
from gym_ray.rollouts.rejoining.rejoin import RejoinReport, rejoin
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan, RunSession
from gym_ray.testing.fake_rollouts import FakePort, answer
from gym_ray.testing.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Servers:
    """Model servers of one place: a writer each, and the network to them."""

    def __init__(self, location: CaptureLocation, root: Path) -> None:
        self.location, self._root = location, root
        self.writers: dict[str, CaptureWriter] = {}
        self._apps: dict[str, Starlette] = {}
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._route))

    def start(self, name: str) -> CaptureWriter:
        directory = self.location.directory
        backend = directory or SegmentBackend.at(self.location, local_dir=self._root / "local")
        writer = CaptureWriter(backend, server_name=name, url=f"http://{name}")
        writer.start()
        self.writers[name] = writer
        self._apps[name] = Starlette(routes=[Route(QUIESCE_PATH, quiesce_endpoint(writer, None), methods=["POST"])])
        return writer

    async def _route(self, request: httpx.Request) -> httpx.Response:
        app = self._apps.get(request.url.host)
        if app is None:
            raise httpx.ConnectError("refused", request=request)
        return await httpx.ASGITransport(app).handle_async_request(request)

    async def stop(self, name: str) -> None:
        del self._apps[name]
        await asyncio.to_thread(self.writers.pop(name).close)

    def cut_off(self, name: str) -> None:
        """Take a server off the network; it lives on."""
        del self._apps[name]

    async def aclose(self) -> None:
        for writer in self.writers.values():
            await asyncio.to_thread(writer.close)
        await self.client.aclose()


async def call(writer: CaptureWriter, rollout_id: str) -> str:
    exchange = writer.begin(rollout_id, "chat")
    assert exchange is not None
    exchange.status, exchange.complete = 200, True
    await writer.commit(exchange)
    return exchange.call_id


@pytest.fixture(params=["directory", "memory", "s3"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> AsyncIterator[Servers]:
    location = {
        "directory": CaptureLocation.of(tmp_path / "captures"),
        "memory": CaptureLocation(f"memory://anywhere-{secrets.token_hex(6)}"),
        "s3": CaptureLocation(s3.new_url(), s3.options()),
    }[request.param]
    found = Servers(location, tmp_path)
    yield found
    await found.aclose()


@pytest.fixture
def captures(servers: Servers) -> Iterator[Captures]:
    found = open_captures(servers.location)
    yield found
    found.close()


async def read(servers: Servers, captures: Captures, rollout_id: str = "0-0") -> tuple[list[str], bool]:
    """Return the calls that a join would attach, and whether it would say that something is missing."""
    asked = (await captures.written_calls([rollout_id], client=servers.client, timeout_s=0.0))[rollout_id]
    snapshot = captures.snapshot(rollout_id, asked)
    assert snapshot.error is None
    found = [exchange["model_call_id"] for _, exchange in parse_lines(snapshot.data or b"")[0]]
    assert {recorded.call_id for recorded in asked.recorded} <= set(found)
    return found, snapshot.incomplete or not asked.complete


async def test_calls_of_two_servers_are_read_in_order(servers: Servers, captures: Captures) -> None:
    one, two = servers.start("one"), servers.start("two")
    calls = [await call(writer, "0-0") for writer in (one, two, one, two)]
    other = await call(one, "1-0")
    assert await read(servers, captures) == (calls, False)
    assert await read(servers, captures, "1-0") == ([other], False)
    assert await read(servers, captures, "2-0") == ([], False)
    assert sorted(captures.rollout_ids()) == ["0-0", "1-0"]
    assert str(servers.location) == captures.place


async def test_calls_of_servers_that_ended_are_read(servers: Servers, captures: Captures) -> None:
    calls = [await call(servers.start("one"), "0-0")]
    assert await read(servers, captures) == (calls, False)
    await servers.stop("one")
    calls.append(await call(servers.start("two"), "0-0"))
    assert await read(servers, captures) == (calls, False)


async def test_clearing_begins_anew(servers: Servers, captures: Captures) -> None:
    one, two = servers.start("one"), servers.start("two")
    for writer in (one, two):
        await call(writer, "0-0")
    kept = await call(one, "1-0")
    assert await captures.forget(["0-0"], client=servers.client) == ()
    await asyncio.to_thread(captures.clear, "0-0")
    assert await read(servers, captures) == ([], False)
    new = await call(two, "0-0")
    for reader in (captures, open_captures(servers.location)):
        assert await read(servers, reader) == ([new], False)
        assert await read(servers, reader, "1-0") == ([kept], False)


async def test_an_open_call_is_missing(servers: Servers, captures: Captures) -> None:
    writer = servers.start("one")
    exchange = writer.begin("0-0", "chat")
    assert exchange is not None
    assert await read(servers, captures) == ([], True)
    exchange.status, exchange.complete = 200, True
    await writer.commit(exchange)
    assert await read(servers, captures) == ([exchange.call_id], False)


async def test_a_server_that_is_cut_off_is_a_gap_and_its_records_are_read(servers: Servers, captures: Captures) -> None:
    calls = [await call(servers.start("one"), "0-0")]
    servers.cut_off("one")
    assert await read(servers, captures) == (calls, True)


async def test_a_mark_stays_until_cleared(servers: Servers, captures: Captures) -> None:
    writer = servers.start("one")
    exchange = writer.begin("0-0", "chat")
    assert exchange is not None
    await servers.stop("one")  # it marks what it cannot finish
    assert captures.is_incomplete("0-0")
    assert await read(servers, captures) == ([], True)
    again = open_captures(servers.location)
    await again.forget(["0-0"], client=servers.client)
    await asyncio.to_thread(again.clear, "0-0")
    assert await read(servers, captures) == ([], False)


async def test_a_run_is_collected_wherever_its_captures_are(servers: Servers, tmp_path: Path) -> None:
    """A whole run, from claim to records, and a second one with the same ids in the same place."""
    writer = servers.start("policy")
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"responses_create_params": {"input": str(n)}}) + "\n" for n in range(6)))
    previous: set[str] = set()
    for run in ("first", "second"):
        made: dict[str, list[str]] = {}

        async def agent(job: AttemptJob, made: dict[str, list[str]] = made) -> RunResult | Lost:
            made[job.rollout_id] = [await call(writer, job.rollout_id) for _ in range(2)]
            return await answer(job)

        records = await collected(servers, tmp_path / f"{run}.jsonl", source, agent)
        assert len(records) == 6
        for record in records:
            attached = record["ng_model_call_capture"]
            ids = [found["model_call_id"] for found in attached["calls"]]
            assert ids == made[attached["rollout_id"]]
            assert not previous & set(ids)
            assert attached.get("gaps", []) == []
        previous = {call_id for ids in made.values() for call_id in ids}
    again = await asyncio.to_thread(rejoined, servers.location, tmp_path / "second.jsonl")
    assert (again.records, again.unchanged) == (6, 6)
    before = await asyncio.to_thread(rejoined, servers.location, tmp_path / "first.jsonl")
    assert (before.unchanged, before.kept_count) == (0, 6)  # its captures are those of the second run now


def rejoined(location: CaptureLocation, output: Path) -> RejoinReport:
    captures = open_existing_captures(location)
    try:
        return rejoin(RunPaths.of(output), captures, options=JoinOptions(), written_calls=lambda _: WrittenCalls())
    finally:
        captures.close()


async def collected(servers: Servers, output: Path, source: Path, agent: Any) -> list[dict[str, Any]]:
    options = RowOptions(agent_name="a")
    limits = CollectionSettings(num_samples_in_parallel=3, join_backoff_s=0.001)
    session = RunSession(RunPlan(RunPaths.of(output), source, options, limits, servers.location))
    try:
        await asyncio.to_thread(session.begin)
        clearing = open_captures(servers.location)
        joiner = Joiner(session.plan.paths, servers.location, client=servers.client, quiesce_timeout_s=1.0)

        class Port(FakePort):
            async def clear(self, rollout_ids: Any) -> None:
                await clearing.forget(rollout_ids, client=servers.client)
                for rollout_id in rollout_ids:
                    await asyncio.to_thread(clearing.clear, rollout_id)

        collection = session.collection(Port(None, agent, joiner=joiner))
        async for _ in collection.finished():
            pass
        await joiner.aclose()
        clearing.close()
    finally:
        session.close()
    return [json.loads(line) for line in (await asyncio.to_thread(output.read_bytes)).splitlines()]
