"""The base of agent servers: ``POST /run`` for the collector, ``POST /v1/responses`` for whoever wants a conversation.

A rollout's id and the run's token come in with ``/run`` and must reach every call that the agent makes. The base keeps
them at hand while a request is handled, so that a subclass cannot lose them by forgetting an argument.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gym_ray import exact_json
from gym_ray.agents.context import NO_API_KEY
from gym_ray.agents.delivery import RUN_TOKEN_HEADER
from gym_ray.agents.failures import ENGINE_UNAVAILABLE, failure_from
from gym_ray.agents.server_client import ServerClient, current_run_token
from gym_ray.correlation import (
    ROLLOUT_PREFIX,
    TOKEN_CAPTURE_SEGMENT,
    AgentUrls,
    current_rollout_id,
    derive_rollout_id,
)
from gym_ray.errors import RolloutIdError
from gym_ray.model_server.disconnect import CancelOnDisconnect
from gym_ray.settings.fields import FrozenModel, Name

__all__ = ["ResponsesAPIAgentConfig", "SimpleResponsesAPIAgent"]

MAX_BODY_BYTES = 64 * 1024**2
_RESPONSES = "/v1/responses"
_log = logging.getLogger(__name__)


class ResponsesAPIAgentConfig(FrozenModel):
    """What every agent server must know of itself; subclasses add fields, such as the servers that they call.

    Attributes:
        name: Its name in the run's settings.
        token_id_capture: Its model calls are for training, where the run has that switched on (A28). The run's settings
            of this agent may say so as well, and then it need not be repeated here.
    """

    name: Name
    token_id_capture: bool = False


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


class SimpleResponsesAPIAgent(ABC):
    """An agent behind HTTP. Subclass it, say what :meth:`run` and :meth:`responses` do, serve :meth:`setup_webserver`.

    Args:
        config: Its own settings.
        server_client: How it reaches the other servers; closed when the application ends.
    """

    def __init__(self, config: ResponsesAPIAgentConfig, server_client: ServerClient) -> None:
        self.config, self.server_client = config, server_client
        self._running: set[str] = set()

    @abstractmethod
    async def run(self, request: Request, body: dict[str, Any]) -> Any:
        """Run one row and return the reply: an object with ``response`` and ``reward``, or a whole HTTP response."""

    @abstractmethod
    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        """Hold one conversation and return its Responses object, or a whole HTTP response."""

    def setup_webserver(self) -> Starlette:
        """Return the application: ``/run``, ``/v1/responses`` (also behind both prefixes, A31) and ``/health``.

        A client that hangs up cancels its request (D146). What ``/run`` is given in the header ``x-gym-ray-run-token``
        is the run's token while the request is handled. A second request with the ``Idempotency-Key`` of a run that is
        still under way is refused (409): it would be captured as the same rollout (D33).
        """
        self_call = f"{ROLLOUT_PREFIX}/{{rollout_id}}"
        paths = (_RESPONSES, self_call + _RESPONSES, self_call + TOKEN_CAPTURE_SEGMENT + _RESPONSES)
        routes = [Route(path, self._endpoint(self._responses), methods=["POST"]) for path in paths]
        routes.append(Route("/run", self._endpoint(self._run), methods=["POST"]))
        routes.append(Route("/health", self._health, methods=["GET"]))
        return Starlette(routes=routes, middleware=[Middleware(CancelOnDisconnect)], lifespan=self._lifespan)

    @property
    def api_key(self) -> str:
        """Key of the model servers, for an SDK; never empty, because SDKs insist on one."""
        return self.server_client.run_token or NO_API_KEY

    def rollout_id_from_run(self, body: object) -> str | None:
        """Return the rollout id of a run body, None when calls are not correlated or the body names none (A27).

        Raises:
            RolloutIdError: The body names something that cannot be an id.
        """
        return self._urls().rollout_id_from_run(body)

    def url_path_for_run(self, url_path: str, body: object) -> str:
        """Return ``url_path`` behind the prefix of a run."""
        return self._urls().url_path_for_run(url_path, body)

    def base_url_for_run(self, base_url: str, body: object) -> str:
        """Return a root URL behind the prefix of a run; an SDK's version suffix still follows (A30)."""
        return self._urls().base_url_for_run(base_url, body)

    def url_path_for_request(self, url_path: str, request: Request | None) -> str:
        """Return ``url_path`` behind the prefix that a request came in with, whatever the configuration (A29)."""
        if request is None:
            return url_path
        rollout_id = request.path_params.get("rollout_id")
        return AgentUrls.url_path_for_request(url_path, rollout_id, request.scope["path"])

    def resolve_model_base_url(self, name: str, rollout_id: str | None = None) -> str:
        """Return the ``…/v1`` URL of a model server, behind the prefix of ``rollout_id`` if there is one (A29, A30).

        Raises:
            KeyError: No model server has that name.
        """
        return self._urls(rollout_id).resolve_model_base_url(name, rollout_id)

    def _urls(self, rollout_id: str | None = None) -> AgentUrls:
        servers = self.server_client.servers
        token_capture = servers.trains(self.config.name, self.config.token_id_capture)
        correlate = servers.observability_enabled or token_capture
        return AgentUrls(correlate, token_capture, servers.models(rollout_id))

    async def _run(self, request: Request, body: dict[str, Any]) -> Any:
        key = request.headers.get("idempotency-key")
        if key is not None and key in self._running:
            raise _RefusedError(409, f"a run with the Idempotency-Key {key!r} is under way")
        with _under_rollout(derive_rollout_id(body)):
            if key is None:
                return await self.run(request, body)
            self._running.add(key)
            try:
                return await self.run(request, body)
            finally:
                self._running.discard(key)

    async def _responses(self, request: Request, body: dict[str, Any]) -> Any:
        with _under_rollout(request.path_params.get("rollout_id")):
            return await self.responses(request, body)

    def _endpoint(
        self, handler: Callable[[Request, dict[str, Any]], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            run_token = current_run_token.set(request.headers.get(RUN_TOKEN_HEADER))
            try:
                return _answer(await handler(request, await _object(request)))
            except _RefusedError as refused:
                return _error(refused.status, refused.message)
            except RolloutIdError as error:
                return _error(422, str(error))
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - the boundary to a subclass's code: its failure is an answer
                # A SystemExit, too: leaving its task it would stop the event loop, and every other run with it.
                return self._failed(request, error)
            finally:
                current_run_token.reset(run_token)

        return endpoint

    def _failed(self, request: Request, error: BaseException) -> Response:
        failure = failure_from(error, [self.server_client.run_token])
        route, cause = request.scope["path"], f"{failure.error_type}: {failure.message}"
        _log.error("agent %s: POST %s failed: %s%s", self.config.name, route, cause, _indented(failure.traceback))
        return _error(502 if failure.failure_class == ENGINE_UNAVAILABLE else 500, cause)

    async def _health(self, _request: Request) -> Response:
        return _answer({"status": "ok", "agent": self.config.name})

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.server_client.aclose()


@contextmanager
def _under_rollout(rollout_id: str | None) -> Iterator[None]:
    """Make the id ambient for the block, so that calls made inside of it carry it (A32)."""
    token = current_rollout_id.set(rollout_id)
    try:
        yield
    finally:
        current_rollout_id.reset(token)


async def _object(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _RefusedError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    value = exact_json.loads_object(bytes(body))
    if value is None:
        raise _RefusedError(422, "the body must be a JSON object")
    return value


def _answer(value: Any) -> Response:
    if isinstance(value, Response):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return Response(exact_json.dumps(value), media_type="application/json")


def _error(status: int, message: str) -> Response:
    return Response(exact_json.dumps({"error": message, "detail": message}), status, media_type="application/json")


def _indented(traceback: str | None) -> str:
    return f"\n{traceback}" if traceback else ""
