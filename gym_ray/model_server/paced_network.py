"""Network streams whose bytes arrive at a pace: many answers of an upstream at once do not hold the event loop.

An answer costs the loop little until its bytes are there, and a hundred microseconds once they are: parsing, relaying
and capturing it all follow in the same step. Five hundred that arrive together would be one step of many milliseconds.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from gym_ray.pace import Pace

__all__ = ["PacedNetwork", "PacedTransport"]


class PacedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport over a network of ours; it talks to origins directly, through no proxy.

    Args:
        network: Opens the connections.
        trust: What TLS connections are verified with.
        max_connections: Connections at once, all of which may be kept alive.
        keepalive_expiry_s: How long an idle one is.
        connect_retries: How often a connection that could not be opened is tried again.
    """

    def __init__(
        self,
        network: httpcore.AsyncNetworkBackend,
        trust: ssl.SSLContext,
        *,
        max_connections: int,
        keepalive_expiry_s: float,
        connect_retries: int,
    ) -> None:
        # In the place of the parent's, which cannot be given a network; everything else of it only uses the pool.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=trust,
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=keepalive_expiry_s,
            retries=connect_retries,
            network_backend=network,
        )


class PacedNetwork(httpcore.AsyncNetworkBackend):
    """Opens streams that share one pace. Belongs to the event loop on which it is used first.

    Args:
        inner: Opens the streams themselves.
    """

    def __init__(self, inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._inner = inner or httpcore.AnyIOBackend()
        self._pace = Pace()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Open a TCP connection."""
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _PacedStream(stream, self._pace)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Open a connection to a Unix socket."""
        return _PacedStream(await self._inner.connect_unix_socket(path, timeout, socket_options), self._pace)

    async def sleep(self, seconds: float) -> None:
        """Wait between two tries to connect."""
        await self._inner.sleep(seconds)


class _PacedStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, pace: Pace) -> None:
        self._inner, self._pace = inner, pace

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        # Behind the read, whose timeout is the upstream's. Who is cancelled here gives the connection up.
        await self._pace.turn()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _PacedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._pace)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
