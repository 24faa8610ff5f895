"""Serves an environment over HTTP (D147).

The rollout prefix is stripped by the strict rule (A34), the session is a signed cookie over a random id, and whatever
goes wrong is a JSON answer with a status that fits: an agent's text must never take the server down.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gym_ray import exact_json
from gym_ray.correlation import current_rollout_id, split_resources_prefix
from gym_ray.environments.base import Environment, Session, ToolError, UnknownSessionError

__all__ = ["build_environment_app"]

MAX_BODY_BYTES = 64 * 1024**2
_log = logging.getLogger(__name__)


class _RequestError(Exception):
    """The request cannot be used: status and message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


class _StripPrefix:
    """Removes ``/ng-rollout/<id>`` from the path and makes the id ambient while the request runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        split = split_resources_prefix(scope["path"]) if scope["type"] == "http" else None
        if split is None:
            await self._app(scope, receive, send)
            return
        token = current_rollout_id.set(split.rollout_id)
        try:
            await self._app({**scope, "path": split.rest, "raw_path": quote(split.rest).encode()}, receive, send)
        finally:
            current_rollout_id.reset(token)


class _SessionCookie:
    """Signs and reads session ids, so that nobody can step into another rollout's session by guessing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._key = secrets.token_bytes(32)

    def read(self, request: Request) -> str | None:
        session_id, _, signature = request.cookies.get(self.name, "").partition(".")
        return session_id if session_id and hmac.compare_digest(signature.encode(), self._sign(session_id)) else None

    def write(self, response: Response, session_id: str) -> None:
        response.set_cookie(self.name, f"{session_id}.{self._sign(session_id).decode()}", httponly=True)

    def _sign(self, session_id: str) -> bytes:
        return hmac.digest(self._key, session_id.encode(), "sha256").hex().encode()


class _Routes:
    """The handlers; each gets the session and the body as a JSON object and returns a JSON value."""

    def __init__(self, environment: Environment, server_name: str, max_body_bytes: int) -> None:
        self._environment, self._max_body_bytes = environment, max_body_bytes
        self._cookie = _SessionCookie(f"{type(environment).__name__}___{server_name}")

    def routes(self) -> list[Route]:
        handlers: dict[str, Callable[[Session, dict[str, Any]], Awaitable[Any]]] = {
            "seed_session": self._environment.seed_session,
            "close_session": self._close,
            "verify": self._environment.verify,
            "aggregate_metrics": self._aggregate,
        }
        clash = sorted({*handlers, "health"} & set(self._environment.tools))
        if clash:
            raise ValueError(f"{type(self._environment).__name__}: a tool cannot be named {', '.join(clash)}")
        handlers |= self._environment.tools
        posts = [
            Route(f"/{name}", self._endpoint(name, handler), methods=["POST"]) for name, handler in handlers.items()
        ]
        return [
            Route("/health", _health, methods=["GET"]),
            *posts,
            Route("/{tool}", self._unknown_tool, methods=["POST"]),
        ]

    def _endpoint(
        self, route: str, handler: Callable[[Session, dict[str, Any]], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            known = self._cookie.read(request)
            # Seeding always opens a new session: a rollout never goes on in what another one left.
            session_id = known if known is not None and route != "seed_session" else secrets.token_hex(16)
            session = Session(session_id, current_rollout_id.get())
            response = await self._respond(request, route, session, handler)
            if session_id != known:
                self._cookie.write(response, session_id)
            return response

        return endpoint

    async def _respond(
        self,
        request: Request,
        route: str,
        session: Session,
        handler: Callable[[Session, dict[str, Any]], Awaitable[Any]],
    ) -> Response:
        try:
            return _json(await handler(session, await self._object(request)))
        except _RequestError as error:
            return _json({"error": error.message, "detail": error.message}, error.status)
        except ToolError as error:
            return _json({"error": error.message}, error.status)
        except UnknownSessionError as error:
            return _json({"error": str(error), "detail": str(error)}, 409)
        except ValidationError as error:
            return _json(_validation_detail(error), 422)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it; the agent went away while sending
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary to an environment's code: its failure is an answer
            # A SystemExit, too: leaving its task it would stop the event loop, and every session with it.
            _log.exception("POST /%s failed", route)
            return _json({"error": f"{type(error).__name__}: {error}"}, 500)

    async def _object(self, request: Request) -> dict[str, Any]:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise _RequestError(413, f"the body is longer than {self._max_body_bytes} bytes")
        if not body:
            return {}
        value = exact_json.loads_object(bytes(body))
        if value is None:
            raise _RequestError(422, "the body must be a JSON object")
        return value

    async def _close(self, session: Session, _body: dict[str, Any]) -> dict[str, Any]:
        await self._environment.close_session(session)
        return {}

    async def _aggregate(self, _session: Session, body: dict[str, Any]) -> dict[str, Any]:
        replies = body.get("verify_responses")
        if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
            raise _RequestError(422, "verify_responses: expected a list of objects")
        metrics = self._environment.aggregate_metrics(replies)
        keys = self._environment.key_metrics(metrics)
        return {"agent_metrics": metrics} if keys is None else {"agent_metrics": metrics, "key_metrics": keys}

    async def _unknown_tool(self, request: Request) -> Response:
        known = ", ".join(sorted(self._environment.tools)) or "none"
        return _json({"error": f"Unknown tool: {request.path_params['tool']}. Known tools: {known}."}, 404)


async def _health(_request: Request) -> Response:
    return _json({"status": "ok"})


def _json(value: Any, status: int = 200) -> Response:
    return Response(exact_json.dumps(value), status, media_type="application/json")


def _validation_detail(error: ValidationError) -> dict[str, Any]:
    """Return a 422 body that names every field: ``detail`` for machines, ``error`` as one line."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    detail = [{"loc": ["body", *item["loc"]], "msg": item["msg"], "type": item["type"]} for item in problems]
    line = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in problems)
    return {"error": line, "detail": detail}


def build_environment_app(
    environment: Environment, server_name: str, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Starlette:
    """Return the ASGI app of a resources server.

    Routes: ``/seed_session``, ``/close_session``, ``/verify``, ``/aggregate_metrics``, one per tool, and
    ``GET /health``; each also behind ``/ng-rollout/<id>``.

    Args:
        environment: What is served; it must live as long as the app.
        server_name: Name of the server instance; part of the session cookie's name.
        max_body_bytes: Longer bodies are answered with 413.

    Raises:
        ValueError: A tool has the name of one of the other routes.
    """
    app = Starlette(routes=_Routes(environment, server_name, max_body_bytes).routes())
    app.add_middleware(_StripPrefix)
    return app
