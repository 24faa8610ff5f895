"""Training calls in a dialect that the engine speaks: the answer is the engine's, its end waits for the record (B77).

A stream stays one: chunks flow, and from the terminal event on everything waits. A JSON answer waits as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gym_ray import exact_json
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.terminal import ERROR, TerminalScanner, is_error_payload
from gym_ray.errors import EngineError
from gym_ray.model_server.engine import Engine, EngineAnswer, EngineRequest
from gym_ray.model_server.facts import publish_answer, publish_failure
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.served_content import says_something, stream_says_something
from gym_ray.model_server.token_answers import without_tokens
from gym_ray.model_server.token_calls import TokenCall
from gym_ray.token_id_capture.exact_tokens import TokenOutcome

__all__ = ["TokenForwarding"]

_log = logging.getLogger(__name__)
_AFTER_END_S: Final = 5.0
"""How long an engine may keep its connection open behind the event that ends its stream."""


class TokenForwarding:
    """Asks an engine and hands its answer on, once its tokens are kept.

    Args:
        engine: The model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def respond(self, request: Request, asked: EngineRequest, call: TokenCall) -> Response:
        """Answer one training call.

        Args:
            request: The HTTP request, its body read.
            asked: What the engine is asked.
            call: The call, not opened yet.

        Raises:
            CallFailedError: The call could not be noted.
            EngineError: The engine failed; nothing was served, and the call is withdrawn.
        """
        asked = replace(asked, tokens=await call.open())
        async with call.withdrawn_on_failure():
            reply = await self._answer(request, asked)
            if _is_sse(reply):
                return _TokenStream(reply, call)
            raw = await reply.read()
            answer = await off_loop(len(raw), lambda: exact_json.loads_object(raw)) if reply.status < 400 else None
            outcome = None
            if answer is not None and not is_error_payload(answer):
                outcome = call.outcome(answer, reply)
                call.check_prefix(outcome)
        return await _whole(reply, raw, call, answer, outcome)

    async def _answer(self, request: Request, asked: EngineRequest) -> EngineAnswer:
        try:
            reply = await self._engine.answer(asked)
        except EngineError as error:
            publish_failure(request.scope, error)
            raise
        publish_answer(request.scope, reply, streamed=asked.stream)
        return reply


async def _whole(
    reply: EngineAnswer, raw: bytes, call: TokenCall, answer: dict[str, Any] | None, outcome: TokenOutcome | None
) -> Response:
    """End the call as its JSON answer says, and return that answer."""
    if reply.status >= 400:
        await call.refused(reply.status)
    elif answer is None:
        await call.unreadable(f"the engine answered {reply.status} with something that is no JSON object")
    elif is_error_payload(answer):
        served = says_something(answer)
        await call.failed(f"the engine answered {reply.status} with an error", served=served)
    else:
        await call.complete(answer, outcome)
    # An engine that reports tokens beside its answer has taken out of it what nobody asked for.
    if answer is not None and reply.tokens is None and not call.client_wants_ids:
        stripped = without_tokens(answer)
        raw = raw if stripped is None else exact_json.dumps(stripped)
    return _response(reply, raw)


def _response(reply: EngineAnswer, raw: bytes) -> Response:
    response = Response(raw, reply.status)
    lengths = [(name, value) for name, value in response.raw_headers if name == b"content-length"]
    kept = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    response.raw_headers = [pair for pair in kept if pair[0].lower() != b"content-length"] + lengths
    return response


class _TokenStream(Response):
    """Relays a stream, and holds its end back until the call's tokens are kept.

    Whatever ends the engine's answer early ends the client's connection too. If the client leaves, the call is
    abandoned, and the note of it stays.
    """

    def __init__(self, reply: EngineAnswer, call: TokenCall) -> None:
        self.status_code = reply.status
        self.background = None
        self._reply, self._call = reply, call
        self._scanner = TerminalScanner(call.route.dialect)
        self._seen: list[bytes] = []
        self._held: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream."""
        del scope, receive  # only the answer matters
        reply = self._reply
        try:
            try:
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
                await send({"type": "http.response.start", "status": reply.status, "headers": headers})
                failure = await self._relay(send)
                await self._end(failure)
            except asyncio.CancelledError:
                self._call.abandon()
                raise
            for chunk in self._held:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if failure is not None:
                raise failure
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await reply.aclose()

    async def _relay(self, send: Send) -> Exception | None:
        """Pass on what comes before the terminal event, collect the rest, and return what broke the stream off."""
        chunks = aiter(self._reply.body)
        try:
            async for chunk in chunks:
                if not chunk:
                    continue
                self._seen.append(chunk)
                if self._scanner.feed(chunk) is not None:
                    self._held.append(chunk)
                    break
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            else:
                return None
            async with asyncio.timeout(_AFTER_END_S):
                async for chunk in chunks:
                    self._held.append(chunk)
        except TimeoutError:
            _log.warning("an engine kept its connection open behind the end of its stream; it was closed")
        except Exception as error:  # noqa: BLE001 - boundary: the call is ended first, then it is raised
            return error
        return None

    async def _end(self, failure: Exception | None) -> None:
        """End the call as its stream did."""
        call, terminal = self._call, self._scanner.terminal
        seen = b"".join(self._seen)
        if terminal is None or terminal == ERROR:
            served = await off_loop(len(seen), lambda: stream_says_something(call.route.dialect, seen))
            await call.failed(_how_it_failed(terminal, failure), served=served)
            return
        answer = await off_loop(len(seen), lambda: reassemble(call.route.dialect, seen))
        if answer is None:
            await call.unreadable("the stream cannot be put together")
        else:
            await call.complete(answer, call.outcome(answer, self._reply))


def _how_it_failed(terminal: str | None, failure: Exception | None) -> str:
    if terminal is not None:
        return "the stream ended in an error"
    broke = "it has no terminal event" if failure is None else f"{type(failure).__name__}: {failure}"
    return f"the stream broke off: {broke}"


def _is_sse(reply: EngineAnswer) -> bool:
    kind = next((value for name, value in reply.headers if name.lower() == "content-type"), "")
    return reply.status < 400 and kind.strip().lower().startswith("text/event-stream")
