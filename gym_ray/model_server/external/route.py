"""Captured calls of a server whose workers stage the tokens, on all three routes (C242-C267).

The order never changes: the worker stages and answers, internal members are taken out, the answer is converted, all of
it is written, the ledger keeps the row, and only then the client gets the first byte (C250). What clients of other
paths get does not pass through here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gym_ray.dialects import CHAT
from gym_ray.dialects.conversion.bridge import Bridge
from gym_ray.dialects.replay import replay_frames
from gym_ray.errors import InvalidRequestError, RolloutIdError, UnsupportedRequestError
from gym_ray.model_call_capture.exchanges.exchange import ExecutionFacts, TrainingCall, publish_execution_facts
from gym_ray.model_server.asking import Asking, answer_bytes, request_bytes
from gym_ray.model_server.bridged import BridgedRoute, BridgeOptions
from gym_ray.model_server.engine import Engine
from gym_ray.model_server.errors_wire import engine_error_response, error_response, invalid_request_response
from gym_ray.model_server.external.reserved import shown_refusal, take_coordinates, without_reserved
from gym_ray.model_server.external.staged_call import StagedCall
from gym_ray.model_server.external.worker_request import worker_request
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.replayed import CallFailedError, ReplayedStream
from gym_ray.model_server.token_answers import items_of
from gym_ray.model_server.token_calls import EngineRoute
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.lineage import hashed_items
from gym_ray.token_id_capture.staging import CaptureAdmission

__all__ = ["StagedRoute"]

_log = logging.getLogger(__name__)
_NOT_ADMITTED = "token_capture_failed"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, converted: ``body`` is the client's, without reserved members."""

    request: Request
    dialect: str
    body: Mapping[str, Any]
    size_bytes: int
    bridge: Bridge
    call: StagedCall


class StagedRoute:
    """Answers the captured calls of one server.

    Args:
        engine: The worker, which is asked in the Chat dialect.
        server_name: Name of the server in the settings, for messages.
        bridged: Converts requests.
        options: How answers are served.
        staging: Ledger and kind of the workers.
    """

    def __init__(
        self,
        engine: Engine,
        server_name: str,
        bridged: BridgedRoute,
        options: BridgeOptions,
        staging: ExternalStaging,
    ) -> None:
        self._engine, self._server_name = engine, server_name
        self._bridged, self._options, self._staging = bridged, options, staging
        self._asking = Asking(engine, server_name, shown_refusal)

    async def respond(
        self, request: Request, dialect: str, body: Mapping[str, Any], size: int, called: TrainingCall
    ) -> Response:
        """Answer one captured call.

        Args:
            request: The HTTP request, its body read.
            dialect: The client's dialect.
            body: The parsed body.
            size: Its length in bytes.
            called: Which call this is.
        """
        if CHAT not in self._engine.dialects:
            message = f"model server {self._server_name!r} has no worker that stages tokens: its engine speaks no chat"
            return error_response(dialect, 501, message)
        admitted_at = time.time()
        body = without_reserved(body)
        try:
            bridge = await self._bridged.bridge(
                dialect, body, size, EngineRoute(dialect, frozenset({CHAT}), native=dialect == CHAT, forwarded=False)
            )
        except InvalidRequestError as error:
            return invalid_request_response(dialect, error)
        except UnsupportedRequestError as error:
            return engine_error_response(dialect, error)
        call = StagedCall(self._staging, called, admitted_at=admitted_at, size_bytes=size)
        job = _Job(request, dialect, body, size, bridge, call)
        if bridge.prepared.stream:
            return ReplayedStream(dialect, self._frames(job), self._options.keep_alive_s)
        try:
            answer = await self._asking.guarded(self._complete(job, answer_bytes), dialect)
        except CallFailedError as failure:
            return failure.response
        return Response(answer, 200, media_type="application/json")

    async def _frames(self, job: _Job) -> Sequence[bytes]:
        def told(answer: Mapping[str, Any]) -> Sequence[bytes]:
            return replay_frames(
                job.dialect,
                answer,
                include_usage=job.bridge.prepared.include_usage,
                incomplete_event=self._options.incomplete_event,
            )

        return await self._asking.guarded(self._complete(job, told), job.dialect)

    async def _complete(self, job: _Job, written: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Return the answer as ``written`` writes it; the ledger has its row, or why there is none, by then."""
        admission = await self._admitted(job)
        async with job.call.settled():
            body = worker_request(job.bridge.body, admission, self._staging.backend)
            raw = await off_loop(job.size_bytes, lambda: request_bytes(body))
            asked = await self._asking.ask(job.request, job.bridge, body, raw)

            def told() -> tuple[Any, Mapping[str, Any], _T]:
                coordinates = take_coordinates(asked.payload)
                whole = job.bridge.answer(asked.payload, keep_id=True)
                return coordinates, whole, written(whole)

            coordinates, whole, shown = await off_loop(asked.size_bytes, told)
            if asked.reply.local_reason is None:  # else this server made the answer, and no worker knows of it (C261)
                await job.call.commit(coordinates, whole, _served_id(asked.payload, whole))
        return shown

    async def _admitted(self, job: _Job) -> CaptureAdmission | None:
        items = await off_loop(job.size_bytes, lambda: _items(job.dialect, job.body))
        try:
            return await job.call.admit(items)
        except Exception as error:
            _log.exception("%s: a training call could not be admitted", self._server_name)
            publish_execution_facts(job.request.scope, ExecutionFacts(False, "local", None, _NOT_ADMITTED))
            refused = isinstance(error, RolloutIdError)
            why = str(error) if refused else type(error).__name__
            message = f"the call could not be looked up in the ledger of token capture ({why}); nothing was generated"
            status = 400 if refused else 503
            raise CallFailedError(status, message, error_response(job.dialect, status, message)) from error


def _items(dialect: str, body: Mapping[str, Any]) -> list[object] | None:
    """Return the turns of a request, as its client sent them, with their hashes; None when they cannot be read."""
    try:
        items = items_of(dialect, body)
    except Exception as error:  # noqa: BLE001 - boundary: a history that cannot be read is only never a known one
        _log.warning("the turns of a captured call cannot be read: %r", error)
        return None
    try:
        return None if items is None else hashed_items(items)
    except ValueError:
        return items  # nothing can be proved of them, which is the admission's to say


def _served_id(payload: Mapping[str, Any], served: Mapping[str, Any]) -> str | None:
    """Return the worker's id of an answer, if that is the one which the client gets (C67, C249)."""
    response_id = payload.get("id")
    return response_id if isinstance(response_id, str) and response_id and served.get("id") == response_id else None
