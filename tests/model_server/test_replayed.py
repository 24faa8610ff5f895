"""How the frames of a replayed stream are handed to the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from gym_ray.dialects import CHAT
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.replayed import ReplayedStream
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer


async def told(frames: Sequence[bytes]) -> list[bytes]:
    bodies: list[bytes] = []

    async def work() -> Sequence[bytes]:
        return frames

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("a replayed stream reads nothing")

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            assert message["more_body"] is (len(b"".join(bodies)) < len(b"".join(frames)))

    await ReplayedStream(CHAT, work(), keep_alive_s=20)({"type": "http"}, receive, send)
    return bodies


async def test_small_frames_go_together_large_ones_and_the_last_alone() -> None:
    small, large, end = b"s" * 100, b"l" * 1_000_000, b"e"
    assert await told([small, small, end]) == [small * 2, end]
    assert await told([small, large, large, small, small, end]) == [small, large, large, small * 2, end]
    assert [len(body) for body in await told([b"x" * 40_000] * 3 + [end])] == [40_000, 40_000, 40_000, 1]
    assert await told([end]) == [end]


async def test_a_client_that_leaves_in_mid_replay_is_recorded_as_gone(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "x" * 6_000_000}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
    engine = FakeEngine(script=lambda request: ScriptedAnswer([answer]), dialects=(CHAT,))
    writer = CaptureWriter(tmp_path, server_name="policy_model")
    await asyncio.to_thread(writer.start)
    server = AppServer(build_app(engine, server_name="m", capture=writer))
    await server.start()
    try:
        reader, client = await asyncio.open_connection("127.0.0.1", server.port, limit=2**16)
        body = b'{"input":"hi","stream":true}'
        head = f"POST /ng-rollout/0-0/v1/responses HTTP/1.1\r\nhost: m\r\ncontent-length: {len(body)}\r\n\r\n"
        client.write(head.encode() + body)
        assert await reader.readuntil(b"response.created")
        client.transport.abort()
        path = tmp_path / "0-0.capture.jsonl"
        async with asyncio.timeout(20):
            while not (path.exists() and path.read_bytes().endswith(b"\n")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        record = json.loads(path.read_bytes())
    finally:
        await server.stop(grace_s=5)
        await asyncio.to_thread(writer.close)
    assert (record["status_code"], record["error_category"]) == (200, "cancelled")
