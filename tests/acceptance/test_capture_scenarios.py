"""What capture promises its users, shown on the whole model server: a socket, an engine, a writer and a disk."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_call_capture import CaptureStore, read_model_call_records
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.captured_model import CapturedModel, captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls
from gym_ray.testing.waiting import until

DIALECTS = (RESPONSES, CHAT, MESSAGES)
PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
ASKED: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "m", "input": "hi"},
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}
LAST_EVENT = {RESPONSES: b'"response.completed"', CHAT: b"[DONE]", MESSAGES: b'"message_stop"'}
KEEP_ALIVE = b": keep-alive\n\n"


def client_of(model: CapturedModel, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=30, **options)


async def post(model: CapturedModel, dialect: str, rollout_id: str = "0-0", **members: Any) -> httpx.Response:
    async with client_of(model) as http:
        return await http.post(f"/ng-rollout/{rollout_id}{PATH_OF[dialect]}", json={**ASKED[dialect], **members})


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("[!.]*")}


# --- 1: which calls are recorded where -------------------------------------------------------------------------------


async def test_calls_of_one_rollout_are_the_lines_of_one_file(tmp_path: Path) -> None:
    async with captured_model(tmp_path, FakeEngine()) as model, client_of(model) as http:
        for dialect in (CHAT, RESPONSES):
            assert (await post(model, dialect)).status_code == 200
        before = files_in(tmp_path)
        assert (await http.post(PATH_OF[CHAT], json=ASKED[CHAT])).status_code == 200
        assert files_in(tmp_path) == before
    records = read_model_call_records(CaptureStore(tmp_path), "0-0")
    assert [record.call_index for record in records] == [0, 1]
    assert len({record.model_call_id for record in records}) == 2
    assert list(before) == ["0-0.capture.jsonl"]


async def test_what_is_recorded_depends_on_path_and_id_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chat = PATH_OF[CHAT]
    async with captured_model(tmp_path, FakeEngine()) as model, client_of(model) as http:
        assert (await http.get(f"/ng-rollout/1-0{chat}")).status_code == 405
        assert (await http.post(f"/ng-rollout/1-1{chat}%0A", json=ASKED[CHAT])).status_code == 404
        with caplog.at_level(logging.WARNING):
            for odd in ("a%20b", "%2E%2E", "-a", "a%0A"):
                assert (await http.post(f"/ng-rollout/{odd}{chat}", json=ASKED[CHAT])).status_code == 200
        assert "served but not captured: rollout id: 'a b'" in caplog.text
        assert model.rollout_ids() == ["1-0"]
        (record,) = model.records("1-0")
    assert (record["status_code"], record["error_category"], record["request"]) == (405, "client_error", None)


# --- 2: the record before the last byte ------------------------------------------------------------------------------


class SlowDisk(FaultyCalls, ForgetfulCalls):
    """Syncs when it is let, and knows what a power cut would leave."""


@dataclass
class Reader:
    """A client that stops reading as soon as its dialect says that the answer is whole."""

    dialect: str
    stream: bool
    rollout_id: str
    received: bytearray = field(default_factory=bytearray)

    def has_all(self) -> bool:
        if self.stream:
            return LAST_EVENT[self.dialect] in self.received and self.received.endswith(b"\n\n")
        return self.received.endswith(b"}") and self.received.count(b"{") == self.received.count(b"}")

    async def read(self, http: httpx.AsyncClient) -> None:
        path = f"/ng-rollout/{self.rollout_id}{PATH_OF[self.dialect]}"
        body = {**ASKED[self.dialect], "stream": self.stream}
        async with http.stream("POST", path, json=body) as response:
            async for chunk in response.aiter_raw():
                self.received += chunk
                if self.has_all():
                    return


@pytest.mark.parametrize("spoken", DIALECTS)
async def test_on_a_slow_disk_the_record_is_durable_when_the_client_has_its_last_byte(
    tmp_path: Path, spoken: str
) -> None:
    disk, synced = SlowDisk(), threading.Event()
    disk.sync_gate = synced
    readers = [Reader(d, s, f"{n}-0") for n, (d, s) in enumerate((d, s) for d in DIALECTS for s in (False, True))]

    async def read(reader: Reader, http: httpx.AsyncClient) -> None:
        await reader.read(http)
        assert reader.has_all()
        assert synced.is_set(), "the client had its last byte before the disk had the record"
        kept = disk.after_power_cut(tmp_path)[f"{reader.rollout_id}.capture.jsonl"]
        (record,) = CaptureStore(tmp_path).read(reader.rollout_id)
        assert json.loads(kept) == record
        assert (record["dialect"], record["error_category"]) == (reader.dialect, None)
        assert "one two" in json.dumps(record["response"])

    async with captured_model(tmp_path, FakeEngine("one two", dialects=(spoken,)), calls=disk) as model:
        async with client_of(model) as http, asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(read(reader, http))
            await until(lambda: disk.syncs_waiting.is_set() and all(b"two" in r.received for r in readers if r.stream))
            one_second = threading.Timer(1.0, synced.set)
            one_second.start()
            assert not any(disk.after_power_cut(tmp_path).values()), "deltas do not wait for records"
            assert [bytes(reader.received) for reader in readers if not reader.stream] == [b""] * 3
        one_second.join()


# --- 3: clients that hang up -----------------------------------------------------------------------------------------


async def hang_up_after(url: str, path: str, body: dict[str, Any], wanted: bytes, everybody: asyncio.Barrier) -> None:
    """Send a request on a socket of its own, wait for some bytes of the answer, and close the socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: model\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    if wanted:
        await reader.readuntil(wanted)
    await everybody.wait()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("spoken", [CHAT, RESPONSES], ids=["forwarded", "converted"])
async def test_clients_that_hang_up_while_every_thread_is_busy_are_recorded(tmp_path: Path, spoken: str) -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy: list[Any] = []
    delta = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    never = asyncio.Event()
    streams = spoken == CHAT

    def script(request: Any) -> ScriptedAnswer:
        if request.stream:
            return ScriptedAnswer([delta, b""], content_type=SSE, gates={1: never})
        return ScriptedAnswer([b"{}"], start_gate=never)

    engine = FakeEngine(script=script, dialects=(spoken,))
    options = AppOptions(bridge=BridgeOptions(keep_alive_s=0.02))
    async with captured_model(tmp_path, engine, options=options) as model:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        busy = [loop.run_in_executor(None, free.wait), asyncio.create_task(anyio.to_thread.run_sync(free.wait))]
        try:
            everybody = asyncio.Barrier(20)
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    stream = number % 2 == 0
                    wanted = (b"half" if streams else KEEP_ALIVE.strip()) if stream else b""
                    path = f"/ng-rollout/{number}-0{PATH_OF[CHAT]}"
                    body = {**ASKED[CHAT], "stream": stream}
                    group.create_task(hang_up_after(model.url, path, body, wanted, everybody))
                await until(lambda: len(engine.requests) == 20)
            await until(lambda: len(model.rollout_ids()) == 20 and all(model.records(f"{n}-0") for n in range(20)))
        finally:
            free.set()
            await asyncio.gather(*busy)
            limiter.total_tokens = 40
        for number in range(20):
            (record,) = model.records(f"{number}-0")
            assert record["error_category"] == "cancelled"
            assert record["request"] == {**ASKED[CHAT], "stream": number % 2 == 0}
            if number % 2:
                assert (record["status_code"], record["response"]) == (None, None)
            elif streams:
                assert record["response"]["choices"][0]["message"]["content"] == "half"
                assert record["response_raw"] == delta.decode()
            else:
                assert record["response_raw"].startswith(KEEP_ALIVE.decode())
            assert not CaptureStore(tmp_path).is_incomplete(f"{number}-0")
    assert engine.open_answers == 0


# --- 4: a directory that cannot be written any more ------------------------------------------------------------------


async def test_a_directory_that_became_read_only_changes_no_answer_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyCalls(only=lambda path: ".capture." in path)
    async with captured_model(tmp_path, FakeEngine(), calls=disk) as model:
        expected = {dialect: await post(model, dialect, "9-9") for dialect in DIALECTS}
        disk.open_error = PermissionError(errno.EROFS, "read-only file system")
        with caplog.at_level(logging.WARNING):
            for dialect in DIALECTS:
                answer = await post(model, dialect)
                assert (answer.status_code, answer.content) == (200, expected[dialect].content)
        assert "0-0.capture.jsonl" in caplog.text
        assert "read-only file system" in caplog.text
        assert model.records("0-0") == []
        disk.open_error = None
        assert (await post(model, CHAT)).status_code == 200
        store = CaptureStore(tmp_path)
        await until(lambda: store.is_incomplete("0-0"))
    attachment = build_attachment("0-0", store.snapshot("0-0"))
    assert attachment["metrics"]["num_calls"] == 1
    assert [gap["code"] for gap in attachment["gaps"]] == ["model_call_capture_incomplete"]


# --- 5: one rollout's disk trouble is no other's ---------------------------------------------------------------------


async def test_a_rollout_whose_sync_hangs_holds_up_no_other(tmp_path: Path) -> None:
    disk = FaultyCalls(only=lambda path: path.endswith("/0-0.capture.jsonl"))
    disk.sync_gate = threading.Event()
    async with captured_model(tmp_path, FakeEngine(), calls=disk) as model:
        hung = asyncio.create_task(post(model, CHAT))
        await until(disk.syncs_waiting.is_set)
        for number in range(1, 10):
            assert (await post(model, CHAT, f"{number}-0")).status_code == 200
            assert len(model.records(f"{number}-0")) == 1
        assert not hung.done()
        disk.sync_gate.set()
        assert (await hung).status_code == 200


# --- 7: a server that is killed in the middle of a line --------------------------------------------------------------

KILLED_SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
import httpx
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.storage_faults import FaultyCalls

class Torn(FaultyCalls):
    written = 0
    def write(self, fd, data):
        if self._only(self.path_of(fd)):
            Torn.written += 1
            if Torn.written == 2:
                os.write(fd, bytes(data)[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        return super().write(fd, data)

async def main():
    async with captured_model(Path(sys.argv[1]), FakeEngine(), calls=Torn()) as model:
        async with httpx.AsyncClient(base_url=model.url, trust_env=False) as http:
            while True:
                await http.post("/ng-rollout/0-0/v1/chat/completions", json={})

asyncio.run(main())
"""


async def test_a_server_killed_in_the_middle_of_a_line_costs_that_line_and_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_SERVER, str(tmp_path)]
    killed = await asyncio.to_thread(subprocess.run, command, timeout=50)
    assert killed.returncode == -signal.SIGKILL
    store = CaptureStore(tmp_path)
    assert not store.path_for("0-0").read_bytes().endswith(b"\n")
    async with captured_model(tmp_path, FakeEngine()) as model:
        assert (await post(model, CHAT)).status_code == 200
    exchanges, invalid = store.read_available("0-0")
    assert invalid == 1
    assert [(index, exchange["request"]) for index, exchange in exchanges] == [(0, {}), (2, ASKED[CHAT])]
    codes = [gap["code"] for gap in build_attachment("0-0", store.snapshot("0-0"))["gaps"]]
    assert codes == ["model_call_capture_records_unreadable", "model_call_capture_incomplete"]


# --- 8: without capture ----------------------------------------------------------------------------------------------


async def test_a_server_without_capture_answers_prefixed_calls_like_others() -> None:
    server = AppServer(build_app(FakeEngine("one two"), server_name="m", capture=None))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            for dialect in DIALECTS:
                for members in ({}, {"stream": True}, {"stream": "odd"}):
                    body = {**ASKED[dialect], **members}
                    plain = await http.post(PATH_OF[dialect], json=body)
                    prefixed = await http.post(f"/ng-rollout/0-0{PATH_OF[dialect]}", json=body)
                    assert (plain.status_code, plain.content) == (prefixed.status_code, prefixed.content)
                    assert {**plain.headers, "date": ""} == {**prefixed.headers, "date": ""}
    finally:
        await server.stop(grace_s=5)


# --- 9: redirects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_followed_redirect_is_recorded_under_its_rollout(tmp_path: Path, dialect: str) -> None:
    async with captured_model(tmp_path, FakeEngine()) as model, client_of(model, follow_redirects=True) as http:
        response = await http.post(f"/ng-rollout/3-1{PATH_OF[dialect]}/?q=1", json=ASKED[dialect])
        assert [hop.status_code for hop in response.history] == [307]
        assert response.status_code == 200
        (record,) = model.records("3-1")
    assert record["request"] == ASKED[dialect]


# --- 10: attempts ----------------------------------------------------------------------------------------------------


async def test_an_attempt_has_a_file_of_its_own_and_begins_empty_when_it_is_run_again(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    async with captured_model(tmp_path, FakeEngine()) as model:
        await post(model, CHAT, "5-2")
        first = store.path_for("5-2").read_bytes()
        await post(model, CHAT, "5-2-a1")
        await post(model, RESPONSES, "5-2-a1")
        await asyncio.to_thread(store.clear, "5-2-a1")
        assert model.records("5-2-a1") == []
        await post(model, MESSAGES, "5-2-a1")
        assert [record["dialect"] for record in model.records("5-2-a1")] == [MESSAGES]
    assert store.path_for("5-2").read_bytes() == first


# --- 14: one huge event ----------------------------------------------------------------------------------------------


async def test_an_event_of_eight_mib_in_pieces_of_four_kib_passes_and_is_recorded(tmp_path: Path) -> None:
    """Minutes, and the end of this test by its timeout, where every piece brings a look at all pieces before it."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}]}\n\n' % (b"a" * 2**23)
    body = event + b"data: [DONE]\n\n"
    answer = ScriptedAnswer([body[start : start + 4096] for start in range(0, len(body), 4096)], content_type=SSE)
    async with captured_model(tmp_path, FakeEngine(script=lambda request: answer)) as model:
        response = await post(model, CHAT, stream=True)
        assert response.content == body
        (record,) = model.records("0-0")
    assert record["error_category"] is None
    assert record["response"]["choices"][0]["message"]["content"] == "a" * 2**23
