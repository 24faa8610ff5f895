"""Builds ``ng_trajectory`` from a producer's trajectory, a bundle of observations and the captured calls (D84-D101).

What a reply brought was validated before; what is built here is plain objects, in the order of D71's fields and with
every null. Only where a rule of a whole trajectory might be broken does the model look at it, and refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_ray.evidence.observations import validated_trajectory
from gym_ray.evidence.observations.gaps import (
    CONVERSATION_UNAVAILABLE,
    MODEL_CALLS_UNAVAILABLE,
    PRODUCER_TRAJECTORY_IDENTITY_MISMATCH,
    TURNS_UNAVAILABLE,
    distinct,
    gap,
)
from gym_ray.evidence.trajectory.model_calls import merged_calls, without_payloads
from gym_ray.evidence.trajectory.tool_calls import merged_tool_calls
from gym_ray.evidence.trajectory.turns import derived_turns

__all__ = ["TRAJECTORY_FIELD", "Brought", "Captured", "project", "task_id_of"]

TRAJECTORY_FIELD = "ng_trajectory"

_TASK_FIELDS = ("task_id", "problem_id", "instance_id")
_Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Brought:
    """What a reply itself brought, validated.

    Attributes:
        trajectory: Its trajectory as a full object (D85), None when it brought none or an invalid one.
        has_trajectory: Whether it brought a trajectory object, valid or not; no turns are derived then (D93).
        bundle: Its observations as a full object, joined to the calls where there are any; None without valid ones.
        gaps: What was wrong with either, behind what the trajectory itself lists (D85, D86).
        resolved: Whether it says that the task was resolved.
        redacted: It asked that no payload of a model call leave the capture (D68, D100).
    """

    trajectory: _Object | None = None
    has_trajectory: bool = False
    bundle: _Object | None = None
    gaps: Sequence[_Object] = ()
    resolved: bool | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured.

    Attributes:
        calls: Every call in capture order, as a trajectory holds it (D90).
        gaps: Gaps of the capture, in full form (D92).
        owners: For each call the invocation that owns it exactly (D77), None when nobody does.
    """

    calls: Sequence[_Object] = ()
    gaps: Sequence[_Object] = ()
    owners: Sequence[str | None] = field(default=())


def task_id_of(row: Mapping[str, Any]) -> str:
    """Return the task that a row names (D84)."""
    for name in _TASK_FIELDS:
        if row.get(name) is not None:
            return str(row[name])
    return str(row.get("_ng_task_index"))


def project(
    task_id: str, rollout_id: str, brought: Brought, captured: Captured, *, derive_turns: bool = True
) -> _Object:
    """Return the trajectory of a finished rollout as a full object; nothing given is changed.

    Args:
        task_id: Task that ran (D84).
        rollout_id: Rollout that ran.
        brought: What the reply brought; ids in it give way to these two.
        captured: What was captured.
        derive_turns: Derive turns where the reply brought no trajectory (D93, D96).

    Raises:
        pydantic.ValidationError: The parts make no valid trajectory, such as two calls with one id or a negative
            latency (D102).
    """
    producer, bundle = brought.trajectory, brought.bundle
    records = [] if bundle is None else bundle["records"]
    invocations = _invocations(producer, records)
    calls, contradictions = merged_calls([] if producer is None else producer["model_calls"], captured.calls)
    if brought.redacted:
        calls = [without_payloads(call) for call in calls]
    tool_calls = merged_tool_calls(
        [] if producer is None else producer["tool_calls"],
        [record for record in records if record["kind"] == "tool_call"],
        invocations,
    )
    turns: list[_Object] = []
    if producer is not None:
        turns = _turns_of(producer, task_id, rollout_id)
    elif derive_turns and not brought.has_trajectory and captured.owners:
        turns = derived_turns(task_id, rollout_id, captured.calls, captured.owners, resolved=brought.resolved)
    gaps = [*_gaps_of(producer, task_id, rollout_id), *([] if bundle is None else bundle["gaps"]), *brought.gaps]
    gaps += [*captured.gaps, *contradictions]
    gaps += _closing_gaps(calls, turns, invocations, has_producer=producer is not None)
    trajectory = {
        "schema_version": "1.0",
        "task_id": task_id,
        "rollout_id": rollout_id,
        "invocations": invocations,
        "turns": turns,
        "model_calls": calls,
        "tool_calls": tool_calls,
        "gaps": distinct(gaps),
    }
    return trajectory if _keeps_the_rules(calls, tool_calls) else validated_trajectory(trajectory)


def _invocations(producer: _Object | None, records: Iterable[_Object]) -> list[_Object]:
    """Return the producer's invocations, and those of the bundle that it does not have (D86)."""
    observed = [record for record in records if record["kind"] == "agent_invocation"]
    if producer is None:
        return observed
    known = {invocation["invocation_id"] for invocation in producer["invocations"]}
    return [*producer["invocations"], *(record for record in observed if record["invocation_id"] not in known)]


def _turns_of(producer: _Object, task_id: str, rollout_id: str) -> list[_Object]:
    """Return the producer's turns under the ids that ran, in order of time (D85, D89)."""
    turns = [turn | {"task_id": task_id, "rollout_id": rollout_id} for turn in producer["turns"]]
    return sorted(turns, key=lambda turn: (turn["timestamp"], turn["invocation_id"], turn["turn_no"]))


def _gaps_of(producer: _Object | None, task_id: str, rollout_id: str) -> list[_Object]:
    if producer is None:
        return []
    ran = {"task_id": task_id, "rollout_id": rollout_id}
    wrong = [name for name, value in ran.items() if producer[name] != value]
    mismatch = [gap(PRODUCER_TRAJECTORY_IDENTITY_MISMATCH, None, ",".join(wrong))] if wrong else []
    return [*mismatch, *producer["gaps"]]


def _closing_gaps(
    calls: list[_Object], turns: list[_Object], invocations: list[_Object], *, has_producer: bool
) -> list[_Object]:
    """Name what the trajectory as a whole does not show (D97)."""
    gaps: list[_Object] = []
    if not calls:
        gaps.append(gap(MODEL_CALLS_UNAVAILABLE))
    if not turns and not has_producer:
        gaps.append(gap(TURNS_UNAVAILABLE))
    if not any(invocation["conversation"] for invocation in invocations):
        gaps.append(gap(CONVERSATION_UNAVAILABLE))
    return gaps


def _keeps_the_rules(calls: Iterable[_Object], tool_calls: Iterable[_Object]) -> bool:
    """Whether what was merged keeps every rule that its parts cannot be known to keep (D71, D73)."""
    ids: set[str] = set()
    for call in calls:
        call_id = call["model_call_id"]
        if call_id and call_id in ids:
            return False
        ids.add(call_id)
        for amount in (call["duration_ms"], call["response_metadata"]["latency_ttft_ms"]):
            if amount is not None and not 0.0 <= amount < math.inf:
                return False
    for call in tool_calls:
        started, completed = call["started_at"], call["completed_at"]
        if started is not None and completed is not None and completed < started:
            return False
    return True
