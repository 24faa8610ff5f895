"""The ASGI layer that strips the rollout prefix and, with a writer, records the exchange (A §2, A §4).

It never changes an answer's bytes and never fails a call. It may delay the end of an answer: a client that has the
whole answer can rely on the record. It tells the application which call is one for training, and under which id.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_ray.correlation import PrefixedPath, current_rollout_id, restore_prefix_in_location, split_rollout_prefix
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.model_call_capture.acks import Deadlines
from gym_ray.model_call_capture.exchanges.exchange import (
    Exchange,
    TrainingCall,
    publish_training_call,
    read_execution_facts,
    read_published_usage,
    take_published_request,
)
from gym_ray.model_call_capture.training_calls import UnobservedTrainingCalls
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.pace import Pace

__all__ = ["CaptureMiddleware"]

_KEEP_ALIVE = b": keep-alive\n\n"
_LINGER_S = 0.05
"""How long a handler may take to end after its answer is complete before its client is served without waiting."""
_PIECES_TOGETHER, _SMALL_BYTES = 256, 4096
"""A stream's pieces are put together when so many wait that are smaller than this on average."""
_CONTENT_TYPE, _SESSION_ID = b"content-type", b"x-session-id"


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
        self._shared: dict[asyncio.AbstractEventLoop, _Shared] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection; scopes other than HTTP pass through untouched (A13)."""
        split = split_rollout_prefix(scope["path"]) if scope["type"] == "http" else None
        if split is None:
            await self._app(scope, receive, send)
            return
        token = current_rollout_id.set(split.rollout_id)
        inner = _without_prefix(scope, split)
        try:
            recording = self._begin_recording(scope, receive, send, split)
            if split.token_capture and split.rest in DIALECT_BY_PATH:
                call_id = uuid.uuid4().hex if recording is None else recording.call_id
                publish_training_call(inner, TrainingCall(split.rollout_id, call_id))
            if recording is not None:
                await recording.run(self._app, inner)
            else:
                await self._serve_unrecorded(inner, receive, send, split, _Redirects(scope, split.prefix))
        finally:
            current_rollout_id.reset(token)

    def _begin_recording(self, scope: Scope, receive: Receive, send: Send, split: PrefixedPath) -> _Recording | None:
        dialect = DIALECT_BY_PATH.get(split.rest)
        if self._writer is None or dialect is None:
            return None
        exchange = self._writer.begin(split.rollout_id, dialect, _session_id(scope))
        if exchange is None:
            return None
        redirects = _Redirects(scope, split.prefix)
        return _Recording(exchange, receive, send, redirects, self._writer, self._loop_shared())

    async def _serve_unrecorded(
        self, inner: Scope, receive: Receive, send: Send, split: PrefixedPath, redirects: _Redirects
    ) -> None:
        async def repairing_send(message: Message) -> None:
            await send(redirects.repair(message) if message["type"] == "http.response.start" else message)

        if self._training is not None and split.token_capture and split.rest not in DIALECT_BY_PATH:
            await self._training.serve(self._app, inner, receive, repairing_send, split.rollout_id)
        else:
            await self._app(inner, receive, repairing_send)

    def _loop_shared(self) -> _Shared:
        loop = asyncio.get_running_loop()
        shared = self._shared.get(loop)
        if shared is None:
            shared = self._shared[loop] = _Shared(Deadlines(loop, _LINGER_S, _Recording.end_early), Pace(), Pace())
        return shared


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all calls of one event loop share.

    Attributes:
        patience: One timer for all: a timer a call costs a loop more than the rest of its bookkeeping.
        begins: Passed where an answer begins, so that many that are ready together leave the loop room; so is
            ``ends`` where one ends. Two, so that no end waits for the beginnings of others.
    """

    patience: Deadlines[_Recording]
    begins: Pace
    ends: Pace


class _Redirects:
    """Puts the prefix back into the redirects of one call, so that a followed call stays captured (A17, A18)."""

    __slots__ = ("_prefix", "_scope")

    def __init__(self, scope: Scope, prefix: str) -> None:
        self._scope, self._prefix = scope, prefix

    def repair(self, start: Message) -> Message:
        """Return the start of an answer as the client should get it."""
        status = start["status"]
        if not 300 <= status <= 399:
            return start
        host = _header(self._scope, b"host")
        headers = []
        for name, value in start.get("headers", ()):
            if name.lower() == b"location":
                location = restore_prefix_in_location(value.decode("latin-1"), status, host, self._prefix)
                headers.append((name, location.encode("latin-1")))
            else:
                headers.append((name, value))
        return {**start, "headers": headers}


class _Recording:
    """One exchange under way: passes messages through, keeps their bytes, holds back the end of the answer.

    The record is made when the handler ends, and its latency is the handler's (A38). A handler that goes on for longer
    than ``_LINGER_S`` after its answer is complete, because its upstream keeps the connection open or it has work to do
    in the background, does not hold its client: the record is made then, as of the moment the answer was complete, and
    what the handler still sends is forwarded behind it without being recorded.
    """

    __slots__ = (
        "_answered_at",
        "_begun_at",
        "_early",
        "_end_expected",
        "_exchange",
        "_held",
        "_outer_receive",
        "_outer_send",
        "_put_together",
        "_redirects",
        "_scanner",
        "_shared",
        "_state",
        "_writer",
    )

    def __init__(
        self,
        exchange: Exchange,
        receive: Receive,
        send: Send,
        redirects: _Redirects,
        writer: CaptureWriter,
        shared: _Shared,
    ) -> None:
        self._exchange, self._writer, self._shared = exchange, writer, shared
        self._outer_receive, self._outer_send, self._redirects = receive, send, redirects
        self._scanner: TerminalScanner | None = None
        self._held: list[Message] = []
        self._begun_at = 0.0
        self._answered_at = (0.0, 0.0)
        self._state: MutableMapping[str, Any] = {}
        self._end_expected = False
        self._early: asyncio.Task[None] | None = None
        self._put_together = 0

    @property
    def call_id(self) -> str:
        return self._exchange.call_id

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        exchange = self._exchange
        self._state = scope["state"]
        exchange.started_at, self._begun_at = time.time(), time.perf_counter()
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
        self._shared.patience.drop(self)
        if self._early is not None:
            await asyncio.wait([self._early])  # unlike awaiting it, this does not cancel it when we are cancelled
            self._early.result()
            return
        self._exchange.error = error
        self._finish(time.time(), time.perf_counter())
        try:
            await self._shared.ends.turn()
        except asyncio.CancelledError:
            self._writer.submit(self._exchange)  # the record outlives its call here as well (A50)
            raise
        await self._record_and_release()

    async def _record_and_release(self) -> None:
        await self._writer.submit(self._exchange)
        held, self._held = self._held, []
        for message in held:
            await self._outer_send(message)

    def end_early(self) -> None:
        """Record a complete answer whose handler goes on, as of when it was complete. Call on the loop."""
        self._finish(*self._answered_at)
        self._early = asyncio.get_running_loop().create_task(self._record_and_release())

    def _finish(self, completed_at: float, ended_at: float) -> None:
        """Note the end on both clocks: the wall's, and the monotonic one that latencies are taken from (A37)."""
        exchange = self._exchange
        exchange.completed_at = completed_at
        exchange.latency_ms = round((ended_at - self._begun_at) * 1000, 2)
        exchange.facts = read_execution_facts(self._state)
        exchange.usage = read_published_usage(self._state)
        exchange.parsed_request = take_published_request(self._state)

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
            message = self._start(message)
            await self._shared.begins.turn()
        elif self._held:  # trailers end an answer too, and must not overtake its body
            self._held.append(message)
            return
        await self._outer_send(message)

    def _start(self, message: Message) -> Message:
        exchange = self._exchange
        exchange.status = message["status"]
        exchange.is_sse = _is_sse(message.get("headers", ()))
        if exchange.is_sse:
            self._scanner = TerminalScanner(exchange.dialect)
        return self._redirects.repair(message)

    def _must_hold(self, message: Message) -> bool:
        """Keep a body message's bytes, and say whether it waits for the record (A40-A42)."""
        exchange, body = self._exchange, message.get("body", b"")
        if not message.get("more_body", False):
            exchange.complete = True
        if self._scanner is None:
            if body:
                exchange.response.append(body)
            if exchange.complete:
                self._expect_end()
            return True
        if body:
            self._keep_chunk(body)
            if exchange.latency_ttft_ms is None and body != _KEEP_ALIVE:
                exchange.latency_ttft_ms = round((time.perf_counter() - self._begun_at) * 1000, 2)
            if exchange.terminal is None:
                exchange.terminal = self._scanner.feed(body)
        hold = exchange.complete or exchange.terminal is not None
        if hold:
            self._expect_end()
        return hold

    def _keep_chunk(self, chunk: bytes) -> None:
        """Keep a chunk of a stream in little more memory than it has bytes: small objects cost more than they hold."""
        pieces = self._exchange.response
        pieces.append(chunk)
        if len(pieces) - self._put_together < _PIECES_TOGETHER:
            return
        loose = pieces[self._put_together :]
        if sum(map(len, loose)) < _PIECES_TOGETHER * _SMALL_BYTES:
            pieces[self._put_together :] = [b"".join(loose)]
        self._put_together = len(pieces)

    def _expect_end(self) -> None:
        """The answer is complete, and the handler should end now."""
        if not self._end_expected:
            self._end_expected = True
            self._answered_at = time.time(), time.perf_counter()
            self._shared.patience.set(self)


def _without_prefix(scope: Scope, split: PrefixedPath) -> Scope:
    inner = dict(scope)
    inner["path"] = split.rest
    inner["raw_path"] = split.rest.encode("utf-8", "surrogateescape")
    inner.setdefault("state", {})
    return inner


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted), "")


def _session_id(scope: Scope) -> str | None:
    """Return ``x-session-id`` when all its non-empty occurrences agree (A46)."""
    found = None
    for name, value in scope["headers"]:
        if len(name) == len(_SESSION_ID) and name.lower() == _SESSION_ID and value:
            if found is not None and found != value:
                return None
            found = value
    return None if found is None else found.decode("latin-1")


def _is_sse(headers: Any) -> bool:
    """A45: the first content type decides, whatever its case."""
    for name, value in headers:
        if len(name) == len(_CONTENT_TYPE) and name.lower() == _CONTENT_TYPE:
            return bool(value.strip().lower().startswith(b"text/event-stream"))
    return False
