"""Reads calls for attachments and trajectories: the fields of a call record as one plain object, payloads beside it.

A joiner reads every line of every capture file once, so most of a join's time would be spent in checking and unfolding
records. A line whose values are plainly what a record holds needs neither; any other goes through the record, which
decides. What comes out is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gym_ray.model_call_capture.records import (
    ModelCallRecord,
    build_record,
    derived_fields,
    payloads_of,
)

__all__ = ["CallView", "build_view", "build_views"]

_TEXTS = (
    "model_call_id",
    "response_id",
    "client_session_id",
    "model",
    "dialect",
    "response_status",
    "finish_reason",
    "local_response_reason",
    "error_category",
)
_INTEGERS = ("status_code", "upstream_status_code")
_TIMES = ("started_at", "completed_at")
_LATENCIES = ("latency_total_ms", "latency_ttft_ms")
_SOURCES = (None, "upstream", "local")


class CallView(NamedTuple):
    """One captured call.

    Attributes:
        fields: The record as a JSON object without its payloads, every field in order (A118); owned by who asked.
        request, response: Parsed payloads, None where there were none.
        request_raw, response_raw: Payloads that could not be parsed.
    """

    fields: dict[str, Any]
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    request_raw: str | None
    response_raw: str | None

    def with_payloads(self) -> dict[str, Any]:
        """Return the whole record as a JSON object, every field in order; payloads are not copied."""
        whole = self.fields | dict(zip(self._fields[1:], self[1:], strict=True))
        return {name: whole[name] for name in ModelCallRecord.model_fields}


def build_view(exchange: dict[str, Any], call_index: int) -> CallView:
    """Read one raw exchange; the same as the JSON of its record.

    Raises:
        ValueError: As :func:`~gym_ray.model_call_capture.records.build_record`.
    """
    fields, payloads = derived_fields(exchange, call_index), payloads_of(exchange)
    if not (_is_plain(fields) and _has_plain_keys(fields, payloads) and _with_record_values(fields)):
        fields = build_record(exchange, call_index).as_json(include_payloads=False)
    return CallView(fields, **payloads)


def build_views(exchanges: Iterable[tuple[int, dict[str, Any]]]) -> tuple[list[CallView], int]:
    """Read ``(index, exchange)`` pairs; returns the calls and the number that could not be built (A70c)."""
    views: list[CallView] = []
    unbuildable = 0
    for index, exchange in exchanges:
        try:
            views.append(build_view(exchange, index))
        except ValueError:
            unbuildable += 1  # counted, and reported as a gap by whoever reads
    return views, unbuildable


def _is_plain(fields: dict[str, Any]) -> bool:
    """Whether every value is plainly what a record holds; a text beyond ASCII may have a lone surrogate, so it is not.

    A value that is no plain one may be right all the same.
    """
    for name in _TEXTS:
        text = fields[name]
        if text is not None and not (type(text) is str and text.isascii()):
            return False
    for name in _INTEGERS:
        if fields[name] is not None and type(fields[name]) is not int:
            return False
    attempted, source, reasoning = fields["upstream_attempted"], fields["response_source"], fields["reasoning_content"]
    return (
        (attempted is None or type(attempted) is bool)
        and source in _SOURCES
        and (reasoning is None or _is_unicode(reasoning))
    )


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_plain_keys(fields: dict[str, Any], payloads: dict[str, Any]) -> bool:
    objects = [payloads["request"], payloads["response"]]
    for call in fields["tool_calls"]:
        if not ((call["call_id"] or "").isascii() and (call["name"] or "").isascii()):
            return False
        objects.append(call["arguments"])
    return all(key.isascii() for found in objects if found is not None for key in found) and all(
        text is None or _is_unicode(text) for text in (payloads["request_raw"], payloads["response_raw"])
    )


def _with_record_values(fields: dict[str, Any]) -> bool:
    """Bring server, times and latencies into the form that they have in a record; False where that is not plain."""
    server = fields["model_ref"]
    if server is not None:
        if type(server) is not dict or len(server) != 2 or server.get("type") != "responses_api_models":
            return False
        name = server.get("name")
        if type(name) is not str or not name.isascii():
            return False
        fields["model_ref"] = {"type": "responses_api_models", "name": name}
    for name in _LATENCIES:
        if fields[name] is not None and type(fields[name]) is not float:
            return False
    for name in _TIMES:
        seconds = fields[name]
        if seconds is None:
            continue
        if type(seconds) is not float or not 0.0 <= seconds < 1e11:
            return False
        fields[name] = datetime.fromtimestamp(seconds, UTC).timestamp()
    return True
