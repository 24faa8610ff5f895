"""Serves clients whose dialect the engine does not speak: check, convert, ask for a complete answer, convert back.

Where the client streams, the answer is replayed as server-sent events once it is complete (A132, A136). The tokens of a
training call are kept before anything of its answer is delivered (B77).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gym_ray import exact_json
from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.bridge import Bridge, dialect_to_ask
from gym_ray.dialects.conversion.preparation import PreparedRequest, prepare
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.terminal import is_error_payload
from gym_ray.errors import EngineError, InvalidRequestError, UnsupportedRequestError
from gym_ray.model_call_capture.exchange import publish_usage
from gym_ray.model_server.engine import Engine, EngineAnswer, EngineRequest, TokenRequest
from gym_ray.model_server.errors_wire import (
    converted_error_response,
    engine_error_response,
    error_response,
    invalid_request_response,
)
from gym_ray.model_server.facts import publish_answer, publish_failure
from gym_ray.model_server.headers import dialect_free_headers, request_headers
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.replayed import CallFailedError, ReplayedStream
from gym_ray.model_server.token_answers import without_tokens
from gym_ray.model_server.token_calls import TokenCall

__all__ = ["BridgeOptions", "BridgedRoute"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """How converted calls are served.

    Attributes:
        default_max_tokens: Bound of an answer where the engine's dialect demands one and the client gives none.
        split_think: Reasoning in ``<think>`` tags of a chat answer becomes a reasoning item (A166).
        unsigned_thinking: The engine takes thinking without a signature; false leaves such thinking out.
        keep_alive_s: Longest silence of a replayed stream (A139).
        incomplete_event: An incomplete Responses stream ends with ``response.incomplete`` (W10).
        extensions: Request members beyond the dialects' own, which go to the engine unchanged (A172).
    """

    default_max_tokens: int = 4096
    split_think: bool = True
    unsigned_thinking: bool = True
    keep_alive_s: float = 15.0
    incomplete_event: bool = True
    extensions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, converted and ready to be sent; ``call`` is the training call that it is, opened."""

    request: Request
    bridge: Bridge
    body: bytes
    call: TokenCall | None
    tokens: TokenRequest | None


class BridgedRoute:
    """Answers requests of any dialect from an engine that is asked in the nearest one it speaks.

    Args:
        engine: The model.
        server_name: Name of the server in the settings, for messages.
        options: How calls are served.
    """

    def __init__(self, engine: Engine, server_name: str, options: BridgeOptions) -> None:
        self._engine = engine
        self._server_name = server_name
        self._options = options

    async def respond(
        self, request: Request, dialect: str, body: Mapping[str, Any], size: int, call: TokenCall | None = None
    ) -> Response:
        """Answer one request.

        Args:
            request: The HTTP request, its body read.
            dialect: The client's dialect.
            body: The parsed body.
            size: Its length in bytes.
            call: The training call that this is, not opened yet; None when it is none.
        """
        try:
            bridge = await self.bridge(dialect, body, size, call)
            raw = await off_loop(size, lambda: _request_bytes(bridge.body))
            job = _Job(request, bridge, raw, call, None if call is None else await call.open())
        except CallFailedError as failure:
            return failure.response
        except InvalidRequestError as error:
            return invalid_request_response(dialect, error)
        except UnsupportedRequestError as error:
            return engine_error_response(dialect, error)
        if bridge.prepared.stream:
            return ReplayedStream(dialect, self._frames(job), self._options.keep_alive_s)
        try:
            answer = await self._guarded(self._complete(job, _answer_bytes), dialect)
        except CallFailedError as failure:
            return failure.response
        return Response(answer, 200, media_type="application/json")

    async def bridge(self, dialect: str, body: Mapping[str, Any], size: int, call: TokenCall | None = None) -> Bridge:
        """Check and convert one request.

        Raises:
            InvalidRequestError: The body breaks the schema of its dialect.
            UnsupportedRequestError: A field has no form in the engine's dialect, or the engine speaks none.
        """
        return await off_loop(size, lambda: self._convert(dialect, body, call))

    def _convert(self, dialect: str, body: Mapping[str, Any], call: TokenCall | None) -> Bridge:
        options = self._options
        if call is not None and call.route.native:
            return _unconverted(dialect, body, options.split_think)
        asked = dialect_to_ask(dialect, self._engine.dialects if call is None else call.route.spoken)
        if asked is None:
            raise UnsupportedRequestError(f"the engine of model server {self._server_name!r} speaks no dialect", 501)
        prepared = prepare(dialect, body, extensions=options.extensions if dialect == RESPONSES else frozenset())
        carried = {name: prepared.body[name] for name in options.extensions if name in prepared.body}
        bridge = Bridge.of(
            dialect,
            asked,
            _without(prepared, carried),
            default_max_tokens=options.default_max_tokens,
            split_think=options.split_think,
            unsigned_thinking=options.unsigned_thinking,
        )
        bridge.body.update(carried)
        return bridge

    async def _frames(self, job: _Job) -> Sequence[bytes]:
        def told(answer: Mapping[str, Any]) -> Sequence[bytes]:
            return replay_frames(
                job.bridge.client,
                answer,
                include_usage=job.bridge.prepared.include_usage,
                incomplete_event=self._options.incomplete_event,
            )

        return await self._guarded(self._complete(job, told), job.bridge.client)

    async def _complete(self, job: _Job, written: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Ask the engine, and return its answer in the client's dialect as ``written`` writes it."""
        call = job.call
        if call is None:
            _, answer, size = await self._ask(job)
            return await off_loop(size, lambda: written(job.bridge.answer(answer)))

        def told(answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], _T]:
            whole = job.bridge.answer(answer)
            shown = whole if call.client_wants_ids else without_tokens(whole) or whole
            return whole, written(shown)

        async with call.withdrawn_on_failure():
            reply, answer, size = await self._ask(job)
            whole, shown = await off_loop(size, lambda: told(answer))
            outcome = call.outcome(whole, reply, None if job.bridge.hub is None else answer)
            call.check_prefix(outcome)
        await call.complete(whole, outcome)
        return shown

    async def _ask(self, job: _Job) -> tuple[EngineAnswer, dict[str, Any], int]:
        """Return what the engine answered, the answer as an object, and its length in bytes."""
        request, bridge = job.request, job.bridge
        headers = dialect_free_headers(request_headers(request.headers.items()))
        asked = EngineRequest(bridge.engine, bridge.body, job.body, headers, tokens=job.tokens)
        try:
            reply = await self._engine.answer(asked)
        except EngineError as error:
            publish_failure(request.scope, error)
            raise
        publish_answer(request.scope, reply, streamed=False)
        raw = await reply.read()
        if reply.status >= 400:
            raise self._refused(bridge.client, reply, raw)
        answer = await off_loop(len(raw), lambda: exact_json.loads_object(raw))
        if answer is None:
            raise EngineError(f"the engine answered {reply.status} with something that is no JSON object")
        if is_error_payload(answer):
            raise self._refused(bridge.client, reply, raw)
        usage = answer.get("usage")
        publish_usage(request.scope, usage if isinstance(usage, Mapping) else None)
        return reply, answer, len(raw)

    def _refused(self, dialect: str, reply: EngineAnswer, raw: bytes) -> CallFailedError:
        """Pass on an engine's refusal; one that came with a status of success gets 502 (A73)."""
        status = reply.status if reply.status >= 400 else 502
        headers = [pair for pair in reply.headers if pair[0] not in ("content-type", "content-length")]
        content_type = next((value for name, value in reply.headers if name == "content-type"), "")
        response = converted_error_response(dialect, status, raw, content_type)
        response.headers.update(dict(headers))
        return CallFailedError(status, _message(raw, status), response)

    async def _guarded(self, work: Awaitable[_T], dialect: str) -> _T:
        """Turn every failure of a call into :class:`CallFailedError`; no text of an unexpected one leaves here."""
        try:
            return await work
        except CallFailedError:
            raise
        except EngineError as error:
            if error.status >= 500:
                _log.warning("%s: answered %d: %s", self._server_name, error.status, error.message)
            response = engine_error_response(dialect, error)
            raise CallFailedError(error.status, error.message, response) from error
        except Exception as error:
            _log.exception("%s: a converted call failed", self._server_name)
            message = f"the model server failed: {type(error).__name__}"
            raise CallFailedError(500, message, error_response(dialect, 500, message)) from error


def _unconverted(dialect: str, body: Mapping[str, Any], split_think: bool) -> Bridge:
    """Return the bridge of a streamed request to an engine of its dialect, for a complete answer; checks nothing."""
    asked = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    options = body.get("stream_options")
    wants_usage = dialect == CHAT and isinstance(options, Mapping) and bool(options.get("include_usage"))
    prepared = PreparedRequest(asked, stream=True, include_usage=wants_usage)
    return Bridge(dialect, dialect, asked, None, prepared, split_think)


def _without(prepared: PreparedRequest, names: Mapping[str, Any]) -> PreparedRequest:
    if not names:
        return prepared
    body = {name: value for name, value in prepared.body.items() if name not in names}
    return PreparedRequest(body, prepared.stream, prepared.include_usage, prepared.namespaces)


def _request_bytes(body: Mapping[str, Any]) -> bytes:
    try:
        return exact_json.dumps(body)
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; it could not be converted") from None


def _answer_bytes(answer: Mapping[str, Any]) -> bytes:
    try:
        return exact_json.dumps(answer)
    except ValueError as error:
        raise EngineError(f"the engine's answer could not be converted: {error}") from None


def _message(raw: bytes, status: int) -> str:
    """Return what an engine's error body says."""
    parsed = exact_json.loads_object(raw) or {}
    error = parsed.get("error")
    found = error.get("message") if isinstance(error, Mapping) else error or parsed.get("message")
    if isinstance(found, str) and found:
        return found
    return raw.decode("utf-8", "replace")[:1000] or f"the engine answered {status}"
