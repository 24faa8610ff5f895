"""Asks an engine for one complete answer, and says in the client's dialect how that failed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from gym_ray import exact_json
from gym_ray.dialects.conversion.bridge import Bridge
from gym_ray.dialects.terminal import is_error_payload
from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_call_capture.exchanges.exchange import publish_usage
from gym_ray.model_server.engine import Engine, EngineAnswer, EngineRequest, TokenRequest
from gym_ray.model_server.errors_wire import converted_error_response, engine_error_response, error_response
from gym_ray.model_server.facts import publish_answer, publish_failure
from gym_ray.model_server.headers import dialect_free_headers, request_headers
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.replayed import CallFailedError

__all__ = ["Asking", "WholeAnswer", "answer_bytes", "request_bytes"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """What an engine answered.

    Attributes:
        reply: The answer; its body has ended.
        payload: The body, parsed.
        size_bytes: Its length.
    """

    reply: EngineAnswer
    payload: dict[str, Any]
    size_bytes: int


class Asking:
    """Asks one engine.

    Args:
        engine: The model.
        server_name: Name of the server in the settings, for messages.
        shown_refusal: Takes the status and the body of a refusal, and returns the body that clients may see; None shows
            it as it is.
    """

    def __init__(
        self, engine: Engine, server_name: str, shown_refusal: Callable[[int, bytes], bytes] | None = None
    ) -> None:
        self._engine, self._server_name, self._shown_refusal = engine, server_name, shown_refusal

    async def ask(
        self, request: Request, bridge: Bridge, body: Mapping[str, Any], raw: bytes, tokens: TokenRequest | None = None
    ) -> WholeAnswer:
        """Send one request; usage and the facts of the answer are told to its capture.

        Args:
            request: The client's HTTP request.
            bridge: How client and engine are connected.
            body: What the engine is asked.
            raw: The same, written.
            tokens: Asks for exact tokens.

        Raises:
            CallFailedError: The engine refused; the client gets its words.
            EngineError: It gave no answer, or none that is an answer.
        """
        headers = dialect_free_headers(request_headers(request.headers.items()))
        try:
            reply = await self._engine.answer(EngineRequest(bridge.engine, body, raw, headers, tokens=tokens))
        except EngineError as error:
            publish_failure(request.scope, error)
            raise
        publish_answer(request.scope, reply, streamed=False)
        said = await reply.read()
        if reply.status >= 400:
            raise self._refused(bridge.client, reply, said)
        payload = await off_loop(len(said), lambda: exact_json.loads_object(said))
        if payload is None:
            raise EngineError(f"the engine answered {reply.status} with something that is no JSON object")
        if is_error_payload(payload):
            raise self._refused(bridge.client, reply, said)
        usage = payload.get("usage")
        publish_usage(request.scope, usage if isinstance(usage, Mapping) else None)
        return WholeAnswer(reply, payload, len(said))

    async def guarded(self, work: Awaitable[_T], dialect: str) -> _T:
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

    def _refused(self, dialect: str, reply: EngineAnswer, said: bytes) -> CallFailedError:
        """Pass on an engine's refusal; one that came with a status of success gets 502 (A73)."""
        status = reply.status if reply.status >= 400 else 502
        if self._shown_refusal is not None:
            said = self._shown_refusal(status, said)
        headers = [pair for pair in reply.headers if pair[0] not in ("content-type", "content-length")]
        content_type = next((value for name, value in reply.headers if name == "content-type"), "")
        response = converted_error_response(dialect, status, said, content_type)
        response.headers.update(dict(headers))
        return CallFailedError(status, _message(said, status), response)


def request_bytes(body: Mapping[str, Any]) -> bytes:
    """Write a request.

    Raises:
        UnsupportedRequestError: It nests too deeply (400).
    """
    try:
        return exact_json.dumps(body)
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; it could not be converted") from None


def answer_bytes(answer: Mapping[str, Any]) -> bytes:
    """Write an answer.

    Raises:
        EngineError: It nests too deeply (502).
    """
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
