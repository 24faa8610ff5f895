"""A server either listens or says why not; it stops without cutting what is under way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gym_ray.errors import ServerStartError
from gym_ray.model_server.serving import AppServer


async def _hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def _app() -> Starlette:
    return Starlette(routes=[Route("/", _hello)])


async def _get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_start_gives_a_free_port_that_answers() -> None:
    server = AppServer(_app())
    port = await server.start()
    assert server.running
    assert server.url == f"http://127.0.0.1:{port}"
    assert (await _get(server.url)).text == "hello"
    await server.stop()
    assert not server.running
    with pytest.raises(httpx.ConnectError):
        await _get(server.url)
    await server.stop()  # idempotent


async def test_no_signal_handler_is_installed() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    server = AppServer(_app())
    await server.start()
    assert {number: signal.getsignal(number) for number in before} == before
    await server.stop()


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"127\.0\.0\.1:{port}.*in use.*another port"):
            await AppServer(_app(), port=port).start()


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("127.0.0.1", 70000), ("127.0.0.1", -1)])
async def test_an_address_that_cannot_be_bound_is_an_error(host: str, port: int) -> None:
    with pytest.raises(ServerStartError, match=f"cannot listen on {host}:{port}"):
        await AppServer(_app(), host, port).start()


async def test_a_failed_lifespan_reaches_the_caller_with_its_cause() -> None:
    @contextlib.asynccontextmanager
    async def broken(app: Starlette):
        raise RuntimeError("the cupboard is bare")
        yield

    server = AppServer(Starlette(lifespan=broken))
    with pytest.raises(ServerStartError, match="the cupboard is bare"):
        await server.start()
    assert not server.running
    with socket.create_server(("127.0.0.1", server.port)):
        pass  # the port was given back


async def test_a_second_start_is_refused() -> None:
    server = AppServer(_app())
    await server.start()
    with pytest.raises(ServerStartError, match="started before"):
        await server.start()
    await server.stop()


async def test_a_restarted_server_takes_its_old_port() -> None:
    first = AppServer(_app())
    port = await first.start()
    async with httpx.AsyncClient(trust_env=False) as client:  # leaves a connection behind
        assert (await client.get(first.url)).status_code == 200
        await first.stop()
        second = AppServer(_app(), port=port)
        assert await second.start() == port
        assert (await client.get(second.url)).status_code == 200
        await second.stop()


class _Gated:
    """An application whose answer waits."""

    def __init__(self) -> None:
        self.entered, self.release, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, request: Request) -> Response:
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return PlainTextResponse("finished")

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/", self.answer)])


async def test_stop_lets_a_request_under_way_finish() -> None:
    gated = _Gated()
    server = AppServer(gated.app())
    await server.start()
    request = asyncio.create_task(_get(server.url))
    await gated.entered.wait()
    stopping = asyncio.create_task(server.stop(grace_s=30))
    while True:  # stopping has begun once no new connection is taken
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except ConnectionRefusedError:
            break
        writer.close()
        await asyncio.sleep(0.01)
    assert not stopping.done()
    gated.release.set()
    assert (await request).text == "finished"
    await stopping
    assert not gated.cancelled.is_set()


async def test_stop_cancels_what_outlasts_the_grace_time() -> None:
    gated = _Gated()
    server = AppServer(gated.app())
    await server.start()
    request = asyncio.create_task(_get(server.url))
    await gated.entered.wait()
    await server.stop(grace_s=0)
    assert gated.cancelled.is_set()
    with contextlib.suppress(httpx.TransportError):
        assert (await request).status_code == 500


async def test_wait_returns_after_a_stop() -> None:
    server = AppServer(_app())
    await server.start()
    waiting = asyncio.create_task(server.wait())
    await server.stop()
    await waiting


async def test_wait_tells_why_a_server_ended_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    server = AppServer(_app())
    await server.start()

    async def broken(counter: int) -> bool:
        raise OSError("out of descriptors")

    monkeypatch.setattr(server._server, "on_tick", broken)
    with pytest.raises(ServerStartError, match="out of descriptors"):
        await server.wait()
    assert not server.running
    with socket.create_server(("127.0.0.1", server.port)):
        pass  # the port was given back


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    entered = asyncio.Event()

    @contextlib.asynccontextmanager
    async def slow(app: Starlette):
        entered.set()
        await asyncio.Event().wait()
        yield

    server = AppServer(Starlette(lifespan=slow))
    starting = asyncio.create_task(server.start())
    await entered.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not server.running
    with socket.create_server(("127.0.0.1", server.port)):
        pass  # the port was given back


def test_port_and_url_before_the_start_are_errors() -> None:
    with pytest.raises(ServerStartError, match="not been started"):
        _ = AppServer(_app()).url


def test_a_tuned_collector_leaves_what_exists_alone_and_still_finds_circles() -> None:
    code = (
        "import gc, weakref\n"
        "from gym_ray.model_server.serving import tune_collector\n"
        "tune_collector()\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 0\n"
        "class Circle: pass\n"
        "circle = Circle(); circle.itself = circle; seen = weakref.ref(circle); del circle\n"
        "kept = [[] for _ in range(3 * gc.get_threshold()[0])]\n"
        "assert seen() is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
