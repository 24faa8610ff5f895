"""Joins one stored record again with what its capture holds now (D166).

A wrong link is worse than a lost sample: captures are named by rollout id alone, and another run may have used the
directory since. So a record is only rebuilt when its capture still holds every call that was attached, with the same
answer at the same time, and when calls that are new began while its run was under way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.evidence.build import JoinOptions, build_evidence
from gym_ray.evidence.perf import PERF_FIELD
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import (
    ATTACHMENT_FIELD,
    OBSERVATIONS_FIELD,
    RECORDS_UNREADABLE,
    UNREADABLE,
    read_capture,
)
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin_gaps import carried_over, gaps_of, is_worth_asking
from gym_ray.rollouts.rejoining.rejoin_sources import Sources

__all__ = ["REJOINED_FIELD", "RecordAgain", "Rejoining", "Window", "is_captured"]

REJOINED_FIELD = "_ng_rejoined"

_Origin = Literal["source", "record"]

_SLACK_S = 60.0
"""How far the clocks of the machines of one run may differ."""
_SECTIONS = (("invocations", ("invocation_id",)), ("turns", ("invocation_id", "turn_no")))


@dataclass(frozen=True, slots=True)
class Window:
    """When a call of an attempt can have begun, UNIX seconds; None where nobody knows."""

    earliest: float | None
    latest: float | None


@dataclass(frozen=True, slots=True)
class RecordAgain:
    """What became of one record.

    Attributes:
        record: The rebuilt record in the inline shape; None when it stays as it is.
        kept_because: Why it stays although its capture differs; None when there is no such reason.
        built_from: Whether what the reply brought was known, or had to be taken from the earlier join.
    """

    record: dict[str, Any] | None
    kept_because: str | None = None
    built_from: _Origin = "source"


def is_captured(record: Mapping[str, Any], rollout_id: str) -> bool:
    """Return whether an earlier join attached a capture of this rollout."""
    attachment = record.get(ATTACHMENT_FIELD)
    return (
        isinstance(attachment, dict)
        and attachment.get("rollout_id") == rollout_id
        and isinstance(attachment.get("calls"), list)
        and all(isinstance(call, dict) for call in attachment["calls"])
    )


@dataclass(frozen=True, slots=True)
class Rejoining:
    """What stays the same for all records of a run.

    Attributes:
        sources: What replies brought.
        written_calls: Asks the servers about one rollout; called only where they could know more.
        options: How evidence is built; ``compact`` is the caller's business.
    """

    sources: Sources
    written_calls: Callable[[str], WrittenCalls]
    options: JoinOptions

    def join_again(
        self,
        record: dict[str, Any],
        rollout_id: str,
        snapshot: CaptureSnapshot,
        *,
        task: Mapping[str, Any],
        window: Window,
        latency_ms: float | None,
        lost: str | None = None,
    ) -> RecordAgain:
        """Join a record again; it is not modified. Only a changed attachment, or a lost payload, makes a new record.

        Args:
            record: A captured record in the inline shape.
            rollout_id: Capture key of the attempt.
            snapshot: Its capture now.
            task: The row, or what of it names the task.
            window: When calls of this attempt can have begun.
            latency_ms: The whole run (D31), None when it is not known.
            lost: Why the payloads of the record cannot be read, so that they are not in it. They are made again where
                it is known what the reply brought.
        """
        attachment = record[ATTACHMENT_FIELD]
        before, now = _known(attachment["calls"]), _known([call.fields for call in read_capture(snapshot).calls])
        brought, known = self._brought(record, rollout_id)
        problem = _problem(attachment, snapshot, before, now, window) or (None if known else lost)
        if problem is not None:
            return RecordAgain(None, problem)
        asked = self.written_calls(rollout_id) if is_worth_asking(attachment) else WrittenCalls()
        written = carried_over(attachment, asked, before, now)

        def built(brought: Mapping[str, Any]) -> dict[str, Any]:
            base = _base(record, brought)
            return build_evidence(base, task, rollout_id, snapshot, written, latency_ms, self.options)

        result = built(brought)
        if lost is None and exact_json.dumps(result[ATTACHMENT_FIELD]) == exact_json.dumps(attachment):
            return RecordAgain(None)
        produced = record.get(TRAJECTORY_FIELD)
        if not known and isinstance(produced, dict) and not _covers(result.get(TRAJECTORY_FIELD), produced):
            result = built({**brought, TRAJECTORY_FIELD: produced})  # an agent must have brought what only it can know
        origin: _Origin = "source" if known else "record"
        result[REJOINED_FIELD] = {
            "previous_sha256": hashlib.sha256(exact_json.dumps(attachment)).hexdigest(),
            "at": datetime.now(UTC).isoformat(),
            "from": origin,
        }
        return RecordAgain(result, None, origin)

    def _brought(self, record: Mapping[str, Any], rollout_id: str) -> tuple[dict[str, Any], bool]:
        """Return what the reply brought, and whether that is known; else what the earlier join made of it."""
        brought = self.sources.find(rollout_id)
        if brought is not None:
            return brought, True
        if self.sources.complete or OBSERVATIONS_FIELD not in record:
            return {}, self.sources.complete
        return {OBSERVATIONS_FIELD: record[OBSERVATIONS_FIELD]}, False


def _known(calls: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return when each call began and which answer it got, by id; without one, and when it repeats, by order."""
    known: dict[str, tuple[Any, Any]] = {}
    counts: Counter[str] = Counter()
    for call in calls:
        own = call.get("model_call_id")
        name = own if isinstance(own, str) else "without an id"
        counts[name] += 1
        if name != own or counts[name] > 1:  # the order only grows
            name = f"number {counts[name]} {name}"
        known[name] = (call.get("started_at"), call.get("response_id"))
    return known


def _problem(
    attachment: Mapping[str, Any],
    snapshot: CaptureSnapshot,
    before: Mapping[str, tuple[Any, Any]],
    now: Mapping[str, tuple[Any, Any]],
    window: Window,
) -> str | None:
    gaps = gaps_of(attachment)
    if snapshot.error is not None:
        return None if UNREADABLE in gaps and not before else f"its capture cannot be read now: {snapshot.error}"
    gone = before.keys() - now.keys()
    if gone:
        return f"its capture lacks {len(gone)} of the calls that were attached, {min(gone)} for one"
    other = [name for name, call in before.items() if now[name] != call]
    if other:
        return f"call {other[0]} of its capture is another one than was attached; it may be another run's"
    if RECORDS_UNREADABLE in gaps and not snapshot.data:
        return "its capture is empty now"
    for call_id in now.keys() - before.keys():
        if not _is_within(now[call_id][0], window):
            return f"call {call_id} of its capture did not begin while the rollout ran; it may be another run's"
    return None


def _is_within(started_at: Any, window: Window) -> bool:
    if window.earliest is None or window.latest is None or not isinstance(started_at, int | float):
        return False
    return window.earliest - _SLACK_S <= started_at <= window.latest + _SLACK_S


def _base(record: Mapping[str, Any], brought: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record as it was before evidence was built, with what the reply brought in its place."""
    base: dict[str, Any] = {}
    for key, value in record.items():
        if key == OBSERVATIONS_FIELD:
            if key in brought:
                base[key] = brought[key]
        elif key not in (ATTACHMENT_FIELD, TRAJECTORY_FIELD, PERF_FIELD, REJOINED_FIELD):
            base[key] = value
    base.update(brought)
    return base


def _covers(rebuilt: Any, earlier: Mapping[str, Any]) -> bool:
    """Return whether a trajectory has every invocation, turn and tool call of an earlier one."""
    return all(
        _keys(rebuilt, section, names) >= _keys(earlier, section, names)
        for section, names in (*_SECTIONS, ("tool_calls", ("invocation_id", "tool_call_id")))
    )


def _keys(trajectory: Any, section: str, names: tuple[str, ...]) -> set[str]:
    items = trajectory.get(section) if isinstance(trajectory, dict) else None
    listed = items if isinstance(items, list) else []
    return {repr([item.get(name) for name in names]) for item in listed if isinstance(item, dict)}
