"""In-process servers that agents talk to: a scripted model, a scripted resources server, a client that reaches them.

They record what arrived, byte for byte, so that a test can say what an agent sent.
"""

from __future__ import annotations

import asyncio
import http.cookiejar
import http.cookies
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gym_ray import exact_json
from gym_ray.correlation import split_resources_prefix

__all__ = ["Arrival", "ScriptedModel", "ScriptedResources", "in_process_client", "message_item", "responses_answer"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as a server saw it.

    Attributes:
        server: Name of the server.
        path: Path with its rollout prefix.
        json: Parsed body.
        cookies: Cookies by name.
        headers: Headers by lower-case name.
    """

    server: str
    path: str
    json: Any
    cookies: dict[str, str]
    headers: dict[str, str]


def message_item(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    """Return an assistant message item with one text."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": content}


def responses_answer(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a Responses object with these output items."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "output": list(output),
        **fields,
    }


async def _arrival(server: str, request: Request) -> Arrival:
    cookies = {name: m.value for name, m in http.cookies.SimpleCookie(request.headers.get("cookie", "")).items()}
    body = await request.body()
    return Arrival(
        server, request.url.path, exact_json.loads(body) if body else None, cookies, dict(request.headers.items())
    )


@dataclass(slots=True)
class ScriptedModel:
    """Answers ``…/v1/responses`` with the scripted answers in order, and 500 when they have run out.

    Attributes:
        answers: Responses objects, or whole responses.
        set_cookies: Cookies that every answer sets.
        arrivals: What arrived, in order; may be shared between servers.
        hang: When given, no request is answered before it is set.
        arrived: Set when a request has arrived.
    """

    answers: Sequence[dict[str, Any] | Response]
    set_cookies: Mapping[str, str] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    name: str = "policy_model"
    hang: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _next: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        request = Request(scope, receive)
        self.arrivals.append(await _arrival(self.name, request))
        self.arrived.set()
        if self.hang is not None:
            await self.hang.wait()
        await self._answer()(scope, receive, send)

    def _answer(self) -> Response:
        if self._next >= len(self.answers):
            return JSONResponse({"error": {"message": "the script has run out"}}, status_code=500)
        answer = self.answers[self._next]
        self._next += 1
        if isinstance(answer, Response):
            return answer
        response = Response(exact_json.dumps(answer), media_type="application/json")
        for name, value in self.set_cookies.items():
            response.set_cookie(name, value)
        return response


@dataclass(slots=True)
class ScriptedResources:
    """A resources server: each seeding sets ``sid`` to s0, s1, …; tools answer from a script, verify with a function.

    Attributes:
        tools: Per tool call, in order: status, text, cookies to set.
        verify: Verify body -> reply, or a whole response.
        arrivals: What arrived, in order; may be shared between servers.
    """

    tools: Sequence[tuple[int, str, Mapping[str, str]]] = ()
    verify: Callable[[dict[str, Any]], dict[str, Any] | Response] = lambda body: {**body, "reward": 1.0}
    arrivals: list[Arrival] = field(default_factory=list)
    name: str = "resources"
    _next: int = 0
    _sessions: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        request = Request(scope, receive)
        arrival = await _arrival(self.name, request)
        self.arrivals.append(arrival)
        split = split_resources_prefix(arrival.path)
        response = self._answer(split.rest if split is not None else arrival.path, arrival.json)
        await response(scope, receive, send)

    def _answer(self, path: str, body: Any) -> Response:
        if path in ("/seed_session", "/close_session"):
            response: Response = JSONResponse({})
            if path == "/seed_session":
                response.set_cookie("sid", f"s{self._sessions}")
                self._sessions += 1
            return response
        if path == "/verify":
            reply = self.verify(body)
            return reply if isinstance(reply, Response) else JSONResponse(reply)
        status, text, cookies = self.tools[self._next]
        self._next += 1
        response = Response(text, status_code=status)
        for name, value in cookies.items():
            response.set_cookie(name, value)
        return response


def in_process_client(apps: Mapping[str, ASGIApp | httpx.AsyncBaseTransport]) -> httpx.AsyncClient:
    """Return a client that reaches each app under its root URL, keeps no cookies, and knows no other host."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"nothing listens at {request.url.host}", request=request)

    mounts: dict[str, httpx.AsyncBaseTransport | None] = {
        url: app if isinstance(app, httpx.AsyncBaseTransport) else httpx.ASGITransport(app) for url, app in apps.items()
    }
    return httpx.AsyncClient(
        mounts=mounts,
        transport=httpx.MockTransport(refuse),
        cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
    )
