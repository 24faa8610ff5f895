"""Serves clients whose dialect the engine does not speak: check, convert, ask for a complete answer, convert back.

Where the client streams, the answer is replayed as server-sent events once it is complete (A132, A136). The tokens of a
training call are kept before anything of its answer is delivered (B77).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion.bridge import Bridge, dialect_to_ask
from gym_ray.dialects.conversion.preparation import PreparedRequest, prepare
from gym_ray.dialects.replay import replay_frames
from gym_ray.errors import InvalidRequestError, UnsupportedRequestError
from gym_ray.model_server.asking import Asking, WholeAnswer, answer_bytes, request_bytes
from gym_ray.model_server.engine import Engine, TokenRequest
from gym_ray.model_server.errors_wire import (
    engine_error_response,
    invalid_request_response,
)
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.replayed import CallFailedError, ReplayedStream
from gym_ray.model_server.token_answers import without_tokens
from gym_ray.model_server.token_calls import EngineRoute, TokenCall

__all__ = ["BridgeOptions", "BridgedRoute"]

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
        self._asking = Asking(engine, server_name)

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
            bridge = await self.bridge(dialect, body, size, None if call is None else call.route)
            raw = await off_loop(size, lambda: request_bytes(bridge.body))
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
            answer = await self._asking.guarded(self._complete(job, answer_bytes), dialect)
        except CallFailedError as failure:
            return failure.response
        return Response(answer, 200, media_type="application/json")

    async def bridge(
        self, dialect: str, body: Mapping[str, Any], size: int, route: EngineRoute | None = None
    ) -> Bridge:
        """Check and convert one request.

        Args:
            dialect: The client's dialect.
            body: The parsed body.
            size: Its length in bytes.
            route: How a captured call goes to the engine; None for any other.

        Raises:
            InvalidRequestError: The body breaks the schema of its dialect.
            UnsupportedRequestError: A field has no form in the engine's dialect, or the engine speaks none.
        """
        return await off_loop(size, lambda: self._convert(dialect, body, route))

    def _convert(self, dialect: str, body: Mapping[str, Any], route: EngineRoute | None) -> Bridge:
        options = self._options
        if route is not None and route.native:
            return _unconverted(dialect, body, options.split_think)
        asked = dialect_to_ask(dialect, self._engine.dialects if route is None else route.spoken)
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

        return await self._asking.guarded(self._complete(job, told), job.bridge.client)

    async def _complete(self, job: _Job, written: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Ask the engine, and return its answer in the client's dialect as ``written`` writes it."""
        call = job.call
        if call is None:
            asked = await self._ask(job)
            return await off_loop(asked.size_bytes, lambda: written(job.bridge.answer(asked.payload)))

        def told(answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], _T]:
            whole = job.bridge.answer(answer)
            shown = whole if call.client_wants_ids else without_tokens(whole) or whole
            return whole, written(shown)

        async with call.withdrawn_on_failure():
            asked = await self._ask(job)
            whole, shown = await off_loop(asked.size_bytes, lambda: told(asked.payload))
            outcome = call.outcome(whole, asked.reply, None if job.bridge.hub is None else asked.payload)
            call.check_prefix(outcome)
        await call.complete(whole, outcome)
        return shown

    async def _ask(self, job: _Job) -> WholeAnswer:
        return await self._asking.ask(job.request, job.bridge, job.bridge.body, job.body, job.tokens)


def _unconverted(dialect: str, body: Mapping[str, Any], split_think: bool) -> Bridge:
    """Return the bridge of a request to an engine of its dialect, for a complete answer; checks nothing."""
    asked = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    options = body.get("stream_options")
    wants_usage = dialect == CHAT and isinstance(options, Mapping) and bool(options.get("include_usage"))
    prepared = PreparedRequest(asked, stream=body.get("stream") is True, include_usage=wants_usage)
    return Bridge(dialect, dialect, asked, None, prepared, split_think)


def _without(prepared: PreparedRequest, names: Mapping[str, Any]) -> PreparedRequest:
    if not names:
        return prepared
    body = {name: value for name, value in prepared.body.items() if name not in names}
    return PreparedRequest(body, prepared.stream, prepared.include_usage, prepared.namespaces)
