"""The ASGI layer that strips the rollout prefix and, with a writer, records the exchange (A §2, A §4).

It never changes an answer's bytes and never fails a call. It may delay the end of an answer: a client that has the
whole answer can rely on the record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_ray.correlation import PrefixedPath, current_rollout_id, restore_prefix_in_location, split_rollout_prefix
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.model_call_capture.acks import LoopAcks
from gym_ray.model_call_capture.exchange import Exchange, read_execution_facts, read_published_usage
from gym_ray.model_call_capture.training_calls import UnobservedTrainingCalls
from gym_ray.model_call_capture.writer import CaptureWriter

__all__ = ["CaptureMiddleware"]

_KEEP_ALIVE = b": keep-alive\n\n"
_LINGER_S = 0.05
"""How long a handler may take to end after its answer is complete before its client is served without waiting."""


class CaptureMiddleware:
    """Wraps an ASGI app.

    Args:
        app: What answers the calls.
        writer: Records prefixed calls on observed paths; None only strips prefixes and repairs redirects (A11).
        training: Looks after training-capture calls on other paths (A19); None only forwards them.
    """

    def __init__(
        self, app: ASGIApp, writer: CaptureWriter | None, training: UnobservedTrainingCalls | None = None
    ) -> None:
        self._app = app
        self._writer, self._training = writer, training
        self._patience: dict[asyncio.AbstractEventLoop, LoopAcks[_Recording]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection; scopes other than HTTP pass through untouched (A13)."""
        split = split_rollout_prefix(scope["path"]) if scope["type"] == "http" else None
        if split is None:
            await self._app(scope, receive, send)
            return
        token = current_rollout_id.set(split.rollout_id)
        try:
            await self._serve_prefixed(_without_prefix(scope, split), receive, _repairing(send, scope, split), split)
        finally:
            current_rollout_id.reset(token)

    async def _serve_prefixed(self, scope: Scope, receive: Receive, send: Send, split: PrefixedPath) -> None:
        dialect = DIALECT_BY_PATH.get(split.rest)
        if self._training is not None and split.token_capture and dialect is None:
            await self._training.serve(self._app, scope, receive, send, split.rollout_id)
            return
        exchange = None
        if self._writer is not None and dialect is not None:
            exchange = self._writer.begin(split.rollout_id, dialect, _session_id(scope))
        if self._writer is None or exchange is None:
            await self._app(scope, receive, send)
            return
        await _Recording(exchange, receive, send, self._writer, self._loop_patience()).run(self._app, scope)

    def _loop_patience(self) -> LoopAcks[_Recording]:
        """One timer serves all calls of a loop: a timer a call costs a loop more than the rest of its bookkeeping."""
        loop = asyncio.get_running_loop()
        patience = self._patience.get(loop)
        if patience is None:
            patience = self._patience[loop] = LoopAcks(loop, _LINGER_S, _Recording.end_early)
        return patience


class _Recording:
    """One exchange under way: passes messages through, keeps their bytes, holds back the end of the answer.

    The record is made when the handler ends, and its latency is the handler's (A38). A handler that goes on for longer
    than ``_LINGER_S`` after its answer is complete, because its upstream keeps the connection open or it has work to do
    in the background, does not hold its client: the record is made then, as of the moment the answer was complete, and
    what the handler still sends is forwarded behind it without being recorded.
    """

    def __init__(
        self,
        exchange: Exchange,
        receive: Receive,
        send: Send,
        writer: CaptureWriter,
        patience: LoopAcks[_Recording],
    ) -> None:
        self._exchange, self._writer, self._patience = exchange, writer, patience
        self._outer_receive, self._outer_send = receive, send
        self._scanner: TerminalScanner | None = None
        self._held: list[Message] = []
        self._begun_at = 0.0
        self._state: Mapping[str, Any] = {}
        self._end_expected = False
        self._early: asyncio.Task[None] | None = None

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        exchange = self._exchange
        exchange.started_at, self._begun_at = time.time(), time.perf_counter()
        self._state = scope["state"]
        try:
            await app(scope, self._receive, self._send)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise  # the event loop is gone; the call stays open, and closing the writer marks its rollout
            # The record outlives the cancellation of its call (A50), and the exception follows the record (A47).
            with anyio.CancelScope(shield=True):
                await self._end(error)
            raise
        await self._end(None)

    async def _end(self, error: BaseException | None) -> None:
        self._patience.drop(self)
        if self._early is not None:
            await asyncio.wait([self._early])  # unlike awaiting it, this does not cancel it when we are cancelled
            self._early.result()
            return
        self._exchange.error = error
        self._finish()
        await self._record_and_release()

    async def _record_and_release(self) -> None:
        await self._writer.submit(self._exchange)
        held, self._held = self._held, []
        for message in held:
            await self._outer_send(message)

    def end_early(self) -> None:
        """Record a complete answer whose handler goes on. Call on the loop."""
        exchange = self._exchange
        complete_at, latency_ms = exchange.completed_at, exchange.latency_ms
        self._finish()
        exchange.completed_at, exchange.latency_ms = complete_at, latency_ms
        self._early = asyncio.get_running_loop().create_task(self._record_and_release())

    def _finish(self) -> None:
        exchange = self._exchange
        exchange.completed_at = time.time()
        exchange.latency_ms = self._elapsed_ms()
        exchange.facts = read_execution_facts(self._state)
        exchange.usage = read_published_usage(self._state)

    def _elapsed_ms(self) -> float:
        return round((time.perf_counter() - self._begun_at) * 1000, 2)

    async def _receive(self) -> Message:
        message = await self._outer_receive()
        if self._early is not None:
            return message  # the exchange is the writer's
        if message["type"] == "http.request":
            if body := message.get("body"):
                self._exchange.request.append(body)
        elif message["type"] == "http.disconnect":
            self._exchange.disconnected = True
        return message

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if self._early is not None:
            await asyncio.wait([self._early])
        elif kind == "http.response.body":
            if self._must_hold(message):
                self._held.append(message)
                return
        elif kind == "http.response.start":
            self._start(message)
        await self._outer_send(message)

    def _start(self, message: Message) -> None:
        exchange = self._exchange
        exchange.status = message["status"]
        exchange.is_sse = _is_sse(message.get("headers", ()))
        if exchange.is_sse:
            self._scanner = TerminalScanner(exchange.dialect)

    def _must_hold(self, message: Message) -> bool:
        """Keep a body message's bytes, and say whether it waits for the record (A40-A42)."""
        exchange, body = self._exchange, message.get("body", b"")
        last = not message.get("more_body", False)
        exchange.complete = exchange.complete or last
        if body:
            exchange.response.append(body)
        if self._scanner is None:
            if last:
                self._expect_end()
            return True
        if body and exchange.latency_ttft_ms is None and body != _KEEP_ALIVE:
            exchange.latency_ttft_ms = self._elapsed_ms()
        if exchange.terminal is None and body:
            exchange.terminal = self._scanner.feed(body)
        hold = exchange.complete or exchange.terminal is not None
        if hold:
            self._expect_end()
        return hold

    def _expect_end(self) -> None:
        """The answer is complete, and the handler should end now."""
        if not self._end_expected:
            self._end_expected = True
            self._exchange.completed_at, self._exchange.latency_ms = time.time(), self._elapsed_ms()
            self._patience.expect(self)


def _without_prefix(scope: Scope, split: PrefixedPath) -> Scope:
    inner = dict(scope)
    inner["path"] = split.rest
    inner["raw_path"] = split.rest.encode("utf-8", "surrogateescape")
    inner.setdefault("state", {})
    return inner


def _repairing(send: Send, scope: Scope, split: PrefixedPath) -> Send:
    """Put the prefix back into redirects, so that a followed call stays captured (A17, A18)."""

    async def repairing_send(message: Message) -> None:
        if message["type"] == "http.response.start" and 300 <= message["status"] <= 399:
            message = {**message, "headers": _repaired_headers(message, _header(scope, b"host"), split.prefix)}
        await send(message)

    return repairing_send


def _repaired_headers(message: Message, host: str, prefix: str) -> list[tuple[bytes, bytes]]:
    headers = []
    for name, value in message.get("headers", ()):
        if name.lower() == b"location":
            location = restore_prefix_in_location(value.decode("latin-1"), message["status"], host, prefix)
            headers.append((name, location.encode("latin-1")))
        else:
            headers.append((name, value))
    return headers


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted), "")


def _session_id(scope: Scope) -> str | None:
    """Return ``x-session-id`` when all its non-empty occurrences agree (A46)."""
    values = {value for name, value in scope["headers"] if name.lower() == b"x-session-id" and value}
    return values.pop().decode("latin-1") if len(values) == 1 else None


def _is_sse(headers: Any) -> bool:
    """A45: the first content type decides, whatever its case."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return bool(value.strip().lower().startswith(b"text/event-stream"))
    return False
