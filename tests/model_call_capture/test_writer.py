from __future__ import annotations

import asyncio
import errno
import json
import stat
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.quiesce import QUIESCE_PATH, WrittenCalls, forget, list_written_calls, quiesce_endpoint
from gym_ray.model_call_capture.recovery import clear_rollout
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.begun_calls import begun_call, leave_as_killed
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls, LocklessCalls
from gym_ray.testing.waiting import until

TOKEN = "run-token"


def client_for(*writers: CaptureWriter, token: str | None = TOKEN) -> httpx.AsyncClient:
    """A client whose requests reach each writer's endpoint at the writer's own URL, and nothing else."""
    mounts = {}
    for writer in writers:
        route = Route(QUIESCE_PATH, quiesce_endpoint(writer, token), methods=["POST"])
        mounts[str(writer.url)] = httpx.ASGITransport(Starlette(routes=[route]))

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    return httpx.AsyncClient(transport=httpx.MockTransport(refuse), mounts=mounts)


def started(root: Path, name: str, **options: Any) -> CaptureWriter:
    writer = CaptureWriter(root, server_name=name, url=f"http://{name}:1", run_token=TOKEN, **options)
    writer.start()
    return writer


async def test_commits_are_durable_at_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    writer = CaptureWriter(tmp_path, server_name="s", calls=calls, threads=4)
    writer.start()
    acknowledged: list[tuple[str, str]] = []

    async def rollout(number: int) -> None:
        for _ in range(10):
            exchange = begun_call(writer, f"{number}-0")
            await writer.commit(exchange)
            acknowledged.append((exchange.rollout_id, exchange.call_id))
            kept = calls.after_power_cut(tmp_path)[f"{number}-0.capture.jsonl"].decode()
            assert json.loads(kept.splitlines()[-1])["model_call_id"] == exchange.call_id

    await asyncio.gather(*(rollout(number) for number in range(20)))
    kept = calls.after_power_cut(tmp_path)
    for rollout_id, call_id in acknowledged:
        assert call_id in kept[f"{rollout_id}.capture.jsonl"].decode()
    writer.close()


async def test_a_commit_is_readable_at_once_by_others(writer: CaptureWriter) -> None:
    exchange = begun_call(writer)
    await writer.commit(exchange)
    ((_, found),), invalid = CaptureStore(writer.store.root).read_available("0-0")
    assert (found["model_call_id"], invalid) == (exchange.call_id, 0)


async def test_two_writers_on_one_rollout(tmp_path: Path) -> None:
    writers = [started(tmp_path, "a"), started(tmp_path, "b")]

    async def many(writer: CaptureWriter) -> list[str]:
        exchanges = [begun_call(writer) for _ in range(100)]
        await asyncio.gather(*(writer.commit(exchange) for exchange in exchanges))
        return [exchange.call_id for exchange in exchanges]

    committed = await asyncio.gather(*(many(writer) for writer in writers))
    exchanges = CaptureStore(tmp_path).read("0-0")
    assert sorted(e["model_call_id"] for e in exchanges) == sorted(committed[0] + committed[1])
    assert {e["model_ref"]["name"] for e in exchanges} == {"a", "b"}
    async with client_for(*writers) as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=5))["0-0"]
    assert written.complete
    content = CaptureStore(tmp_path).path_for("0-0").read_bytes()
    for call in written.recorded:
        line = content[call.offset : call.offset + call.length]
        assert json.loads(line)["model_call_id"] == call.call_id
        assert call.file == "0-0.capture.jsonl"
    assert sorted(call.call_id for call in written.recorded) == sorted(committed[0] + committed[1])
    for writer in writers:
        writer.close()


async def test_quiesce_waits_for_open_calls(writer: CaptureWriter) -> None:
    exchange, other = begun_call(writer), begun_call(writer, "0-1")
    waiting = asyncio.create_task(writer.quiesce(["0-0"], 20))
    await asyncio.sleep(0)
    assert not waiting.done()
    await writer.commit(exchange)
    entry = (await waiting)["rollouts"]["0-0"]
    assert entry["open"] == []
    assert [call[0] for call in entry["recorded"]] == [exchange.call_id]
    entry = (await writer.quiesce(["0-1"], 0.01))["rollouts"]["0-1"]
    assert (entry["open"], entry["recorded"]) == ([other.call_id], [])
    await writer.commit(other)


async def test_a_wait_on_a_loop_that_ended_keeps_nobody_else_waiting(
    writer: CaptureWriter, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = begun_call(writer, "0-0")
    ended = asyncio.new_event_loop()
    await asyncio.to_thread(ended.close)
    writer._quiesce_waiters.add((ended, asyncio.Event()))
    waiting = asyncio.create_task(writer.quiesce(["0-0"], 20.0))
    await until(lambda: len(writer._quiesce_waiters) == 2)
    await writer.commit(exchange)
    async with asyncio.timeout(10):
        assert (await waiting)["rollouts"]["0-0"]["open"] == []
    await asyncio.to_thread(writer.close)
    assert caplog.text == ""


async def test_forget_drops_the_list(writer: CaptureWriter) -> None:
    await writer.commit(begun_call(writer))
    assert len((await writer.quiesce(["0-0"], 0))["rollouts"]["0-0"]["recorded"]) == 1
    assert (await writer.quiesce(["0-0"], 0, forget=["0-0"]))["rollouts"]["0-0"]["recorded"] == []


async def test_a_cleared_file_starts_a_new_list(writer: CaptureWriter) -> None:
    await writer.commit(begun_call(writer))
    writer.store.clear("0-0")
    exchange = begun_call(writer)
    await writer.commit(exchange)
    recorded = (await writer.quiesce(["0-0"], 0))["rollouts"]["0-0"]["recorded"]
    assert [call[0] for call in recorded] == [exchange.call_id]


async def test_a_mark_that_cannot_be_written_is_carried_and_retried(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: ".capture." in path)
    writer = started(tmp_path, "s", calls=calls)
    calls.open_error = OSError(errno.EROFS, "read-only")
    exchange = begun_call(writer)
    await writer.commit(exchange)
    assert not writer.store.is_incomplete("0-0")
    async with client_for(writer) as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"]
    assert written.marked_incomplete
    assert not written.complete
    calls.open_error = None
    await until(lambda: writer.store.is_incomplete("0-0"))
    writer.close()


async def test_close_marks_what_is_still_open(tmp_path: Path, calls: FaultyCalls) -> None:
    writer = started(tmp_path, "s", calls=calls, capture_timeout_s=0.05)
    calls.sync_gate = threading.Event()
    await writer.commit(begun_call(writer, "hung"))
    begun_call(writer, "running")
    await writer.commit(begun_call(writer, "hung-2"))
    await asyncio.to_thread(writer.close, 0.1)
    await until(lambda: all(writer.store.is_incomplete(name) for name in ("hung", "running", "hung-2")))
    late = writer.begin("late", "chat")
    assert late is None
    assert writer.store.is_incomplete("late")
    calls.sync_gate.set()
    await until(lambda: writer.counts.recorded == 2)


async def test_a_call_that_ends_after_the_close_is_marked(tmp_path: Path) -> None:
    writer = started(tmp_path, "s")
    exchange = begun_call(writer)
    await asyncio.to_thread(writer.close)
    CaptureStore(tmp_path).clear("0-0")
    await writer.commit(exchange)
    assert writer.store.is_incomplete("0-0")


async def test_a_dead_servers_open_calls_are_adopted_by_its_successor(tmp_path: Path) -> None:
    dead, other = started(tmp_path, "s"), started(tmp_path, "s-2")
    recorded = begun_call(dead, "recorded")
    lost = begun_call(dead, "lost")
    begun_call(other, "others")
    store = CaptureStore(tmp_path)
    store.record("recorded", {"model_call_id": recorded.call_id})  # durable, but its end was not noted
    leave_as_killed(dead)
    leave_as_killed(other)
    async with client_for() as client:
        written = await list_written_calls(tmp_path, ["lost", "recorded"], client=client, timeout_s=1)
    assert written["lost"] == WrittenCalls(lost_call_ids=(lost.call_id,))
    assert written["recorded"] == WrittenCalls()
    assert store.is_incomplete("lost")
    assert not store.is_incomplete("others")
    store.clear("lost")
    successor = started(tmp_path, "s")
    assert store.is_incomplete("lost")
    assert not store.is_incomplete("recorded")
    assert not store.is_incomplete("others")  # another server's log is not ours to adopt
    logs = sorted(path.stem for path in (tmp_path / ".open").iterdir())
    assert logs == sorted([other.writer_id, successor.writer_id])
    registered = sorted(path.stem for path in (tmp_path / ".gym-ray" / "writers").iterdir())
    assert registered == logs
    successor.close()


async def test_a_torn_record_of_a_dead_server_is_lost(tmp_path: Path) -> None:
    dead = started(tmp_path, "s")
    exchange = begun_call(dead)
    CaptureStore(tmp_path).path_for("0-0").write_bytes(b'{"model_call_id":"%s","dia' % exchange.call_id.encode())
    leave_as_killed(dead)
    started(tmp_path, "s").close()
    assert CaptureStore(tmp_path).is_incomplete("0-0")


async def test_a_rollout_that_begins_anew_owes_nothing_to_the_dead(tmp_path: Path) -> None:
    dead = started(tmp_path, "s")
    begun_call(dead, "0-0")
    begun_call(dead, "0-1")
    leave_as_killed(dead)
    CaptureStore(tmp_path).mark_incomplete("0-0")
    clear_rollout(CaptureStore(tmp_path), "0-0")
    assert not CaptureStore(tmp_path).is_incomplete("0-0")
    async with client_for() as client:
        written = await list_written_calls(tmp_path, ["0-0", "0-1"], client=client, timeout_s=1)
    assert written["0-0"].complete
    assert len(written["0-1"].lost_call_ids) == 1


async def test_a_living_writer_that_does_not_answer_is_named(tmp_path: Path) -> None:
    writer = started(tmp_path, "s")
    async with client_for() as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"]
        assert await forget(tmp_path, ["0-0"], client=client) == (writer.writer_id,)
    assert written.unreachable_writers == (writer.writer_id,)
    assert not written.complete
    (registered,) = (tmp_path / ".gym-ray" / "writers").iterdir()
    registered.write_bytes(b"not json")
    async with client_for(writer) as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"]
    assert written.unreachable_writers == (writer.writer_id,)
    writer.close()
    async with client_for() as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"]
    assert written.complete


async def test_a_writer_without_a_url_tells_by_its_log(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path, server_name=None)
    writer.start()
    exchange = begun_call(writer)
    async with client_for() as client:
        written = (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"]
        assert written.open_call_ids == (exchange.call_id,)
        await writer.commit(exchange)
        log = next((tmp_path / ".open").iterdir())
        await until(lambda: b"E " in log.read_bytes())
        assert (await list_written_calls(tmp_path, ["0-0"], client=client, timeout_s=1))["0-0"].complete
    assert CaptureStore(tmp_path).read("0-0")[0]["model_ref"] is None
    writer.close()


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [
        (None, {"rollout_ids": []}, 401),
        ("wrong", {"rollout_ids": []}, 401),
        ("tökén", {"rollout_ids": []}, 401),
        (TOKEN, {"rollout_ids": ["a/b"]}, 422),
        (TOKEN, {"rollout_ids": "0-0"}, 422),
        (TOKEN, {"rollout_ids": [], "timeout_s": -1}, 422),
        (TOKEN, {"rollout_ids": [], "surprise": 1}, 422),
        (TOKEN, {"rollout_ids": ["0-0"], "timeout_s": 0}, 200),
    ],
)
async def test_the_endpoint_answers(tmp_path: Path, token: str | None, body: dict[str, Any], status: int) -> None:
    writer = started(tmp_path, "s")
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    async with client_for(writer) as client:
        response = await client.post(f"{writer.url}{QUIESCE_PATH}", json=body, headers=headers)
    assert response.status_code == status
    assert ("error" in response.json()) == (status != 200)
    writer.close()


async def test_the_registration_is_for_its_owner_only(tmp_path: Path) -> None:
    writer = started(tmp_path, "s")
    (registered,) = (tmp_path / ".gym-ray" / "writers").iterdir()
    assert stat.S_IMODE(registered.stat().st_mode) == 0o600
    entry = json.loads(registered.read_bytes())
    assert (entry["url"], entry["run_token"], entry["writer_id"]) == ("http://s:1", TOKEN, writer.writer_id)
    writer.close()
    assert list((tmp_path / ".gym-ray" / "writers").iterdir()) == []
    assert list((tmp_path / ".open").iterdir()) == []


def test_a_directory_without_locks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"cannot be locked here: .*no locks"):
        CaptureWriter(tmp_path, server_name="s", calls=LocklessCalls()).start()
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="absolute"):
        CaptureWriter(Path("relative"), server_name="s").start()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CaptureError, match=r"file/x: the directory cannot be written"):
        CaptureWriter(tmp_path / "file" / "x", server_name="s").start()
    calls = FaultyCalls(only=lambda path: True)
    calls.write_error = OSError(errno.ENOSPC, "full")
    with pytest.raises(CaptureError, match=r"cannot be written: .*full"):
        CaptureWriter(tmp_path, server_name="s", calls=calls).start()
