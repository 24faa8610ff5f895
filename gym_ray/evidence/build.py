"""Builds the evidence of one record: its capture, its joined observations, its trajectory, its figures (D59).

The middle that a first join and a later one share, so that joining again from the same bytes gives the same record. It
never changes ``response``, ``reward``, token ids or log probs, and never presents a capture as whole that it could not
prove to be.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.evidence.exact_join import exact_join
from gym_ray.evidence.foreign_capture import captured_elsewhere, without_its_payloads
from gym_ray.evidence.matching import CallIdentity
from gym_ray.evidence.observations import validated_bundle, validated_trajectory
from gym_ray.evidence.observations.gaps import (
    AGENT_OBSERVATIONS_INVALID,
    MULTIMODAL_HISTORY_REDACTED,
    PRODUCER_TRAJECTORY_INVALID,
    gap,
)
from gym_ray.evidence.perf import PERF_FIELD, rollout_perf
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD, Brought, Captured, project, task_id_of
from gym_ray.evidence.trajectory.model_calls import projected_call
from gym_ray.model_call_capture.attachment import (
    AGENT_OBSERVATION_JOIN_FAILED,
    ATTACHMENT_FIELD,
    CALLS_MISSING,
    OBSERVATIONS_FIELD,
    OPEN_CALLS,
    TRAJECTORY_PROJECTION_FAILED,
    WRITER_UNREACHABLE,
    Gap,
    ReadCapture,
    read_capture,
)
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

__all__ = ["JoinOptions", "build_evidence", "has_no_reply"]

_log = logging.getLogger(__name__)
_OF_FAILURES = frozenset({"_ng_failure_type", "_ng_failure_message", "_ng_failure_http_status"})
_OF_REPLIES = frozenset({"response", "reward", OBSERVATIONS_FIELD, TRAJECTORY_FIELD})


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How evidence is built.

    Attributes:
        derive_turns: Derive turns from exactly owned calls where the agent brought no trajectory (D93, D96).
        compact: Write payloads once, as parts beside the record (D163).
        ignored_checks: Health checks that do not run (D110).
    """

    derive_turns: bool = True
    compact: bool = False
    ignored_checks: frozenset[str] = frozenset()


def has_no_reply(record: Mapping[str, Any]) -> bool:
    """Whether a record tells of an attempt without a reply: it has what such a record says, and nothing else (D35)."""
    return record.keys() >= _OF_FAILURES and _OF_REPLIES.isdisjoint(record)


def build_evidence(
    record: dict[str, Any],
    row: Mapping[str, Any],
    rollout_id: str,
    snapshot: CaptureSnapshot | None,
    written: WrittenCalls | None,
    latency_ms: float | None,
    options: JoinOptions,
) -> dict[str, Any]:
    """Return a record with its evidence; the given one is not changed. Never raises for what a reply or a line holds.

    Args:
        record: The record with its identity; its ``ng_agent_observations`` and ``ng_trajectory`` are what the agent
            brought, not what an earlier join made of them.
        row: The row as it was dispatched.
        rollout_id: Capture key of the attempt; the attachment is linked by it and by nothing the record says.
        snapshot: The attempt's capture, None when capture is off or the attempt never ran.
        written: What the model servers say they wrote, None only beside a None snapshot.
        latency_ms: The whole run (D31), None when it was not measured.
        options: How to build it.

    Returns:
        The record; ``ng_model_call_capture`` is ours exactly when ``snapshot`` is given. One that tells of an attempt
        without a reply has the calls without payloads, and no trajectory (D36).
    """
    capture = None
    if snapshot is not None and written is not None:
        capture = _capture_of(snapshot, written)
    if has_no_reply(record):
        return dict(record) if capture is None else {**record, ATTACHMENT_FIELD: capture.attachment(rollout_id)}
    return _Building(record, rollout_id, capture).finished(task_id_of(row), latency_ms, options)


def _capture_of(snapshot: CaptureSnapshot, written: WrittenCalls) -> ReadCapture:
    """Read a capture and hold what was read against what its writers say (D62, D67)."""
    if written.lost_call_ids or written.marked_incomplete:  # the marker may not have reached the disk
        snapshot = dataclasses.replace(snapshot, incomplete=True)
    capture = read_capture(snapshot)
    if written.open_call_ids:
        capture.gaps.append(Gap(OPEN_CALLS, f"count={len(written.open_call_ids)}"))
    if written.unreachable_writers:
        capture.gaps.append(Gap(WRITER_UNREACHABLE, f"writers={','.join(written.unreachable_writers)}"))
    listed = {call.call_id for call in written.recorded} | set(written.lost_call_ids)
    missing = listed - {call.fields["model_call_id"] for call in capture.calls}
    if missing:
        capture.gaps.append(Gap(CALLS_MISSING, f"count={len(missing)}"))
    return capture


class _Building:
    """One reply's record under way."""

    def __init__(self, record: Mapping[str, Any], rollout_id: str, capture: ReadCapture | None) -> None:
        self._record = dict(record)
        self._rollout_id = rollout_id
        self._capture = capture
        self._redacted = _is_redacted(record)
        self._gaps: list[dict[str, Any]] = []
        self._owners: Sequence[str | None] = ()
        self._produced = False

    def finished(self, task_id: str, latency_ms: float | None, options: JoinOptions) -> dict[str, Any]:
        """Return the record with everything that can be built; what cannot leaves a gap (D102)."""
        record, capture = self._record, self._capture
        bundle = self._joined_bundle()
        if capture is not None:
            record[ATTACHMENT_FIELD] = capture.attachment(self._rollout_id)
            record.pop(PERF_FIELD, None)  # figures that nobody here computed are none
        fields = (ATTACHMENT_FIELD, OBSERVATIONS_FIELD, TRAJECTORY_FIELD)
        if all(record.get(name) is None for name in fields):
            return record
        produced = record.pop(TRAJECTORY_FIELD, None)
        try:
            brought = self._brought(produced, bundle)
            trajectory = project(
                task_id, self._rollout_id, brought, self._captured(), derive_turns=options.derive_turns
            )
        except Exception as error:  # noqa: BLE001 - boundary: nothing in a reply may cost the record that tells of it
            self._log_unforeseen("trajectory", error)
            self._projection_failed(task_id, type(error).__name__)
            return record
        record[TRAJECTORY_FIELD] = trajectory
        if capture is None:
            record |= without_its_payloads(record)
        elif (perf := rollout_perf(trajectory, latency_ms, owners=self._owners_of(trajectory))) is not None:
            record[PERF_FIELD] = perf
        return record

    def _log_unforeseen(self, what: str, error: Exception) -> None:
        """Log what no check of a reply raises: it may be a defect of this module's, which a gap's name cannot tell."""
        if not isinstance(error, ValueError):
            _log.warning("%s: its %s cannot be built; a gap says so", self._rollout_id, what, exc_info=error)

    def _owners_of(self, trajectory: Mapping[str, Any]) -> Sequence[str | None] | None:
        """Return who owns each call of the trajectory; None where a producer's references have a say in it (D83)."""
        return self._owners if len(self._owners) == len(trajectory["model_calls"]) and not self._produced else None

    def _joined_bundle(self) -> dict[str, Any] | None:
        """Validate the reply's observations and join them to the capture (A121, D83, D86)."""
        observations = self._record.get(OBSERVATIONS_FIELD)
        if observations is None:
            return None
        try:
            bundle = validated_bundle(observations)
            if self._capture is None:
                return bundle
            joined = exact_join(bundle, [CallIdentity.of(call) for call in self._capture.calls])
        except Exception as error:  # noqa: BLE001 - boundary: the record keeps an agent's words as they came
            self._log_unforeseen("joined observations", error)
            self._gaps.append(gap(AGENT_OBSERVATIONS_INVALID, None, type(error).__name__))
            if self._capture is not None:
                self._capture.gaps.append(Gap(AGENT_OBSERVATION_JOIN_FAILED))
            return None
        self._record[OBSERVATIONS_FIELD] = joined.bundle
        self._owners = joined.owners
        return joined.bundle

    def _brought(self, produced: Any, bundle: dict[str, Any] | None) -> Brought:
        trajectory = None
        if isinstance(produced, dict):
            try:
                trajectory = validated_trajectory(produced)
            except ValueError as error:
                self._gaps.insert(0, gap(PRODUCER_TRAJECTORY_INVALID, None, type(error).__name__))
        self._produced = trajectory is not None
        resolved = self._record.get("resolved")
        return Brought(
            trajectory=trajectory,
            has_trajectory=isinstance(produced, dict),
            bundle=bundle,
            gaps=self._gaps,
            resolved=resolved if isinstance(resolved, bool) else None,
            redacted=self._redacted,
        )

    def _captured(self) -> Captured:
        if self._capture is None:
            return captured_elsewhere(self._record.get(ATTACHMENT_FIELD))
        calls = [projected_call(call, redacted=self._redacted) for call in self._capture.calls]
        gaps = [gap(each.code, each.invocation_id, each.detail) for each in self._capture.gaps]
        return Captured(calls, gaps, self._owners)

    def _projection_failed(self, task_id: str, error: str) -> None:
        """Say so where readers look: beside the capture, else beside the observations, else in a bare trajectory."""
        record, observations = self._record, self._record.get(OBSERVATIONS_FIELD)
        if self._capture is not None:
            self._capture.gaps.append(Gap(TRAJECTORY_PROJECTION_FAILED, error))
            record[ATTACHMENT_FIELD] = self._capture.attachment(self._rollout_id, include_payloads=not self._redacted)
            return
        failed = gap(TRAJECTORY_PROJECTION_FAILED, None, error)
        attachment = record.get(ATTACHMENT_FIELD)
        for name, holder in ((ATTACHMENT_FIELD, attachment), (OBSERVATIONS_FIELD, observations)):
            if isinstance(holder, dict):
                gaps = holder.get("gaps")
                record[name] = holder | {"gaps": [*(gaps if isinstance(gaps, list) else ()), failed]}
                return
        record[TRAJECTORY_FIELD] = project(task_id, self._rollout_id, Brought(gaps=[failed]), Captured())


def _is_redacted(record: Mapping[str, Any]) -> bool:
    """Whether the reply lists that it redacted its history; it need not be valid otherwise (D68)."""
    for name in (TRAJECTORY_FIELD, OBSERVATIONS_FIELD):
        holder = record.get(name)
        gaps = holder.get("gaps") if isinstance(holder, dict) else None
        for each in gaps if isinstance(gaps, list) else ():
            if isinstance(each, dict) and each.get("code") == MULTIMODAL_HISTORY_REDACTED:
                return True
    return False
