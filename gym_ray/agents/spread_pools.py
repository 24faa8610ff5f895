"""Many small pools of connections behind one transport.

A pool looks at each of its connections for every request that begins or ends, so one with hundreds of them costs more
than the requests. Small ones do not, and requests wait in front of them, where waiting costs nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx

__all__ = ["SpreadTransport"]

_POOL_SIZE = 8


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncBaseTransport
    taken: int = 0


class SpreadTransport(httpx.AsyncBaseTransport):
    """At most ``max_connections`` requests at once; further ones wait in order, for as long as it takes.

    Args:
        max_connections: Requests under way at once.
        keepalive_expiry_s: How long an idle connection is kept.
    """

    def __init__(self, max_connections: int, keepalive_expiry_s: float) -> None:
        self._free = asyncio.Semaphore(max_connections)
        trust = httpx.create_ssl_context(trust_env=False)
        self._pools = [_Pool(_transport(trust, keepalive_expiry_s)) for _ in range(-(-max_connections // _POOL_SIZE))]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request by the pool with the least under way; its place is free again when the answer is closed."""
        await self._free.acquire()
        pool = min(self._pools, key=lambda pool: pool.taken)  # the first of equals, so that few stay warm
        pool.taken += 1

        def give_back() -> None:
            pool.taken -= 1
            self._free.release()

        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            give_back()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Counted(response.stream, give_back)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in self._pools:
            await pool.transport.aclose()


class _Counted(httpx.AsyncByteStream):
    """An answer's bytes; tells once when nobody reads them any more."""

    def __init__(self, stream: httpx.AsyncByteStream, give_back: Callable[[], None]) -> None:
        self._stream, self._give_back = stream, give_back
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            self._give_back()


def _transport(trust: ssl.SSLContext, keepalive_expiry_s: float) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=_POOL_SIZE, keepalive_expiry=keepalive_expiry_s)
    return httpx.AsyncHTTPTransport(verify=trust, limits=limits, trust_env=False)
