"""Builds the evidence of one record: its capture, its joined observations, its trajectory, its figures (D59).

The middle that a first join and a later one share, so that joining again from the same bytes gives the same record. It
never changes ``response``, ``reward``, token ids or log probs, and never presents a capture as whole that it could not
prove to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray.model_call_capture.attachment import (
    ATTACHMENT_FIELD,
    CALLS_MISSING,
    OPEN_CALLS,
    WRITER_UNREACHABLE,
    Gap,
    build_attachment,
)
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

__all__ = ["JoinOptions", "build_evidence"]


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


def build_evidence(
    record: dict[str, Any],
    row: Mapping[str, Any],
    rollout_id: str,
    snapshot: CaptureSnapshot | None,
    written: WrittenCalls | None,
    latency_ms: float | None,
    options: JoinOptions,
) -> dict[str, Any]:
    """Return a record with its evidence; the given one is not changed.

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
        The record; ``ng_model_call_capture`` is ours exactly when ``snapshot`` is given.
    """
    if snapshot is None or written is None:
        return dict(record)
    return {**record, ATTACHMENT_FIELD: _attachment(rollout_id, snapshot, written)}


def _attachment(rollout_id: str, snapshot: CaptureSnapshot, written: WrittenCalls) -> dict[str, Any]:
    if written.lost_call_ids or written.marked_incomplete:  # the marker may not have reached the disk
        snapshot = dataclasses.replace(snapshot, incomplete=True)
    attachment = build_attachment(rollout_id, snapshot)
    gaps = []
    if written.open_call_ids:
        gaps.append(Gap(OPEN_CALLS, f"count={len(written.open_call_ids)}"))
    if written.unreachable_writers:
        gaps.append(Gap(WRITER_UNREACHABLE, f"writers={','.join(written.unreachable_writers)}"))
    listed = {call.call_id for call in written.recorded} | set(written.lost_call_ids)
    missing = listed - {call["model_call_id"] for call in attachment["calls"]}
    if missing:
        gaps.append(Gap(CALLS_MISSING, f"count={len(missing)}"))
    if gaps:
        attachment["gaps"] = [*attachment.get("gaps", ()), *(gap.as_json() for gap in gaps)]
    return attachment
