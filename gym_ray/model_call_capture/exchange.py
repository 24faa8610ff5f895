"""One exchange as the model server saw it, and its raw record in the contract's shape (A §4, A §6).

The event loop only collects bytes. Parsing, reassembly and encoding happen in :func:`build_exchange_record`, which runs
on a commit thread (A43).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.dialects.reassembly import reassemble
from gym_ray.model_call_capture.verdict import (
    CONTEXT_LENGTH_EXCEEDED,
    category_from_exception,
    category_from_status,
    exception_details,
    final_category,
)

__all__ = [
    "Exchange",
    "ExecutionFacts",
    "build_exchange_record",
    "encode_exchange",
    "publish_execution_facts",
    "read_execution_facts",
]

_FACTS_KEY = "gym_ray.execution_facts"
_DEEPEST_LEVELS = 254
"""Levels of a record. A deeper body is kept as text, because every reader of the record must be able to follow it."""


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """What a handler knows about how it came to its answer (A52).

    ``streamed`` is false for an answer that was complete before any of it was sent: its first chunk says nothing about
    the engine's first token, so it has no ``latency_ttft_ms`` (W17).
    """

    upstream_attempted: bool
    response_source: Literal["upstream", "local"] | None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    streamed: bool = True


def publish_execution_facts(scope: MutableMapping[str, Any], facts: ExecutionFacts) -> None:
    """Leave a handler's facts where the capture of the same request finds them: in the ASGI scope's ``state``.

    The last call wins. Harmless when nothing is captured.
    """
    scope.setdefault("state", {})[_FACTS_KEY] = facts


def read_execution_facts(state: Mapping[str, Any]) -> ExecutionFacts | None:
    """Return what the handler published for this request, or None."""
    facts = state.get(_FACTS_KEY)
    return facts if isinstance(facts, ExecutionFacts) else None


@dataclass(slots=True)
class Exchange:
    """One HTTP request on an observed path and its answer; filled by the middleware, read by a commit thread.

    Attributes:
        started_at: Wall clock just before the handler ran, UNIX seconds; ``completed_at`` just after (A37).
        latency_ms: From a monotonic clock, handler start to handler end (A38).
        latency_ttft_ms: Handler start to the first real chunk of a stream; None for other answers.
        status: What was sent, None when nothing was.
        terminal: What the stream's terminal event said, None without one.
        complete: The handler sent the whole answer.
        disconnected: The handler was told that the client has gone.
        error: What the handler raised.
    """

    call_id: str
    rollout_id: str
    dialect: str
    server_name: str | None
    started_at: float
    client_session_id: str | None = None
    completed_at: float = 0.0
    latency_ms: float = 0.0
    latency_ttft_ms: float | None = None
    status: int | None = None
    is_sse: bool = False
    terminal: str | None = None
    complete: bool = False
    disconnected: bool = False
    error: BaseException | None = None
    facts: ExecutionFacts | None = None
    request: list[bytes] = field(default_factory=list)
    response: list[bytes] = field(default_factory=list)


def encode_exchange(exchange: Exchange) -> bytes:
    """Return the raw record as a line: compact JSON and a line feed (A66); a body of any depth has one (A58)."""
    try:
        line = exact_json.dumps(build_exchange_record(exchange), deepest_levels=_DEEPEST_LEVELS)
    except ValueError:
        line = exact_json.dumps(build_exchange_record(exchange, deepest_body_levels=_DEEPEST_LEVELS - 1))
    return line + b"\n"


def build_exchange_record(exchange: Exchange, *, deepest_body_levels: int | None = None) -> dict[str, Any]:
    """Return the raw record, its keys in the contract's order (A57-A61).

    Args:
        exchange: What was seen.
        deepest_body_levels: A body that nests deeper is no object here; None takes every body that can be parsed.
    """
    request_body = b"".join(exchange.request)
    response_body = b"".join(exchange.response)
    request = exact_json.loads_object(request_body) if request_body else None
    if exchange.is_sse:
        response = reassemble(exchange.dialect, response_body)
    else:
        response = exact_json.loads_object(response_body) if response_body else None
    if deepest_body_levels is not None:
        request = None if exact_json.nests_deeper(request, deepest_body_levels) else request
        response = None if exact_json.nests_deeper(response, deepest_body_levels) else response
    status, facts = exchange.status, exchange.facts
    if exchange.error is not None:
        # The upstream's words on an exception are kept as text: the client was not given them as its answer.
        error_status, error_body = exception_details(exchange.error)
        status = error_status if status is None else status
        response_body = response_body or error_body or b""
    record: dict[str, Any] = {
        "model_call_id": exchange.call_id,
        "dialect": exchange.dialect,
        "model_ref": _model_ref(exchange.server_name),
        "started_at": exchange.started_at,
        "completed_at": exchange.completed_at,
        "latency_ms": exchange.latency_ms,
        "latency_ttft_ms": exchange.latency_ttft_ms if facts is None or facts.streamed else None,
        "status_code": status,
        "error_category": _category(exchange, status, response_body, response),
        "request": request,
        "response": response,
    }
    if exchange.client_session_id is not None:
        record["client_session_id"] = exchange.client_session_id
    if facts is not None:
        record |= {
            "upstream_attempted": facts.upstream_attempted,
            "response_source": facts.response_source,
            "upstream_status_code": facts.upstream_status_code,
            "local_response_reason": facts.local_response_reason,
        }
    if request is None and request_body:
        record["request_raw"] = request_body.decode("utf-8", "replace")
    if response_body and (exchange.is_sse or response is None):
        record["response_raw"] = response_body.decode("utf-8", "replace")
    return record


def _model_ref(server_name: str | None) -> dict[str, str] | None:
    return {"type": "responses_api_models", "name": server_name} if server_name is not None else None


def _category(exchange: Exchange, status: int | None, body: bytes, response: dict[str, Any] | None) -> str | None:
    """A61, A71-A73; an answer that its client did not wait for, or that nobody ended, is no success."""
    reason = exchange.facts.local_response_reason if exchange.facts is not None else None
    if reason == CONTEXT_LENGTH_EXCEEDED:
        return CONTEXT_LENGTH_EXCEEDED
    if exchange.error is not None:
        return category_from_status(status) or category_from_exception(exchange.error)
    if not exchange.complete and exchange.terminal is None:
        if exchange.disconnected:
            return category_from_status(status) or "cancelled"
        if not exchange.is_sse:
            return category_from_status(status) or "exception"
    return final_category(
        status=status,
        terminal=exchange.terminal,
        is_sse=exchange.is_sse,
        body=body,
        response=response,
        local_response_reason=reason,
    )
