"""What metrics and health need of a finished record, in one short line: figures and scores, never evidence (D112).

A joiner has the whole record in its hands once; what is taken from it then saves every later reader the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.evidence.compact import COMPACT_FIELD
from gym_ray.evidence.perf import PERF_FIELD
from gym_ray.evidence.summary import RolloutSummary, summarise
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD
from gym_ray.token_id_capture.delivery import TOKEN_METRICS_FIELD, TRAINING_ROWS_FIELD

__all__ = ["RecordFacts", "facts_line", "facts_of_record", "reduced"]

_LEFT_OUT = frozenset(
    {
        "response",
        "responses_create_params",
        OBSERVATIONS_FIELD,
        ATTACHMENT_FIELD,
        TRAJECTORY_FIELD,
        COMPACT_FIELD,
        TOKEN_METRICS_FIELD,
        TRAINING_ROWS_FIELD,
        # Of a failure only; no metric reads them, and each may be as long as a payload.
        "_ng_failure_message",
        "_ng_failure_response_body",
        "_ng_failure_traceback",
    }
)
_OF_THE_RESPONSE = ("usage", "incomplete_details")
_FIGURES = tuple(field.name for field in dataclasses.fields(RolloutSummary))


def reduced(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verify response that requests for aggregate metrics send (D112).

    It has no evidence, no token and no payload; of the response only ``usage`` and ``incomplete_details`` where they
    are there. ``ng_perf`` stays. Values are shared with ``record``, not copied.
    """
    kept = {key: value for key, value in record.items() if key not in _LEFT_OUT}
    response = record.get("response")
    if isinstance(response, Mapping):
        part = {key: response[key] for key in _OF_THE_RESPONSE if response.get(key) is not None}
        if part:
            kept["response"] = part
    return kept


def facts_line(
    record: Mapping[str, Any],
    attachment: Mapping[str, Any] | None,
    verdict: Mapping[str, Any],
    *,
    summary: RolloutSummary | None = None,
) -> bytes:
    """Return the facts of a finished record as one JSON line without its line feed.

    Args:
        record: The record.
        attachment: The capture that was attached to it, None without one; what a reply itself brought does not count.
        verdict: Its row of the health report (D109).
        summary: Its figures, where they are known; without them they are taken from the record, and the time of the
            run only where ``ng_perf`` has it.
    """
    figures = _figures(record, attachment) if summary is None else {name: getattr(summary, name) for name in _FIGURES}
    return exact_json.dumps({"reduced": reduced(record), "summary": figures, "verdict": verdict})


def _figures(record: Mapping[str, Any], attachment: Mapping[str, Any] | None) -> dict[str, Any]:
    summary = summarise(record, attachment, _rollout_id(record, attachment), 0.0)
    figures = {name: getattr(summary, name) for name in _FIGURES}
    perf = record.get(PERF_FIELD)
    latency = perf.get("total_latency_ms") if isinstance(perf, Mapping) else None
    figures["latency_ms"] = latency if isinstance(latency, int | float) and not isinstance(latency, bool) else None
    return figures


def _rollout_id(record: Mapping[str, Any], attachment: Mapping[str, Any] | None) -> str:
    if attachment is not None and isinstance(attachment.get("rollout_id"), str):
        return str(attachment["rollout_id"])
    try:
        return derive_rollout_id(record) or ""
    except (ValueError, OverflowError):  # a record of elsewhere may name itself as it likes; its figures count
        return ""


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a facts line says.

    Attributes:
        reduced: The reduced verify response (D112).
        summary: Figures by the names of :class:`~gym_ray.evidence.summary.RolloutSummary`; null is unknown.
        verdict: The row of the health report, empty when nobody has looked.
    """

    reduced: dict[str, Any]
    summary: dict[str, Any]
    verdict: dict[str, Any]

    @classmethod
    def parse(cls, line: bytes) -> RecordFacts | None:
        """Return what a line says, None when it is not a whole facts line."""
        value = exact_json.loads_object(line)
        if value is None:
            return None
        parts = (value.get("reduced"), value.get("summary"), value.get("verdict"))
        if not all(isinstance(part, dict) for part in parts) or _FIGURES[0] not in value["summary"]:
            return None
        return cls(*parts)  # type: ignore[arg-type]


def facts_of_record(record: Mapping[str, Any], verdict: Mapping[str, Any]) -> bytes:
    """Return the facts line of a stored record, whoever wrote it, of this project or another.

    An attachment that has no metrics is no capture; its figures are unknown.
    """
    attachment = record.get(ATTACHMENT_FIELD)
    if not isinstance(attachment, Mapping) or not isinstance(attachment.get("metrics"), Mapping):
        attachment = None
    elif not _has_readable_gaps(attachment):  # a page of the contract shows one object instead of a list
        attachment = {**attachment, "gaps": _readable_gaps(attachment.get("gaps"))}
    return facts_line(record, attachment, verdict)


def _has_readable_gaps(attachment: Mapping[str, Any]) -> bool:
    gaps = attachment.get("gaps", [])
    return isinstance(gaps, list) and all(isinstance(gap, Mapping) and isinstance(gap.get("code"), str) for gap in gaps)


def _readable_gaps(gaps: object) -> list[Mapping[str, Any]]:
    listed = [gaps] if isinstance(gaps, Mapping) else gaps
    if not isinstance(listed, list):
        return []
    return [gap for gap in listed if isinstance(gap, Mapping) and isinstance(gap.get("code"), str)]
