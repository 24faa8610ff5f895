"""Bounded, pooled connections to one upstream.

A pool looks at each of its connections, and at its whole queue, for every request that begins or ends. So requests
wait in front of the pools, and the connections are spread over many small ones: with 64 connections a request costs
half of what one pool takes. What arrives on all of them passes one pace, so that many answers that come together leave
the event loop room.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from gym_ray.model_server.paced_network import PacedNetwork, PacedTransport

__all__ = ["Connections", "Place"]

_POOL_SIZE = 8
_CONNECT_RETRIES = 2
_IDLE_CONNECTION_S = 3.0
"""Shorter than the idle time of common servers, so that none is closed under a request."""


@dataclass(slots=True)
class _Pool:
    client: httpx.AsyncClient
    taken: int = 0


class Connections:
    """At most ``max_connections`` requests at once; owns its clients.

    Args:
        max_connections: Requests under way at once; further ones wait in order.
        timeout: Time to connect, and between two pieces of an answer.

    Attributes:
        probe: One more connection, for asking how the upstream is while every place is taken.
    """

    def __init__(self, max_connections: int, timeout: httpx.Timeout) -> None:
        self._free = asyncio.Semaphore(max_connections)
        trust, network = httpx.create_ssl_context(trust_env=False), PacedNetwork()
        pools = -(-max_connections // _POOL_SIZE)
        self._pools = [_Pool(_client(_POOL_SIZE, timeout, trust, network)) for _ in range(pools)]
        self.probe = _client(1, timeout, trust, network)

    async def take(self) -> Place:
        """Wait for a free place and return it; the caller gives it back."""
        await self._free.acquire()
        pool = min(self._pools, key=lambda pool: pool.taken)  # the first of equals, so that few stay warm
        pool.taken += 1
        return Place(self._free, pool)

    async def aclose(self) -> None:
        """Close every connection."""
        for client in (self.probe, *(pool.client for pool in self._pools)):
            await client.aclose()


class Place:
    """The right to have one request under way."""

    def __init__(self, free: asyncio.Semaphore, pool: _Pool) -> None:
        self._free = free
        self._pool: _Pool | None = pool
        self.client = pool.client

    def give_back(self) -> None:
        """Let the next request have the place; idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.taken -= 1
            self._free.release()


def _client(size: int, timeout: httpx.Timeout, trust: ssl.SSLContext, network: PacedNetwork) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=PacedTransport(
            network,
            trust,
            max_connections=size,
            keepalive_expiry_s=_IDLE_CONNECTION_S,
            connect_retries=_CONNECT_RETRIES,
        ),
        timeout=timeout,
        headers={"accept-encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one rollout's cookie is not another's
        trust_env=False,
    )
