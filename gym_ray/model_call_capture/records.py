"""Derives model-call records from raw exchanges, and adds them up.

A record is a view: it is built when a capture file is read and never stored (A99), so a better reading of old captures
needs no migration. What a provider did not report is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from gym_ray.dialects import reading
from gym_ray.dialects.usage import count_values
from gym_ray.errors import CaptureError

__all__ = [
    "PAYLOAD_FIELDS",
    "ModelCallRecord",
    "ModelServerRef",
    "ToolCall",
    "aggregate_calls",
    "aggregate_model_call_metrics",
    "aggregate_model_call_records",
    "build_record",
    "build_records",
    "derived_fields",
    "payloads_of",
    "read_available_model_call_records",
    "read_model_call_records",
]

PAYLOAD_FIELDS = ("request", "response", "request_raw", "response_raw")
"""Fields of a record that hold what went over the wire; left out of attachments unless asked for (A118)."""

_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", protected_namespaces=())


class ModelServerRef(BaseModel):
    """The model server that served a call."""

    model_config = _STRICT

    type: Literal["responses_api_models"]
    name: str


class ToolCall(BaseModel):
    """One tool call of an answer; ``arguments`` is ``{"_raw": text}`` when the model wrote no JSON object (A102)."""

    model_config = _STRICT

    call_id: str | None
    name: str | None
    arguments: dict[str, Any]


class ModelCallRecord(BaseModel):
    """One model call, read from its exchange (A99).

    Times are UTC; as JSON they are UNIX seconds. ``call_index`` is the place of its line in the capture file: append
    order, which like the times says nothing about cause (A104). Latencies are in milliseconds.
    """

    model_config = _STRICT

    model_call_id: str | None
    response_id: str | None
    client_session_id: str | None
    call_index: int
    model_ref: ModelServerRef | None
    model: str | None
    dialect: str | None
    status_code: int | None
    response_status: str | None
    finish_reason: str | None
    upstream_attempted: bool | None
    response_source: Literal["upstream", "local"] | None
    upstream_status_code: int | None
    local_response_reason: str | None
    started_at: datetime | None
    completed_at: datetime | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_reasoning: int | None
    tokens_total: int | None
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    request_raw: str | None
    response_raw: str | None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    reasoning_content: str | None
    cache_hit: bool | None
    cached_tokens: int | None
    cache_creation_tokens: int | None
    error_category: str | None
    latency_total_ms: float | None
    latency_ttft_ms: float | None

    @field_serializer("started_at", "completed_at")
    def _seconds(self, value: datetime | None) -> float | None:
        return None if value is None else value.timestamp()

    def as_json(self, *, include_payloads: bool = True) -> dict[str, Any]:
        """Return the record as a JSON object with every field in order, nulls included (A118).

        Payloads are not copied: they belong to the record still. The four payload fields are left out when
        ``include_payloads`` is false.
        """
        found = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if include_payloads or name not in PAYLOAD_FIELDS
        }
        found["model_ref"] = self.model_ref and self.model_ref.model_dump()
        found["started_at"] = self._seconds(self.started_at)
        found["completed_at"] = self._seconds(self.completed_at)
        found["tool_calls"] = [
            {"call_id": call.call_id, "name": call.name, "arguments": call.arguments} for call in self.tool_calls
        ]
        return found


_NO_FIELDS: dict[str, Any] = {name: None for name in ModelCallRecord.model_fields if name not in PAYLOAD_FIELDS}
_NO_ANSWER: dict[str, Any] = {}


def build_record(exchange: dict[str, Any], call_index: int) -> ModelCallRecord:
    """Build the record of one raw exchange (A99-A103); keys that are not known are ignored.

    Raises:
        ValueError: A field of the exchange has a value that no record can hold, such as a ``model_ref`` of another
            type; the message names the field.
    """
    fields = derived_fields(exchange, call_index)
    fields["started_at"] = _time(fields["started_at"])
    fields["completed_at"] = _time(fields["completed_at"])
    return ModelCallRecord.model_validate(fields | payloads_of(exchange))


def payloads_of(exchange: dict[str, Any]) -> dict[str, Any]:
    """Return the payload fields of a record; what is no object or no text there is None."""
    get = exchange.get
    return {
        "request": _object(get("request")),
        "response": _object(get("response")),
        "request_raw": _text(get("request_raw")),
        "response_raw": _text(get("response_raw")),
    }


def derived_fields(exchange: dict[str, Any], call_index: int) -> dict[str, Any]:
    """Return the other fields of a record in their order, those that an exchange merely carries as they are there.

    What the handler knew of tokens goes before what it told its client; null there says that nobody counted (W13).
    """
    get = exchange.get
    request, answer = get("request"), get("response")
    if not isinstance(answer, dict):
        answer = _NO_ANSWER
    said = answer.get
    model = said("model")
    if not isinstance(model, str) or not model:
        model = _text(request.get("model")) if isinstance(request, dict) else None
    fields = _NO_FIELDS.copy()  # copied and filled: this runs for every captured line, and a literal takes longer
    fields["model_call_id"] = get("model_call_id")
    fields["response_id"] = value if isinstance(value := said("id"), str) else None
    fields["client_session_id"] = value if isinstance(value := get("client_session_id"), str) else None
    fields["call_index"] = call_index
    fields["model_ref"] = get("model_ref")
    fields["model"] = model
    fields["dialect"] = get("dialect")
    fields["status_code"] = get("status_code")
    fields["response_status"] = value if isinstance(value := said("status"), str) else None
    fields["finish_reason"], fields["tool_calls"], fields["reasoning_content"] = reading.read_answer(answer)
    fields["upstream_attempted"] = get("upstream_attempted")
    fields["response_source"] = get("response_source")
    fields["upstream_status_code"] = get("upstream_status_code")
    fields["local_response_reason"] = get("local_response_reason")
    fields["started_at"] = get("started_at")
    fields["completed_at"] = get("completed_at")
    (
        fields["tokens_in"],
        fields["tokens_out"],
        fields["tokens_reasoning"],
        fields["tokens_total"],
        fields["cached_tokens"],
        fields["cache_hit"],
        fields["cache_creation_tokens"],
    ) = count_values(exchange["usage"] if "usage" in exchange else said("usage"))
    fields["error_category"] = get("error_category")
    fields["latency_total_ms"] = get("latency_ms")
    fields["latency_ttft_ms"] = get("latency_ttft_ms")
    return fields


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _time(value: Any) -> Any:
    """UNIX seconds as UTC; what is no number is left for the model to refuse by its field."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    try:
        return datetime.fromtimestamp(value, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return value  # beyond any calendar


def build_records(exchanges: Iterable[tuple[int, dict[str, Any]]]) -> tuple[list[ModelCallRecord], int]:
    """Build the records of ``(index, exchange)`` pairs; returns them and the number that could not be built (A70c)."""
    records: list[ModelCallRecord] = []
    unbuildable = 0
    for index, exchange in exchanges:
        try:
            records.append(build_record(exchange, index))
        except ValueError:
            unbuildable += 1  # counted, and reported as a gap by whoever reads
    return records, unbuildable


class _Store(Protocol):
    """What reading records needs of a capture store."""

    def path_for(self, rollout_id: str) -> Path: ...

    def read(self, rollout_id: str) -> list[dict[str, Any]]: ...

    def read_available(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]: ...


def read_model_call_records(store: _Store, rollout_id: str) -> list[ModelCallRecord]:
    """Read all records of a rollout, strictly (A70c).

    Raises:
        RolloutIdError: The id is no rollout id.
        CaptureError: A line is damaged or is no exchange; the message names the file and the record.
    """
    records: list[ModelCallRecord] = []
    for index, exchange in enumerate(store.read(rollout_id)):
        try:
            records.append(build_record(exchange, index))
        except ValueError as error:
            raise CaptureError(f"{store.path_for(rollout_id)}: record {index}: {error}") from error
    return records


def read_available_model_call_records(store: _Store, rollout_id: str) -> tuple[list[ModelCallRecord], int]:
    """Read the records of a rollout that can be read; returns them and the number of lines that cannot (A70c)."""
    exchanges, invalid = store.read_available(rollout_id)
    records, unbuildable = build_records(exchanges)
    return records, invalid + unbuildable


_SUMMED = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")
_LATENCY = "latency_total_ms"


def aggregate_model_call_records(calls: Iterable[ModelCallRecord]) -> dict[str, Any]:
    """Add up calls: known tokens, known latency (milliseconds, 2 decimals), number of calls (A112-A114).

    A total is None when no call reports it; ``num_calls`` counts failed calls too.
    """
    return aggregate_calls([{name: getattr(call, name) for name in (*_SUMMED, _LATENCY)} for call in calls])


def aggregate_calls(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up calls that are JSON objects, as :func:`aggregate_model_call_records` says."""
    totals: dict[str, Any] = {name: _sum(calls, name) for name in _SUMMED}
    latency = _sum(calls, _LATENCY)
    totals[_LATENCY] = None if latency is None else round(latency, 2)
    totals["num_calls"] = len(calls)
    return totals


def _sum(calls: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [value for call in calls if (value := call[name]) is not None]
    return sum(known) if known else None


def aggregate_model_call_metrics(store: _Store, rollout_id: str) -> dict[str, Any]:
    """Read a rollout's records strictly and add them up (A112).

    Raises:
        RolloutIdError: As :func:`read_model_call_records`.
        CaptureError: As :func:`read_model_call_records`.
    """
    return aggregate_model_call_records(read_model_call_records(store, rollout_id))
