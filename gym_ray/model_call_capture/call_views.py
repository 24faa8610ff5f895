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
)

__all__ = ["CallView", "build_view", "read_views"]

_SOURCES = (None, "upstream", "local")
_SHORT_TEXTS = (
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
_OPTIONAL_TEXT = frozenset({str, type(None)})
_OPTIONAL_INTEGER = frozenset({int, type(None)})
_OPTIONAL_FLAG = frozenset({bool, type(None)})
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


def build_view(exchange: dict[str, Any], call_index: int, *, is_unicode: bool = False) -> CallView:
    """Read one raw exchange; the same as the JSON of its record.

    Args:
        exchange: The exchange.
        call_index: Place of its line in the capture file.
        is_unicode: None of its texts can hold a lone surrogate, so that none needs to be looked at.

    Raises:
        ValueError: As :func:`~gym_ray.model_call_capture.records.build_record`.
    """
    fields = derived_fields(exchange, call_index)
    get = exchange.get
    view = CallView(
        fields,
        value if isinstance(value := get("request"), dict) else None,
        value if isinstance(value := get("response"), dict) else None,
        value if isinstance(value := get("request_raw"), str) else None,
        value if isinstance(value := get("response_raw"), str) else None,
    )
    if _with_record_values(fields, is_unicode) and (is_unicode or _has_plain_texts(view)):
        return view
    return view._replace(fields=build_record(exchange, call_index).as_json(include_payloads=False))


def read_views(data: bytes) -> tuple[list[CallView], int]:
    """Read the bytes of a capture file; returns the calls and the number of lines that hold none (A70b, A70c).

    Each line is read while what was parsed of it is still in the processor's cache.
    """
    views: list[CallView] = []
    unreadable = 0
    for index, exchange, is_unicode in iterate_exchanges(data):
        if exchange is None:
            unreadable += 1
            continue
        try:
            views.append(build_view(exchange, index, is_unicode=is_unicode))
        except ValueError:
            unreadable += 1  # counted, and reported as a gap by whoever reads
    return views, unreadable


def _has_plain_texts(view: CallView) -> bool:
    """Whether every short text is ASCII, and no other holds a lone surrogate (as records ask).

    What is not plain may be right all the same.
    """
    fields = view.fields
    short = [fields[name] or "" for name in _SHORT_TEXTS]
    for call in fields["tool_calls"]:
        short += (call["call_id"] or "", call["name"] or "")
    try:
        if not "".join([*short, *(view.request or ()), *(view.response or ())]).isascii():
            return False
        for text in (fields["reasoning_content"], view.request_raw, view.response_raw):
            if text is not None and not text.isascii():
                text.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def _with_record_values(fields: dict[str, Any], is_unicode: bool) -> bool:
    """Bring server, times and latencies into the form that they have in a record; False where that is not plain."""
    server = fields["model_ref"]
    if server is not None:
        if type(server) is not dict or len(server) != 2 or server.get("type") != "responses_api_models":
            return False
        name = server.get("name")
        if type(name) is not str or not (is_unicode or name.isascii()):
            return False
        fields["model_ref"] = {"type": "responses_api_models", "name": name}
    # Written out, one by one: this runs for every captured call, and a loop takes twice as long.
    if (
        type(fields["model_call_id"]) not in _OPTIONAL_TEXT
        or type(fields["dialect"]) not in _OPTIONAL_TEXT
        or type(fields["local_response_reason"]) not in _OPTIONAL_TEXT
        or type(fields["error_category"]) not in _OPTIONAL_TEXT
        or type(fields["upstream_attempted"]) not in _OPTIONAL_FLAG
        or fields["response_source"] not in _SOURCES
        or type(fields["status_code"]) not in _OPTIONAL_INTEGER
        or type(fields["upstream_status_code"]) not in _OPTIONAL_INTEGER
        or type(fields["latency_total_ms"]) not in _OPTIONAL_FLOAT
        or type(fields["latency_ttft_ms"]) not in _OPTIONAL_FLOAT
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
