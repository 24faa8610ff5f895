"""The HTTP service in front of an engine: three generation routes, captured.

A dialect that the engine speaks is forwarded as it is, and the answer reaches the client as the engine sends it, byte
for byte; the others are converted (``bridged.py``). When an engine dies in mid-answer the client's
connection is cut; an answer that did not end well never looks as if it had.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gym_ray import exact_json
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.correlation import split_rollout_prefix
from gym_ray.dialects import DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import EngineError, InvalidRequestError
from gym_ray.model_call_capture import CaptureMiddleware, CaptureWriter
from gym_ray.model_call_capture.exchanges.exchange import publish_request, read_training_call
from gym_ray.model_call_capture.quiesce import QUIESCE_PATH, quiesce_endpoint
from gym_ray.model_call_capture.training_calls import UnobservedTrainingCalls
from gym_ray.model_server.bridged import BridgedRoute, BridgeOptions
from gym_ray.model_server.control_routes import control_routes
from gym_ray.model_server.disconnect import CancelOnDisconnect
from gym_ray.model_server.engine import Engine, EngineAnswer, EngineRequest
from gym_ray.model_server.errors_wire import (
    InvalidBodyError,
    engine_error_response,
    error_response,
    invalid_body_response,
    invalid_request_response,
)
from gym_ray.model_server.external.route import StagedRoute
from gym_ray.model_server.facts import publish_answer, publish_failure
from gym_ray.model_server.headers import request_headers
from gym_ray.model_server.heavy_bodies import is_heavy, parse_heavy
from gym_ray.model_server.replayed import CallFailedError
from gym_ray.model_server.token_calls import TokenCall, TokenCalls
from gym_ray.model_server.token_forwarding import TokenForwarding
from gym_ray.model_server.weight_version import (
    WEIGHT_VERSION_PATH,
    forwarded_weight_version,
    weight_version_endpoint,
)
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.external_staging import ExternalStaging

__all__ = ["AppOptions", "build_app"]

_log = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S = 5.0
_MARK_PATIENCE_S = 30.0
"""How long an answer waits for the mark that its rollout may have lost tokens."""
_TOKENIZE_PATH = "/tokenize"
_SHARED_BYTES = 128 * 1024
"""A larger request is not kept in its parsed form for the capture: that takes several times its bytes."""


@dataclass(frozen=True, slots=True)
class AppOptions:
    """How a model server behaves.

    Attributes:
        max_body_bytes: Largest request body; a larger one is a 413.
        forwarded: Dialects whose requests go to the engine as they are; None forwards all that the engine speaks.
        bridge: How all others are served.
        tokenize: Returns the prompt ids of a body in the engine's dialect; where it is given, ``POST /tokenize``
            answers a Responses body with them (A173).
        non_generating: (method, path) pairs of this server beside the known ones that generate nothing, so that a
            training call there marks no rollout (B129).
    """

    max_body_bytes: int = 64 * 1024**2
    forwarded: frozenset[str] | None = None
    bridge: BridgeOptions = field(default_factory=BridgeOptions)
    tokenize: Callable[[Mapping[str, Any]], Awaitable[list[int]]] | None = None
    non_generating: frozenset[tuple[str, str]] = frozenset()


def build_app(
    engine: Engine,
    *,
    server_name: str,
    capture: CaptureWriter | None,
    run_token: str | None = None,
    options: AppOptions | None = None,
    child: ChildInterpreter[Any] | None = None,
    tokens: TokenCapture | None = None,
    external: ExternalStaging | None = None,
) -> Starlette:
    """Build the application of one model server.

    Starting and stopping engine and writer is the host's work; the application only uses them. The capture layer sees
    what clients see: it stands inside the translation of exceptions and the cancellation of calls whose client left,
    and outside of everything else (A51).

    Args:
        engine: The model behind the routes, started.
        server_name: Name of the server in the settings.
        capture: Records prefixed calls; None records nothing, prefixes are still removed (A11).
        run_token: Token that clients must send as their API key; None accepts everybody.
        options: How the server behaves.
        child: Interpreter of :func:`~gym_ray.model_server.heavy_bodies.body_work`, owned by the caller; None parses
            heavy bodies here, on a thread.
        tokens: Keeps the tokens of training calls (B77), owned by the caller; None keeps none.
        external: The engine is a worker that keeps the tokens of training calls itself (C242), owned by the caller;
            ``tokens`` is None then.
    """
    options = options or AppOptions()
    service = _Service(engine, server_name, run_token, options, child, tokens, external)
    routes = service.routes(options.tokenize)
    if capture is not None:
        routes.append(Route(QUIESCE_PATH, quiesce_endpoint(capture, run_token, tokens), methods=["POST"]))
    if external is not None:
        routes += _staging_routes(external, service.check_token)
    if tokens is not None:
        endpoint = weight_version_endpoint(tokens, service.check_token)
        routes.append(Route(WEIGHT_VERSION_PATH, endpoint, methods=["POST"]))
    training = None if tokens is None else _unobserved_training_calls(tokens, options)
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(CancelOnDisconnect),
            Middleware(CaptureMiddleware, writer=capture, training=training),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


def _staging_routes(external: ExternalStaging, check_token: Callable[[Request], None]) -> list[Route]:
    routes = control_routes(external.ledger, external.control_token)
    if external.worker is not None:
        endpoint = forwarded_weight_version(external.worker, check_token)
        routes.append(Route(WEIGHT_VERSION_PATH, endpoint, methods=["POST"]))
    return routes


def _unobserved_training_calls(tokens: TokenCapture, options: AppOptions) -> UnobservedTrainingCalls:
    async def settled(rollout_id: str) -> None:
        if not await tokens.settled(rollout_id, _MARK_PATIENCE_S):
            _log.error("%s: its tokens are incomplete, and that could not be written down yet", rollout_id)

    return UnobservedTrainingCalls(tokens.mark_soon, _non_generating(options), settled)


def _non_generating(options: AppOptions) -> frozenset[tuple[str, str]]:
    return options.non_generating | ({("POST", _TOKENIZE_PATH)} if options.tokenize is not None else frozenset())


class _Service:
    def __init__(
        self,
        engine: Engine,
        server_name: str,
        run_token: str | None,
        options: AppOptions,
        child: ChildInterpreter[Any] | None,
        tokens: TokenCapture | None,
        external: ExternalStaging | None,
    ) -> None:
        self._engine = engine
        self._server_name = server_name
        self._run_token = run_token.encode() if run_token else None
        self._max_body_bytes = options.max_body_bytes
        self._forwarded = engine.dialects if options.forwarded is None else options.forwarded
        self._bridged = BridgedRoute(engine, server_name, options.bridge)
        self._staged = (
            None if external is None else StagedRoute(engine, server_name, self._bridged, options.bridge, external)
        )
        self._child = child
        self._token_calls = TokenCalls(tokens, engine, self._forwarded)
        self._token_forwarding = TokenForwarding(engine)

    def routes(self, tokenize: Callable[[Mapping[str, Any]], Awaitable[list[int]]] | None) -> list[Route]:
        """Return the routes of clients; ``/tokenize`` is one where prompts can be tokenized."""
        routes = [Route(path, self.generate, methods=["POST"]) for path in DIALECT_BY_PATH]
        routes.append(Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]))
        if tokenize is not None:
            routes.append(Route(_TOKENIZE_PATH, self.tokenize(tokenize), methods=["POST"]))
        routes.append(Route("/v1/models", self.models, methods=["GET"]))
        routes.append(Route("/health", self.health, methods=["GET"]))
        return routes

    async def generate(self, request: Request) -> Response:
        """Answer one generation request from the engine."""
        dialect = DIALECT_BY_PATH.get(request.scope["path"])
        if dialect is None:  # the router lets a trailing line feed through
            raise HTTPException(404)
        self.check_token(request)
        raw = await self._read_body(request)
        called = None if self._staged is None else read_training_call(request.scope)
        try:
            whole = called is not None or self._token_calls.concerns(request.scope)
            body = await self._parse(raw, dialect, whole=whole)
        except InvalidBodyError as problem:
            return invalid_body_response(dialect, problem)
        if isinstance(body, dict) and len(raw) <= _SHARED_BYTES:
            publish_request(request.scope, body)
        if self._staged is not None and called is not None:
            return await self._staged.respond(request, dialect, body, len(raw), called)
        call = self._token_calls.begin(request.scope, dialect, body, len(raw))
        if dialect not in self._forwarded if call is None else not call.route.forwarded:
            return await self._bridged.respond(request, dialect, body, len(raw), call)
        asked = EngineRequest(dialect, body, raw, *_passed_on(request))
        return await (self._forward(request, asked) if call is None else self._forward_tokens(request, asked, call))

    async def _parse(self, raw: bytes, dialect: str, *, whole: bool) -> Mapping[str, Any]:
        if not is_heavy(raw):
            return _parse_object(raw)
        if self._child is None or whole or dialect not in self._forwarded:
            return await asyncio.to_thread(_parse_object, raw)
        try:
            return await parse_heavy(self._child, raw)
        except ValueError as exc:
            raise InvalidBodyError.from_json_error(exc) from None
        except TypeError:
            raise InvalidBodyError.no_object() from None

    async def _forward(self, request: Request, asked: EngineRequest) -> Response:
        try:
            answer = await self._engine.answer(asked)
        except EngineError as exc:
            publish_failure(request.scope, exc)
            return self._engine_failed(asked.dialect, exc)
        publish_answer(request.scope, answer, streamed=asked.stream)
        return _EngineResponse(answer)

    async def _forward_tokens(self, request: Request, asked: EngineRequest, call: TokenCall) -> Response:
        try:
            return await self._token_forwarding.respond(request, asked, call)
        except CallFailedError as failure:
            return failure.response
        except EngineError as exc:
            return self._engine_failed(asked.dialect, exc)

    async def count_tokens(self, request: Request) -> Response:
        """Answer ``POST /v1/messages/count_tokens`` from the engine; nothing is generated."""
        self.check_token(request)
        raw = await self._read_body(request)
        try:
            body = _parse_object(raw)
            answer = await self._engine.count_tokens(EngineRequest(MESSAGES, body, raw, *_passed_on(request)))
        except InvalidBodyError as problem:
            return invalid_body_response(MESSAGES, problem)
        except EngineError as exc:
            return self._engine_failed(MESSAGES, exc)
        return _EngineResponse(answer)

    def tokenize(
        self, prompt_ids: Callable[[Mapping[str, Any]], Awaitable[list[int]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that answers a Responses body with the ids of its prompt: ``{"tokens": [int, …]}``."""

        async def endpoint(request: Request) -> Response:
            self.check_token(request)
            raw = await self._read_body(request)
            try:
                bridge = await self._bridged.bridge(RESPONSES, _parse_object(raw), len(raw))
                tokens = await prompt_ids(bridge.body)
            except InvalidBodyError as problem:
                return invalid_body_response(RESPONSES, problem)
            except InvalidRequestError as error:
                return invalid_request_response(RESPONSES, error)
            except EngineError as exc:
                return self._engine_failed(RESPONSES, exc)
            return Response(exact_json.dumps({"tokens": tokens}), media_type="application/json")

        return endpoint

    async def models(self, request: Request) -> Response:
        """Answer ``GET /v1/models`` from the engine."""
        self.check_token(request)
        try:
            return _EngineResponse(await self._engine.models())
        except EngineError as exc:
            return self._engine_failed(None, exc)

    async def health(self, _request: Request) -> Response:
        """Say whether the engine answers; 503 with the cause when it does not."""
        try:
            await self._engine.ready(_HEALTH_TIMEOUT_S)
        except EngineError as exc:
            return JSONResponse({"status": "unavailable", "server": self._server_name, "error": exc.message}, 503)
        return JSONResponse({"status": "ok", "server": self._server_name})

    def _engine_failed(self, dialect: str | None, error: EngineError) -> Response:
        if error.status >= 500:  # what is below is the client's to mend
            _log.warning("%s: answered %d: %s", self._server_name, error.status, error.message)
        return engine_error_response(dialect, error)

    def check_token(self, request: Request) -> None:
        """Refuse a request without the run's token; 401."""
        if self._run_token is None:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        offered = [request.headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
        if not any(hmac.compare_digest(key.encode(), self._run_token) for key in offered):
            raise HTTPException(
                401, "this server needs the run's token as API key (Authorization: Bearer or x-api-key)"
            )

    async def _read_body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_body_bytes:
            raise self._too_large(declared)
        chunks: list[bytes] = []
        size = 0
        async with aclosing(request.stream()) as body:
            async for chunk in body:
                size += len(chunk)
                if size > self._max_body_bytes:
                    raise self._too_large(f"more than {self._max_body_bytes}")
                chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self, size: str) -> HTTPException:
        limit = f"this server takes at most {self._max_body_bytes} bytes"
        return HTTPException(413, f"the request body is too large ({size} bytes); {limit}")


class _EngineResponse(Response):
    """Relays an engine's answer; whatever ends it early ends the client's connection too."""

    def __init__(self, answer: EngineAnswer) -> None:
        self.status_code = answer.status
        self.background = None
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive  # only the answer matters
        answer = self._answer
        try:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for chunk in answer.body:
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()


def _passed_on(request: Request) -> tuple[dict[str, str], str]:
    """Return the headers and the query that go to an engine."""
    return request_headers(request.headers.items()), request.scope["query_string"].decode("latin-1")


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        body = exact_json.loads(raw)
    except ValueError as exc:
        raise InvalidBodyError.from_json_error(exc) from None
    if not isinstance(body, dict):
        raise InvalidBodyError.no_object()
    return body


def _dialect_of(request: Request) -> str | None:
    path = request.scope["path"]
    prefixed = split_rollout_prefix(path)
    return DIALECT_BY_PATH.get(prefixed.rest if prefixed else path)


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    response = error_response(_dialect_of(request), exc.status_code, exc.detail)
    response.headers.update(exc.headers or {})
    return response


async def _failed(request: Request, exc: Exception) -> Response:
    return error_response(_dialect_of(request), 500, f"the model server failed: {type(exc).__name__}")
