from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import pytest

from gym_ray.dialects import CHAT
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.paced_network import PacedNetwork
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.loop_turns import LoopTurns
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.waiting import until

BURST, A_TURN = 200, 16


class FakeStream(httpcore.AsyncNetworkStream):
    """A connection whose bytes come when it is told; notes what was done to it."""

    def __init__(self, come: asyncio.Event, done: list[tuple[Any, ...]]) -> None:
        self._come, self._done = come, done

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await self._come.wait()
        self._done.append(("read", max_bytes, timeout))
        return b"x"

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._done.append(("write", buffer, timeout))

    async def aclose(self) -> None:
        self._done.append(("close",))

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        self._done.append(("tls", ssl_context, server_hostname, timeout))
        return FakeStream(self._come, self._done)

    def get_extra_info(self, info: str) -> Any:
        return f"{info} of the connection"


class FakeNetwork(httpcore.AsyncNetworkBackend):
    def __init__(self) -> None:
        self.come = asyncio.Event()
        self.done: list[tuple[Any, ...]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.done.append(("tcp", host, port, timeout, local_address, socket_options))
        return FakeStream(self.come, self.done)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.done.append(("unix", path, timeout, socket_options))
        return FakeStream(self.come, self.done)

    async def sleep(self, seconds: float) -> None:
        self.done.append(("sleep", seconds))


@pytest.mark.parametrize("secured", [False, True])
async def test_bytes_that_come_together_on_all_connections_are_given_on_a_few_in_each_turn(secured: bool) -> None:
    inner = FakeNetwork()
    network = PacedNetwork(inner)
    streams = [await network.connect_tcp("h", 1) for _ in range(BURST)]
    if secured:
        trust = ssl.create_default_context()
        streams = [await stream.start_tls(trust) for stream in streams]

    async def read(stream: httpcore.AsyncNetworkStream) -> None:
        assert await stream.read(10) == b"x"
        turns.note("read")

    with LoopTurns() as turns:
        tasks = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        inner.come.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
    assert turns.total("read") == BURST
    assert turns.most("read") <= 3 * A_TURN


async def test_everything_else_goes_to_the_network_as_it_is() -> None:
    inner = FakeNetwork()
    inner.come.set()
    network, trust = PacedNetwork(inner), ssl.create_default_context()
    await network.sleep(0.5)
    await network.connect_unix_socket("/socket", 3.0, [(1, 2, 3)])
    stream = await network.connect_tcp("host", 80, 3.0, "here", [(1, 2, 3)])
    await stream.write(b"asked", 4.0)
    await stream.read(64, 5.0)
    secured = await stream.start_tls(trust, "name", 6.0)
    await secured.aclose()
    assert inner.done == [
        ("sleep", 0.5),
        ("unix", "/socket", 3.0, [(1, 2, 3)]),
        ("tcp", "host", 80, 3.0, "here", [(1, 2, 3)]),
        ("write", b"asked", 4.0),
        ("read", 64, 5.0),
        ("tls", trust, "name", 6.0),
        ("close",),
    ]
    assert stream.get_extra_info("socket") == "socket of the connection"
    assert secured.get_extra_info("ssl_object") == "ssl_object of the connection"


async def test_answers_of_an_upstream_pass_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the HTTP client, what it reads from an upstream comes from paced streams."""
    read, network_read = [], PacedNetwork.connect_tcp

    async def connect_tcp(self: PacedNetwork, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        stream = await network_read(self, host, port, *args, **kwargs)
        stream_read = stream.read

        async def noting(max_bytes: int, timeout: float | None = None) -> bytes:
            data = await stream_read(max_bytes, timeout)
            read.append(data)
            return data

        stream.read = noting  # type: ignore[method-assign]
        return stream

    monkeypatch.setattr(PacedNetwork, "connect_tcp", connect_tcp)
    said = b'{"id":"c1","choices":[]}'

    def script(_request: UpstreamRequest) -> ScriptedAnswer:
        return ScriptedAnswer([said])

    fake = FakeUpstream(script)
    server = AppServer(fake)
    await server.start()
    engine = UpstreamEngine(f"{server.url}/v1", dialects=(CHAT,))
    await engine.start()
    try:
        answer = await engine.answer(EngineRequest(CHAT, {}, b"{}", {}))
        assert await answer.read() == said
        await answer.aclose()
        await engine.ready(30)  # on a connection of its own
    finally:
        await engine.aclose()
        await server.stop(grace_s=5)
    await until(lambda: b"".join(read).count(b"HTTP/1.1 200 OK") == 2)
    assert said in b"".join(read)
