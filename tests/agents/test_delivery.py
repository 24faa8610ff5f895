"""Real sockets on the loopback: what is sent again, and what never is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import httpx
import pytest

from gym_ray.agents.delivery import RolloutCookies, build_client, post_once


@pytest.fixture
def closed() -> Iterator[socket.socket]:
    """A socket whose port refuses connections until it listens, and that nobody else gets meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x"


class OneShotServer:
    """Reads one request a connection, answers it or drops it, and counts."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer, self.requests = answer, 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        if self.answer is not None:
            writer.write(self.answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: sid=abc; Path=/\r\nconnection: close\r\n\r\n{}"


async def test_a_server_that_comes_back_on_its_port_gets_the_request_once(closed: socket.socket) -> None:
    handler = OneShotServer(OK)
    async with build_client() as client:
        call = asyncio.create_task(post_once(client, url_of(closed), b"{}", connect_patience_s=20))
        refused, _ = await asyncio.wait({call}, timeout=0.1)
        assert not refused, "the refused connection must be tried again"
        server = await asyncio.start_server(handler, sock=closed)
        async with server:
            assert (await call).status_code == 200
    assert handler.requests == 1


async def test_patience_ends(closed: socket.socket) -> None:
    async with build_client() as client:
        with pytest.raises(httpx.ConnectError):
            await post_once(client, url_of(closed), b"{}", connect_patience_s=0.1)


async def test_what_was_delivered_is_never_sent_again() -> None:
    handler = OneShotServer(None)
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, build_client() as client:
        with pytest.raises(httpx.TransportError):
            await post_once(client, f"http://127.0.0.1:{port}/x", b"{}", connect_patience_s=20)
    assert handler.requests == 1


async def test_the_shared_client_keeps_no_cookie() -> None:
    handler, cookies = OneShotServer(OK), RolloutCookies()
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, build_client() as client:
        await post_once(client, f"http://127.0.0.1:{port}/x", b"{}", cookies=cookies)
        assert dict(client.cookies) == {}
    assert cookies.as_dict() == {"sid": "abc"}
    assert cookies.header() == {"cookie": "sid=abc"}


def test_cookies_are_replaced_and_dropped() -> None:
    cookies = RolloutCookies()
    assert cookies.header() == {}
    for line in ("a=1", "b=2; HttpOnly", "a=3", "b=; Max-Age=0"):
        cookies.keep_from(httpx.Response(200, headers={"set-cookie": line}))
    assert cookies.as_dict() == {"a": "3"}
