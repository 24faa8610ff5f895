"""Builds ``ng_model_call_capture``: what a finished rollout record says about its model calls, and what is missing.

Whatever is not known to be whole is named as a gap; an attachment without gaps is a claim. Additive: nothing else of a
record is touched (A116).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.correlation import derive_rollout_id
from gym_ray.model_call_capture.call_views import CallView, read_views
from gym_ray.model_call_capture.lines import CaptureSnapshot, parse_lines
from gym_ray.model_call_capture.records import (
    ModelCallRecord,
    aggregate_calls,
    aggregate_model_call_records,
    build_records,
)

__all__ = [
    "AGENT_OBSERVATION_JOIN_FAILED",
    "ATTACHMENT_FIELD",
    "CALLS_MISSING",
    "INCOMPLETE",
    "NO_RECORDS",
    "OBSERVATIONS_FIELD",
    "OPEN_CALLS",
    "RECORDS_UNREADABLE",
    "TRAJECTORY_PROJECTION_FAILED",
    "UNREADABLE",
    "WRITER_UNREACHABLE",
    "Gap",
    "ReadCapture",
    "attach",
    "build_attachment",
    "read_capture",
]

ATTACHMENT_FIELD = "ng_model_call_capture"
OBSERVATIONS_FIELD = "ng_agent_observations"

NO_RECORDS = "model_call_capture_no_records"
RECORDS_UNREADABLE = "model_call_capture_records_unreadable"
INCOMPLETE = "model_call_capture_incomplete"
UNREADABLE = "model_call_capture_unreadable"
AGENT_OBSERVATION_JOIN_FAILED = "agent_observation_join_failed"
TRAJECTORY_PROJECTION_FAILED = "trajectory_projection_failed"

OPEN_CALLS = "model_call_capture_open_calls"
"""Calls were still open when the wait for them ended (D62)."""
WRITER_UNREACHABLE = "model_call_capture_writer_unreachable"
"""A live model server did not say which calls it recorded."""
CALLS_MISSING = "model_call_capture_calls_missing"
"""Calls that a model server recorded, or began before it died, were not read in the capture file."""

JoinObservations = Callable[[Any, Sequence[ModelCallRecord]], Any]
"""Takes the record's observations and its calls; returns the joined observations. Raises ValueError if it cannot."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is known to be missing.

    Attributes:
        code: What is missing, one of the codes of this module or another area's.
        detail: Which one, in a form of its code.
        invocation_id: The agent invocation that it belongs to.
    """

    code: str
    detail: str | None = None
    invocation_id: str | None = None

    def as_json(self) -> dict[str, str]:
        """Return the gap as an object without its unset members (A120)."""
        members = {"code": self.code, "invocation_id": self.invocation_id, "detail": self.detail}
        return {key: value for key, value in members.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ReadCapture:
    """The capture of one rollout attempt, read.

    Attributes:
        calls: Every call that could be read, in capture order.
        gaps: What its file and its marker say is missing, in the order of D67.
    """

    calls: list[CallView]
    gaps: list[Gap]

    def attachment(self, rollout_id: str, *, include_payloads: bool = False) -> dict[str, Any]:
        """Return the attachment (A116, A118, A120): ``rollout_id``, ``metrics``, ``calls``, and ``gaps`` if any.

        Without payloads it holds the very fields of ``calls``, not copies.
        """
        fields = [call.fields for call in self.calls]
        calls = [call.with_payloads() for call in self.calls] if include_payloads else fields
        return _attachment(rollout_id, aggregate_calls(fields), calls, self.gaps)


def read_capture(snapshot: CaptureSnapshot) -> ReadCapture:
    """Read the calls of a capture and name what its file and its marker say is missing; never raises for bad bytes."""
    calls, unreadable = read_views(snapshot.data or b"")
    return ReadCapture(calls, _gaps(snapshot, len(calls), unreadable))


def build_attachment(
    rollout_id: str,
    snapshot: CaptureSnapshot,
    *,
    include_payloads: bool = False,
    extra_gaps: Sequence[Gap] = (),
) -> dict[str, Any]:
    """Build the attachment of one rollout attempt from its capture (A116, A118, A120).

    Args:
        rollout_id: Id of the attempt, as in the capture file's name.
        snapshot: The capture file and its marker, read under the lock.
        include_payloads: Whether calls carry what went over the wire.
        extra_gaps: What the reader knows beyond the file; listed behind the file's own gaps.

    Returns:
        ``rollout_id``, ``metrics``, ``calls`` and, only if there are any, ``gaps``; never raises for bad bytes.
    """
    capture = read_capture(snapshot)
    capture.gaps.extend(extra_gaps)
    return capture.attachment(rollout_id, include_payloads=include_payloads)


def attach(
    record: dict[str, Any],
    snapshot: CaptureSnapshot | None,
    *,
    include_payloads: bool = False,
    extra_gaps: Sequence[Gap] = (),
    join_observations: JoinObservations | None = None,
) -> dict[str, Any]:
    """Return a finished rollout record with its attachment; the given record is not changed (A116, A117, A121).

    Args:
        record: The record; its identity fields name the attempt.
        snapshot: The attempt's capture, None when capture is off.
        include_payloads: Whether calls carry what went over the wire.
        extra_gaps: What the reader knows beyond the file.
        join_observations: How ``ng_agent_observations`` of the record are joined to its calls. Observations that
            cannot be joined, for want of this or because it raises ValueError, stay as they are and leave a gap.

    Returns:
        A new record; equal to the given one when capture is off or the record names no attempt. An attachment that
        the record had is replaced.

    Raises:
        RolloutIdError: The identity fields break the rule for ids.
    """
    rollout_id = None if snapshot is None else derive_rollout_id(record)
    if snapshot is None or rollout_id is None:
        return record
    exchanges, damaged = parse_lines(snapshot.data or b"")
    calls, unbuildable = build_records(exchanges)
    gaps = [*_gaps(snapshot, len(calls), damaged + unbuildable), *extra_gaps]
    result = dict(record)
    observations = record.get(OBSERVATIONS_FIELD)
    if observations is not None:
        joined = _join(observations, calls, join_observations)
        if joined is None:
            gaps.append(Gap(AGENT_OBSERVATION_JOIN_FAILED))
        else:
            result[OBSERVATIONS_FIELD] = joined
    views = [call.as_json(include_payloads=include_payloads) for call in calls]
    result[ATTACHMENT_FIELD] = _attachment(rollout_id, aggregate_model_call_records(calls), views, gaps)
    return result


def _join(observations: Any, calls: Sequence[ModelCallRecord], join: JoinObservations | None) -> Any:
    if join is None:
        return None
    try:
        return join(observations, calls)
    except ValueError:
        return None


def _gaps(snapshot: CaptureSnapshot, readable: int, unreadable: int) -> list[Gap]:
    """Name what a capture's file and its marker say is missing, in the order of D67."""
    gaps: list[Gap] = []
    if not readable and not unreadable and not snapshot.incomplete and snapshot.error is None:
        gaps.append(Gap(NO_RECORDS))
    if unreadable:
        gaps.append(Gap(RECORDS_UNREADABLE, f"count={unreadable}"))
    if snapshot.incomplete:
        gaps.append(Gap(INCOMPLETE))
    if snapshot.error is not None:
        gaps.append(Gap(UNREADABLE))
    return gaps


def _attachment(
    rollout_id: str, metrics: dict[str, Any], calls: list[dict[str, Any]], gaps: Sequence[Gap]
) -> dict[str, Any]:
    attachment: dict[str, Any] = {"rollout_id": rollout_id, "metrics": metrics, "calls": calls}
    if gaps:
        attachment["gaps"] = [gap.as_json() for gap in gaps]
    return attachment
