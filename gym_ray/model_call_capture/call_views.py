"""Reads calls for attachments and trajectories: the fields of a call record as one plain object, payloads beside it.

A joiner reads every line of every capture file once, so most of a join's time would be spent in checking and unfolding
records. A line whose values are plainly what a record holds needs neither; any other goes through the record, which
decides. What comes out is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gym_ray.model_call_capture.lines import iterate_exchanges
from gym_ray.model_call_capture.records import (
    ModelCallRecord,
    build_record,
    derived_fields,
    payloads_of,
)

__all__ = ["CallView", "build_view", "read_views"]

_SOURCES = (None, "upstream", "local")
_OPTIONAL_INTEGER = frozenset({int, type(None)})
_OPTIONAL_FLOAT = frozenset({float, type(None)})


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
    if not (_has_plain_texts(fields, payloads) and _with_record_values(fields)):
        fields = build_record(exchange, call_index).as_json(include_payloads=False)
    return CallView(fields, *payloads.values())


def read_views(data: bytes) -> tuple[list[CallView], int]:
    """Read the bytes of a capture file; returns the calls and the number of lines that hold none (A70b, A70c).

    Each line is read while what was parsed of it is still in the processor's cache.
    """
    views: list[CallView] = []
    unreadable = 0
    for index, exchange in iterate_exchanges(data):
        if exchange is None:
            unreadable += 1
            continue
        try:
            views.append(build_view(exchange, index))
        except ValueError:
            unreadable += 1  # counted, and reported as a gap by whoever reads
    return views, unreadable


def _has_plain_texts(fields: dict[str, Any], payloads: dict[str, Any]) -> bool:
    """Whether every short text is one, or None, and ASCII, and every other holds no lone surrogate (as records ask).

    What is not plain may be right all the same.
    """
    texts = [
        fields["model_call_id"],
        fields["response_id"],
        fields["client_session_id"],
        fields["model"],
        fields["dialect"],
        fields["response_status"],
        fields["finish_reason"],
        fields["local_response_reason"],
        fields["error_category"],
        *(payloads["request"] or ()),
        *(payloads["response"] or ()),
    ]
    for call in fields["tool_calls"]:
        texts += (call["call_id"], call["name"], *call["arguments"])
    try:
        if not "".join([text for text in texts if text is not None]).isascii():
            return False
        for text in (fields["reasoning_content"], payloads["request_raw"], payloads["response_raw"]):
            if text is not None and not text.isascii():
                text.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def _with_record_values(fields: dict[str, Any]) -> bool:
    """Bring server, times and latencies into the form that they have in a record; False where that is not plain."""
    server, attempted = fields["model_ref"], fields["upstream_attempted"]
    if server is not None:
        if type(server) is not dict or len(server) != 2 or server.get("type") != "responses_api_models":
            return False
        name = server.get("name")
        if type(name) is not str or not name.isascii():
            return False
        fields["model_ref"] = {"type": "responses_api_models", "name": name}
    if (
        not (attempted is None or type(attempted) is bool)
        or fields["response_source"] not in _SOURCES
        or not _OPTIONAL_INTEGER.issuperset((type(fields["status_code"]), type(fields["upstream_status_code"])))
        or not _OPTIONAL_FLOAT.issuperset((type(fields["latency_total_ms"]), type(fields["latency_ttft_ms"])))
    ):
        return False
    for name in ("started_at", "completed_at"):
        seconds = fields[name]
        if seconds is None:
            continue
        if type(seconds) is not float or not 0.0 <= seconds < 1e11:
            return False
        whole = int(seconds)  # to the microsecond, as a record's time is
        fields[name] = (whole * 1_000_000 + round((seconds - whole) * 1e6)) / 1_000_000
    return True
