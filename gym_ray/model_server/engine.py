"""What a model server asks of an engine: an answer as it flows, in a dialect the engine speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gym_ray.token_id_capture.exact_tokens import ParentTokens, TokenOutcome

__all__ = ["Engine", "EngineAnswer", "EngineRequest", "TokenRequest"]


async def _nothing() -> None:
    return None


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Asks an engine to say which tokens it consumed and sampled.

    Attributes:
        parent: The proven parent of this call. An engine that takes tokens in continues these very ids where the
            parent's turn, rendered anew, is exactly what was generated; it says in its outcome whether it did. None
            when the call has no proven parent.
    """

    parent: ParentTokens | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation request as the client sent it.

    Attributes:
        dialect: ``responses``, ``chat`` or ``messages``.
        body: Parsed JSON object; never changed by an engine.
        raw: The bytes it was parsed from.
        headers: Client headers by lower-case name, hop-by-hop and credentials already left out.
        query: Query string without the question mark.
        tokens: The call is captured for training; an engine of whose ``token_dialects`` the dialect is one reports its
            exact tokens. What the client sees must not change by it. None for any other call.
    """

    dialect: str
    body: Mapping[str, Any]
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    tokens: TokenRequest | None = None

    @property
    def stream(self) -> bool:
        """Whether the client asked for server-sent events."""
        return self.body.get("stream") is True


@dataclass(slots=True)
class EngineAnswer:
    """An answer under way: status and headers are known, the body still flows.

    Attributes:
        status: HTTP status.
        headers: Headers for the client (content type, rate limits …), no hop-by-hop ones.
        body: The body's bytes as the engine sends them.
        aclose: Ends the exchange with the engine; safe to call twice, called by whoever iterated ``body``.
        local_reason: Why the engine's client made this answer itself, such as ``context_length_exceeded`` (A171); None
            when the engine made it.
        replaced_status: Status of the engine's own answer that a local one stands for; None when it was not asked.
        tokens: Tells what the engine consumed and sampled; valid once ``body`` has ended, callable once or often, and
            never raises for what the engine said. None when the engine was not asked or reports no tokens: what the
            body itself carries then is all there is.
    """

    status: int
    headers: list[tuple[str, str]]
    body: AsyncIterator[bytes]
    aclose: Callable[[], Awaitable[None]] = _nothing
    local_reason: str | None = None
    replaced_status: int | None = None
    tokens: Callable[[], TokenOutcome] | None = None

    async def read(self) -> bytes:
        """Return the whole body and end the exchange.

        Raises:
            EngineError: The answer broke off.
        """
        try:
            return b"".join([chunk async for chunk in self.body])
        finally:
            await self.aclose()

    @classmethod
    def of_bytes(cls, status: int, headers: list[tuple[str, str]], body: bytes, **facts: Any) -> EngineAnswer:
        """Return an answer whose body is there already; ``facts`` are the further attributes."""
        return cls(status, headers, _once(body), **facts)


class Engine(Protocol):
    """A model behind a model server. Engines raise :class:`gym_ray.errors.EngineError` and nothing else."""

    @property
    def dialects(self) -> frozenset[str]:
        """Dialects that :meth:`answer` takes; the server converts requests of the others to one of them."""

    @property
    def token_dialects(self) -> frozenset[str]:
        """Those of ``dialects`` in which exact tokens can be reported; empty for an engine that cannot at all."""

    async def start(self) -> None:
        """Open clients and load what is needed; called once, before any other method."""

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Return once the engine answers; raise ``EngineUnavailableError`` with the cause when it does not in time.

        Args:
            timeout_s: Longest wait.
            on_wait: Told why it has to wait, each time it looked in vain.
        """

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Return as soon as status and headers are known; the first body byte may come later."""

    async def models(self) -> EngineAnswer:
        """Answer ``GET /v1/models``."""

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Answer ``POST /v1/messages/count_tokens``; ``request`` is of the Messages dialect.

        Raises:
            UnsupportedRequestError: The engine cannot count the tokens of a prompt; status 501.
        """

    async def aclose(self) -> None:
        """Release everything; idempotent."""
