"""The promise as the kernel saw it: a record is written, then synced, then its answer sent. Collected with strace."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

SERVER = """
import asyncio, socket, sys, threading
from pathlib import Path
import uvicorn
from gym_ray.model_call_capture import CaptureMiddleware, CaptureWriter

expected, arrived, all_are_here = int(sys.argv[2]), [], asyncio.Event()

async def app(scope, receive, send):
    marker = (await receive())["body"]
    arrived.append(marker)
    if len(arrived) == expected:
        all_are_here.set()  # they end together, so that their records share a batch
    await all_are_here.wait()
    sse = b"stream" in marker
    kind = b"text/event-stream" if sse else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if sse:
        delta = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\\n\\n'
        await send({"type": "http.response.body", "body": delta, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\\n\\n: %s\\n\\n" % marker, "more_body": True})
    else:
        await send({"type": "http.response.body", "body": b'{"choices": [{}], "id": "%s"}' % marker, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})

writer = CaptureWriter(Path(sys.argv[1]), server_name="traced")
writer.start()
listening = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(CaptureMiddleware(app, writer), lifespan="off", ws="none", log_level="warning"))
threading.Thread(target=lambda: (sys.stdin.read(), setattr(server, "should_exit", True)), daemon=True).start()
print(listening.getsockname()[1], flush=True)
server.run(sockets=[listening])
writer.close()
"""


@dataclass
class SystemCall:
    """One call; ``begun`` and ``ended`` are the lines of the trace at which it was entered and left."""

    name: str
    text: str
    begun: int
    ended: int
    succeeded: bool = False


def parse(trace: str) -> list[SystemCall]:
    calls: list[SystemCall] = []
    unfinished: dict[str, SystemCall] = {}
    for number, line in enumerate(trace.splitlines()):
        thread, _, text = line.partition(" ")
        if match := re.match(r"(\w+)\((.*)", text.strip()):
            call = SystemCall(match[1], match[2], number, number, _succeeded(text))
            calls.append(call)
            if text.endswith("<unfinished ...>"):
                unfinished[thread] = call
        elif re.match(r"<\.\.\. \w+ resumed>", text.strip()):
            call = unfinished.pop(thread)
            call.ended, call.succeeded = number, _succeeded(text)
    assert not unfinished
    return calls


def _succeeded(text: str) -> bool:
    return re.search(r"\) += \d+$", text) is not None


async def answers(port: int, at_once: int, calls_a_file: int) -> list[str]:
    markers = [f"{'stream' if number % 2 else 'json'}-marker-{number:03d}" for number in range(at_once)]

    async def call(client: httpx.AsyncClient, number: int, marker: str) -> None:
        url = f"http://127.0.0.1:{port}/ng-rollout/{number // calls_a_file}-0/v1/chat/completions"
        response = await client.post(url, content=marker.encode())
        assert marker in response.text

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(trust_env=False, timeout=30, limits=limits) as client:
        await asyncio.gather(*(call(client, number, marker) for number, marker in enumerate(markers)))
    return markers


def trace_server(tmp_path: Path, at_once: int, calls_a_file: int) -> tuple[list[SystemCall], list[str]]:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-s", "1000000", "-e", "signal=none"]
    command += ["-e", "trace=write,writev,fdatasync,sendto,sendmsg", "-o", str(trace)]
    command += [sys.executable, "-c", SERVER, str(tmp_path / "captures"), str(at_once)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            markers = asyncio.run(answers(int(server.stdout.readline()), at_once, calls_a_file))
            server.stdin.close()
            assert server.wait(30) == 0
        finally:
            server.kill()
    return parse(trace.read_text("utf-8", "surrogateescape")), markers


@pytest.mark.parametrize(("at_once", "calls_a_file"), [(1, 1), (2, 1), (12, 2), (64, 1)])
def test_every_record_is_written_and_synced_before_its_answer_is_sent(
    tmp_path: Path, at_once: int, calls_a_file: int
) -> None:
    calls, markers = trace_server(tmp_path, at_once, calls_a_file)
    syncs = []
    for number, marker in enumerate(markers):
        file = f"/{number // calls_a_file}-0.capture.jsonl>"
        with_marker = [call for call in calls if marker in call.text]
        assert len(with_marker) == 2, with_marker
        (written,) = (call for call in with_marker if call.name == "write" and file in call.text)
        (sent,) = (call for call in with_marker if call is not written)
        assert "socket:[" in sent.text
        synced = [call for call in calls if call.name == "fdatasync" and file in call.text and call.succeeded]
        assert any(written.ended < sync.begun and sync.ended < sent.begun for sync in synced), marker
        syncs += synced
    if at_once == 64:  # the files of a batch were synced together
        assert any(one.begun < other.begun < one.ended for one in syncs for other in syncs)
