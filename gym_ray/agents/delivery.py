"""Sends a request at most once, and keeps one rollout's cookies apart from every other's.

A generation or a ``/run`` that was delivered may have run, so nothing that left this process is ever sent again (D33).
Only a connection that could not be made is tried again for a bounded time: a restarted server takes its old port. The
shared client must never keep cookies, or two rollouts would end in one session (D141).
"""

from __future__ import annotations

import asyncio
import http.cookiejar
import http.cookies
import time
from collections.abc import Mapping

import httpx

from gym_ray.agents.spread_pools import SpreadTransport

__all__ = ["RUN_TOKEN_HEADER", "RolloutCookies", "build_client", "post_once"]

RUN_TOKEN_HEADER = "x-gym-ray-run-token"  # noqa: S105 - a header's name, not a secret
"""Carries the run's token to an agent server with ``POST /run`` and with an agent's calls to itself.

An agent server needs the token to call the model servers. It is sent to the agents that the settings name and to
nobody else, never in a URL or a body, for those are logged and stored. ``Authorization`` stays free for whatever stands
in front of an agent server.
"""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def build_client(*, max_connections: int = 1024) -> httpx.AsyncClient:
    """Return a pooled client that forgets every cookie and reads nothing from the environment.

    It waits for an answer as long as its attempt may run: the attempt's own deadline is the only one, so that a slow
    agent or engine is one clear ``agent_timeout``, and a run without a deadline has none here either.

    Idle connections are given up well before a server closes them (uvicorn: 5 s), so that no request goes out on a
    connection that is being closed.
    """
    return httpx.AsyncClient(
        cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
        timeout=httpx.Timeout(connect=10.0, read=None, write=60.0, pool=None),
        transport=SpreadTransport(max_connections, keepalive_expiry_s=2.0),
        trust_env=False,
    )


class RolloutCookies:
    """The cookies of one server within one rollout, by name."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def header(self) -> dict[str, str]:
        """Return the ``Cookie`` header to send, or nothing when there are no cookies."""
        if not self._values:
            return {}
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self._values.items())}

    def keep_from(self, response: httpx.Response) -> None:
        """Keep what an answer set; a cookie with ``Max-Age=0`` is dropped."""
        for line in response.headers.get_list("set-cookie"):
            for name, morsel in http.cookies.SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self._values.pop(name, None)
                else:
                    self._values[name] = morsel.coded_value

    def as_dict(self) -> dict[str, str]:
        """Return a copy of the cookies, name to value."""
        return dict(self._values)


async def post_once(
    client: httpx.AsyncClient,
    url: str,
    body: bytes,
    *,
    cookies: RolloutCookies | None = None,
    headers: Mapping[str, str] | None = None,
    connect_patience_s: float = 0.0,
) -> httpx.Response:
    """Post a JSON body and return the whole answer, whatever its status; the request is delivered at most once.

    Args:
        client: Shared client.
        url: Absolute URL.
        body: JSON bytes.
        cookies: Cookies of this rollout at this server; sent along, and updated from the answer.
        headers: Further headers.
        connect_patience_s: How long to go on trying while no connection can be made.

    Raises:
        httpx.TransportError: No connection within the time, or the exchange broke after it began.
    """
    sent = {"content-type": "application/json", **(headers or {}), **(cookies.header() if cookies else {})}
    deadline = time.monotonic() + connect_patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            response = await client.post(url, content=body, headers=sent)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            # Nothing was delivered yet, so trying again cannot run anything twice.
            if time.monotonic() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            continue
        if cookies is not None:
            cookies.keep_from(response)
        return response
