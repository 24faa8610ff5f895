from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gym_ray.model_call_capture import quiesce
from gym_ray.model_call_capture.open_log import is_living, list_logs, read_open_calls
from gym_ray.model_call_capture.quiesce import (
    QUIESCE_PATH,
    WrittenCalls,
    forget,
    list_written_calls,
    quiesce_endpoint,
)
from gym_ray.model_call_capture.recovery import clear_rollout
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.begun_calls import begun_call, leave_as_killed
from gym_ray.testing.storage_faults import FaultyCalls


def started(root: Path, url: str = "http://s:1", **options: Any) -> CaptureWriter:
    writer = CaptureWriter(root, server_name="s", url=url, **options)
    writer.start()
    return writer


class Asked:
    """Clients' view of one writer, and what it was asked."""

    def __init__(self, writer: CaptureWriter) -> None:
        self.count = 0
        route = Route(QUIESCE_PATH, quiesce_endpoint(writer, None), methods=["POST"])
        self._app = httpx.ASGITransport(Starlette(routes=[route]))
        self.deaf = False

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.count += 1
        if self.deaf:
            raise httpx.ReadTimeout("no answer", request=request)
        return await self._app.handle_async_request(request)


@pytest.fixture
def writer(tmp_path: Path) -> CaptureWriter:
    return started(tmp_path)


@pytest.fixture
def asked(writer: CaptureWriter) -> Asked:
    return Asked(writer)


@pytest.fixture
async def client(asked: Asked) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(asked)) as client:
        yield client


async def written(root: Path, client: httpx.AsyncClient) -> WrittenCalls:
    return (await list_written_calls(root, ["0-0"], client=client, timeout_s=0.01))["0-0"]


@pytest.mark.parametrize("at", ["_look_at_silent_writers", "lost_calls_of_dead_writers"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_silent_writer_that_dies_while_it_is_looked_for_is_found(
    tmp_path: Path,
    writer: CaptureWriter,
    asked: Asked,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    when: str,
) -> None:
    begun_call(writer)
    asked.deaf = True
    real: Callable[..., Any] = getattr(quiesce, at)

    def look(*arguments: Any) -> Any:
        if when == "before":
            leave_as_killed(writer)
            return real(*arguments)
        found = real(*arguments)
        leave_as_killed(writer)
        return found

    monkeypatch.setattr(quiesce, at, look)
    result = await written(tmp_path, client)
    assert not result.complete
    assert result.lost_call_ids or result.unreachable_writers


async def test_the_dead_are_not_asked(
    tmp_path: Path, writer: CaptureWriter, asked: Asked, client: httpx.AsyncClient
) -> None:
    lost = begun_call(writer)
    assert is_living(list_logs(tmp_path)[0])
    leave_as_killed(writer)
    assert (await written(tmp_path, client)).lost_call_ids == (lost.call_id,)
    assert await forget(tmp_path, ["0-0"], client=client) == ()
    assert asked.count == 0
    list_logs(tmp_path)[0].unlink()
    assert (await written(tmp_path, client)).complete
    assert asked.count == 0


async def test_an_address_that_swallows_connections_costs_two_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        fillers = [socket.socket() for _ in range(8)]  # the kernel drops what comes when the backlog is full
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        writer = started(tmp_path, f"http://127.0.0.1:{address[1]}")
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(20):
            answers = await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=600)
        assert answers["0-0"].unreachable_writers == (writer.writer_id,)
        for filler in fillers:
            filler.close()
        writer.close()


async def test_a_call_begun_before_its_rollout_begins_anew_is_not_in_the_new_file(
    tmp_path: Path, writer: CaptureWriter, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    late, other = begun_call(writer), begun_call(writer, "0-1")
    assert await forget(tmp_path, ["0-0"], client=client) == ()
    clear_rollout(writer.store, "0-0")
    assert (await written(tmp_path, client)).complete, "nobody waits for it either"
    new = begun_call(writer)
    await asyncio.gather(writer.commit(late), writer.commit(new), writer.commit(other))
    assert [record["model_call_id"] for record in writer.store.read("0-0")] == [new.call_id]
    assert len(writer.store.read("0-1")) == 1
    assert (writer.counts.recorded, writer.counts.withdrawn, writer.counts.failed) == (2, 1, 0)
    assert f"call {late.call_id} ended after its rollout began anew" in caplog.text
    assert not writer.store.is_incomplete("0-0")
    assert [call.call_id for call in (await written(tmp_path, client)).recorded] == [new.call_id]
    writer.close()


async def test_a_late_record_joins_its_file_where_nobody_began_anew(
    tmp_path: Path, writer: CaptureWriter, client: httpx.AsyncClient
) -> None:
    late = begun_call(writer)
    assert await forget(tmp_path, ["0-0"], client=client, withdraw_open=False) == ()
    assert (await written(tmp_path, client)).open_call_ids == (late.call_id,)
    await writer.commit(late)
    assert [record["model_call_id"] for record in writer.store.read("0-0")] == [late.call_id]
    writer.close()


async def test_a_record_under_way_is_cleared_with_its_file(tmp_path: Path) -> None:
    calls = FaultyCalls()
    writer = started(tmp_path, calls=calls)
    calls.sync_gate = threading.Event()
    writing, queued = begun_call(writer), begun_call(writer)
    commits = [asyncio.ensure_future(writer.commit(writing))]
    await asyncio.to_thread(calls.syncs_waiting.wait, 20)
    commits.append(asyncio.ensure_future(writer.commit(queued)))
    await asyncio.sleep(0)
    await writer.quiesce([], 0, ["0-0"])
    clearing = asyncio.create_task(asyncio.to_thread(clear_rollout, writer.store, "0-0"))
    calls.sync_gate.set()
    await asyncio.gather(*commits, clearing)
    new = begun_call(writer)
    await writer.commit(new)
    assert [record["model_call_id"] for record in writer.store.read("0-0")] == [new.call_id]
    recorded = (await writer.quiesce(["0-0"], 0))["rollouts"]["0-0"]["recorded"]
    assert [call[0] for call in recorded] == [new.call_id]
    writer.close()


async def test_a_crash_owes_nothing_to_a_rollout_that_began_anew(
    tmp_path: Path, writer: CaptureWriter, client: httpx.AsyncClient
) -> None:
    begun_call(writer)
    begun_call(writer, "10-0")
    await forget(tmp_path, ["0-0"], client=client)
    assert list(read_open_calls(list_logs(tmp_path)[0].read_bytes()).values()) == ["10-0"]
    leave_as_killed(writer)
    assert (await written(tmp_path, client)).complete


async def test_a_mark_of_an_earlier_attempt_is_dropped(tmp_path: Path) -> None:
    calls = FaultyCalls()
    writer = started(tmp_path, calls=calls, capture_timeout_s=0.05)
    calls.sync_gate = threading.Event()
    late = begun_call(writer)
    await writer.quiesce([], 0, ["0-0"])
    new = begun_call(writer, "0-1")
    await asyncio.gather(writer.commit(late), writer.commit(new))
    assert (writer.counts.timed_out, writer.counts.withdrawn) == (1, 1)
    calls.sync_gate.set()
    await asyncio.to_thread(writer.close)
    assert not writer.store.is_incomplete("0-0")
    assert writer.store.is_incomplete("0-1")


async def test_a_failed_record_of_an_earlier_attempt_marks_nothing(tmp_path: Path) -> None:
    class Failing(FileCalls):
        def fstat(self, fd: int) -> Any:
            raise OSError(5, "I/O error")

    writer = started(tmp_path)
    late = begun_call(writer)
    await writer.quiesce([], 0, ["0-0"])
    assert writer._running is not None
    writer._running.backend.files._calls = Failing()
    await writer.commit(late)
    assert (writer.counts.failed, writer.store.is_incomplete("0-0")) == (1, False)
    writer.close()
