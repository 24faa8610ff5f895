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
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.exchanges.verdict import (
    CONTEXT_LENGTH_EXCEEDED,
    category_from_exception,
    category_from_status,
    exception_details,
    final_category,
)

__all__ = [
    "Exchange",
    "ExecutionFacts",
    "PublishedUsage",
    "TrainingCall",
    "build_exchange_record",
    "encode_exchange",
    "encode_with_record",
    "publish_execution_facts",
    "publish_request",
    "publish_training_call",
    "publish_usage",
    "read_execution_facts",
    "read_published_usage",
    "read_training_call",
    "take_published_request",
]

_FACTS_KEY = "gym_ray.execution_facts"
_REQUEST_KEY = "gym_ray.parsed_request"
_TRAINING_KEY = "gym_ray.training_call"
_USAGE_KEY = "gym_ray.usage"
_TOO_LARGE = 413
_LARGE_STREAM_BYTES = 1024**2
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


@dataclass(frozen=True, slots=True)
class PublishedUsage:
    """What a handler knows about the tokens of its answer; ``usage`` is None when it knows that nobody counted them."""

    usage: dict[str, Any] | None


def publish_usage(scope: MutableMapping[str, Any], usage: Mapping[str, Any] | None) -> None:
    """Leave the usage of the complete answer where the capture of the same request finds it (W13).

    For handlers that know more than the client is told: a stream without ``include_usage``, a conversion that must
    write 0 for unknown. Accounting takes it instead of the answer's own usage. The last call wins. Harmless when
    nothing is captured.

    Args:
        scope: The ASGI scope of the request.
        usage: A usage block of any dialect, copied one level deep; None says that the tokens are unknown.
    """
    scope.setdefault("state", {})[_USAGE_KEY] = PublishedUsage(None if usage is None else dict(usage))


def read_published_usage(state: Mapping[str, Any]) -> PublishedUsage | None:
    """Return what the handler published for this request, or None."""
    published = state.get(_USAGE_KEY)
    return published if isinstance(published, PublishedUsage) else None


def publish_request(scope: MutableMapping[str, Any], body: dict[str, Any]) -> None:
    """Leave the parsed body of a request for its capture, which then need not parse the same bytes again.

    Args:
        scope: The ASGI scope.
        body: What :func:`gym_ray.exact_json.loads` made of the whole body; nobody changes it from now on.
    """
    scope.setdefault("state", {})[_REQUEST_KEY] = body


def take_published_request(state: MutableMapping[str, Any]) -> dict[str, Any] | None:
    """Return the parsed body that the handler published for this request, or None; it is large, so it is let go of."""
    published = state.pop(_REQUEST_KEY, None)
    return published if isinstance(published, dict) else None


@dataclass(frozen=True, slots=True)
class TrainingCall:
    """A call on an observed path whose prefix asks for training capture (B75).

    Attributes:
        rollout_id: As it stands in the path, unchecked (A16).
        model_call_id: 32 hex digits; that of the evaluation record where there is one.
    """

    rollout_id: str
    model_call_id: str


def publish_training_call(scope: MutableMapping[str, Any], call: TrainingCall) -> None:
    """Leave the identity of a training call where its handler finds it: in the ASGI scope's ``state``."""
    scope.setdefault("state", {})[_TRAINING_KEY] = call


def read_training_call(scope: Mapping[str, Any]) -> TrainingCall | None:
    """Return the identity that this request is captured for training under; None when it is not."""
    call = scope.get("state", {}).get(_TRAINING_KEY)
    return call if isinstance(call, TrainingCall) else None


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
        usage: What the handler published about its tokens, None when it published nothing.
        parsed_request: The request as a JSON object, if the handler published it.
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
    usage: PublishedUsage | None = None
    parsed_request: dict[str, Any] | None = None
    request: list[bytes] = field(default_factory=list)
    response: list[bytes] = field(default_factory=list)

    @property
    def body_bytes(self) -> int:
        """Bytes of both bodies, as far as they are still held."""
        return sum(map(len, self.request)) + sum(map(len, self.response))


def encode_exchange(exchange: Exchange, redactor: Redactor | None = None) -> bytes:
    """Return the raw record as a line: compact JSON and a line feed (A66); a body of any depth has one (A58).

    Args:
        exchange: What was seen.
        redactor: Takes secrets out; None leaves every byte as it came.
    """
    return encode_with_record(exchange, redactor)[0]


def encode_with_record(exchange: Exchange, redactor: Redactor | None = None) -> tuple[bytes, dict[str, Any]]:
    """Return what :func:`encode_exchange` does, and the record that the line holds.

    The exchange of a large stream has no response any more: the record holds its bytes as text, and both together with
    the line would be too much.
    """
    record = build_exchange_record(exchange)
    let_go = exchange.is_sse and sum(map(len, exchange.response)) > _LARGE_STREAM_BYTES
    if let_go:
        exchange.response.clear()
    try:
        line = exact_json.dumps(record, deepest_levels=_DEEPEST_LEVELS, as_line=True)
    except ValueError:
        if let_go:
            exchange.response.append(record["response_raw"].encode("utf-8", "surrogatepass"))
        record = build_exchange_record(exchange, deepest_body_levels=_DEEPEST_LEVELS - 1)
        line = exact_json.dumps(record, as_line=True)
    if redactor is not None and redactor.concerns(line):
        record = redactor.redact(record)
        line = exact_json.dumps(record, as_line=True)
    return line, record


def build_exchange_record(exchange: Exchange, *, deepest_body_levels: int | None = None) -> dict[str, Any]:
    """Return the raw record, its keys in the contract's order (A57-A61).

    Args:
        exchange: What was seen.
        deepest_body_levels: A body that nests deeper is no object here; None takes every body that can be parsed.
    """
    request_body = b"".join(exchange.request)
    response_body = b"".join(exchange.response)
    request = exchange.parsed_request
    if request is None and request_body:
        request = exact_json.loads_object(request_body)
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
    record |= _published(exchange, deepest_body_levels)
    if request is None and request_body and status != _TOO_LARGE:  # the part that was read of it is no evidence
        record["request_raw"] = request_body.decode("utf-8", "replace")
    if response_body and (exchange.is_sse or response is None):
        record["response_raw"] = response_body.decode("utf-8", "replace")
    return record


def _published(exchange: Exchange, deepest_levels: int | None) -> dict[str, Any]:
    """Return what is in a record only when the client or the handler said it (A46, A52, W13)."""
    said: dict[str, Any] = {}
    if exchange.client_session_id is not None:
        said["client_session_id"] = exchange.client_session_id
    facts, usage = exchange.facts, exchange.usage
    if facts is not None:
        said |= {
            "upstream_attempted": facts.upstream_attempted,
            "response_source": facts.response_source,
            "upstream_status_code": facts.upstream_status_code,
            "local_response_reason": facts.local_response_reason,
        }
    if usage is not None and not (deepest_levels and exact_json.nests_deeper(usage.usage, deepest_levels)):
        said["usage"] = usage.usage
    return said


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
