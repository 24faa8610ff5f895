"""Projects captured calls, and lays them over the calls that a producer's trajectory brought (D90, D91)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray.evidence.observations.gaps import gap
from gym_ray.model_call_capture.call_views import CallView

__all__ = ["CONTRADICTS_CAPTURE", "merged_calls", "projected_call", "without_payloads"]

CONTRADICTS_CAPTURE = "producer_model_call_contradicts_capture"
"""A producer's call has the id of a captured one and another answer or server; what was captured stands."""

_Call = dict[str, Any]


def projected_call(call: CallView, *, redacted: bool) -> _Call:
    """Return a captured call as a trajectory holds it, all fields in order (D71, D90).

    Args:
        call: The captured call.
        redacted: Leave what was sent and what came back out (D100).
    """
    fields = call.fields
    # One literal dict: this runs for every captured call.
    return {
        "model_call_id": fields["model_call_id"],
        "started_at": fields["started_at"],
        "completed_at": fields["completed_at"],
        "duration_ms": fields["latency_total_ms"],
        "request": None if redacted else call.request_raw if call.request is None else call.request,
        "response": None if redacted else call.response_raw if call.response is None else call.response,
        "response_metadata": {
            "response_id": fields["response_id"],
            "model_ref": fields["model_ref"],
            "model": fields["model"],
            "dialect": fields["dialect"],
            "status_code": fields["status_code"],
            "response_status": fields["response_status"],
            "finish_reason": fields["finish_reason"],
            "upstream_attempted": fields["upstream_attempted"],
            "response_source": fields["response_source"],
            "upstream_status_code": fields["upstream_status_code"],
            "local_response_reason": fields["local_response_reason"],
            "error_category": fields["error_category"],
            "latency_ttft_ms": fields["latency_ttft_ms"],
        },
        "token_stats": {
            "prompt_tokens": fields["tokens_in"],
            "completion_tokens": fields["tokens_out"],
            "reasoning_tokens": fields["tokens_reasoning"],
            "total_tokens": fields["tokens_total"],
            "cached_tokens": fields["cached_tokens"],
        },
    }


def without_payloads(call: _Call) -> _Call:
    """Return a call without what was sent and what came back."""
    return call | {"request": None, "response": None}


def merged_calls(produced: Sequence[_Call], captured: Sequence[_Call]) -> tuple[list[_Call], list[dict[str, Any]]]:
    """Lay captured calls over a producer's, by call id, else by server and response id (D91); others follow.

    Returns:
        The calls, and a gap for each producer's call that names a captured one and contradicts it.
    """
    if not produced:
        return list(captured), []
    places = _places(produced, captured)
    merged, gaps = list(produced), []
    for call in captured:
        key = _id(call) if _id(call) in places else _pair(call)
        place = places.pop(key, None)  # a second call of the same name is another call, and makes no trajectory
        if place is None:
            merged.append(call)
        elif _contradicts(produced[place], call):
            merged[place] = call
            gaps.append(gap(CONTRADICTS_CAPTURE, None, call["model_call_id"]))
        else:
            merged[place] = _overlaid(produced[place], call)
    return merged, gaps


def _id(call: Mapping[str, Any]) -> str | None:
    return call["model_call_id"] or None


def _pair(call: Mapping[str, Any]) -> tuple[str, str, str] | None:
    metadata = call["response_metadata"]
    server, response_id = metadata["model_ref"], metadata["response_id"]
    return (server["type"], server["name"], response_id) if server and response_id else None


def _places(produced: Sequence[_Call], captured: Sequence[_Call]) -> dict[Any, int]:
    """Return where each of a producer's calls stands, by its id, else by its pair if that names one call only."""
    pairs_captured = Counter(map(_pair, captured))
    pairs_produced = Counter(map(_pair, produced))
    places: dict[Any, int] = {}
    for place, call in enumerate(produced):
        if call_id := _id(call):
            places[call_id] = place
        elif (pair := _pair(call)) is not None and pairs_captured[pair] == pairs_produced[pair] == 1:
            places[pair] = place
    return places


def _contradicts(produced: _Call, captured: _Call) -> bool:
    return any(
        (said := produced["response_metadata"][name]) is not None
        and (known := captured["response_metadata"][name]) is not None
        and said != known
        for name in ("response_id", "model_ref")
    )


def _overlaid(produced: _Call, captured: _Call) -> _Call:
    merged = _over(produced, captured)
    for name in ("response_metadata", "token_stats"):
        merged[name] = _over(produced[name], captured[name])
    return merged


def _over(under: _Call, over: Mapping[str, Any]) -> _Call:
    return under | {name: value for name, value in over.items() if value is not None}
