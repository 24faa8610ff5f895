"""Joins a row, what its run gave, and its captured calls into one finished record (D30, D35-D37, D59, D63-D69).

Pure: bytes in, bytes out, so that a join can be repeated anywhere with the same answer. It never changes ``response``,
``reward``, token ids or log probs, and it never presents a capture as whole that it could not prove to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.evidence.build import JoinOptions, build_evidence, has_no_reply
from gym_ray.evidence.compact import COMPACT_FIELD, compacted
from gym_ray.evidence.facts import facts_line
from gym_ray.evidence.health import check_rollout
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.evidence.summary import RolloutSummary, summarise
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD
from gym_ray.model_call_capture.lines import DEEPEST_LEVELS, CaptureSnapshot, without_deep_lines
from gym_ray.model_call_capture.quiesce import WrittenCalls

__all__ = ["Destination", "JoinOptions", "Joined", "join"]

Destination = Literal["main", "failures", "nowhere"]

_DEFAULTS = JoinOptions()
_FROM_THE_ROW = ("_ng_task_index", "_ng_rollout_index")
_FROM_THE_ROW_IF_THERE = ("agent_ref", "task_source", "skills_ref", "_ng_attempt_index", "_ng_rollout_id")
# They name the capture; a reply that invents one would be linked with another rollout's calls.
_NEVER_FROM_THE_REPLY = ("_ng_attempt_index", "_ng_rollout_id", "capture_rollout_id", COMPACT_FIELD, "_ng_rejoined")


@dataclass(frozen=True, slots=True)
class Joined:
    """A finished record.

    Attributes:
        line: The record as one JSON line without its line feed.
        destination: Which output it belongs to (D37).
        summary: Its figures.
        facts: What metrics and reports need of it, one JSON line.
        source: The observations and the trajectory that the reply itself brought, one JSON line, so that a later join
            starts where this one did; None when it brought neither.
        parts: The rollout's parts file in compact mode, else None.
    """

    line: bytes
    destination: Destination
    summary: RolloutSummary
    facts: bytes
    source: bytes | None = None
    parts: bytes | None = None


def join(
    row: bytes,
    rollout_id: str,
    result: RunResult,
    snapshot: CaptureSnapshot | None,
    written: WrittenCalls | None,
    *,
    terminal: bool = False,
    options: JoinOptions = _DEFAULTS,
    trains: bool = True,
) -> Joined:
    """Build the finished record of one attempt.

    Args:
        row: The row object as it was dispatched.
        rollout_id: Capture key of the attempt; the attachment is linked by it and by nothing the reply says.
        result: What the run gave.
        snapshot: The attempt's capture, None when capture is off or the attempt never ran.
        written: What the model servers say they wrote, None only beside a None snapshot.
        terminal: Mark a failure as one that must never be tried again.
        options: How evidence is built.
        trains: The agent takes part in training. Of one that does not, what its reply says about tokens is nobody's
            finding: summary and facts have no reasons of masks.

    Raises:
        ValueError: ``row`` is not a JSON object, or a snapshot comes without the servers' list, so that nothing could
            tell whether it is whole.
    """
    if snapshot is not None and written is None:
        raise ValueError(f"{rollout_id}: a capture cannot be joined without the servers' list of its calls")
    row_object = exact_json.loads_object(row)
    if row_object is None:
        raise ValueError(f"{rollout_id}: the dispatched row is not a JSON object")

    joining = _Joining(row_object, rollout_id, result.latency_ms, written, options, trains)
    reply = _record_of(result, terminal)
    try:
        return joining.joined(reply, snapshot)
    except ValueError as error:
        if exact_json.nests_deeper(reply, DEEPEST_LEVELS):
            message = f"the agent's reply cannot be stored: {error}"
            reply = _failure_record(RunFailure("agent_run_error", "ValueError", message), terminal)
        return joining.joined(reply, None if snapshot is None else without_deep_lines(snapshot))


@dataclass(frozen=True, slots=True)
class _Joining:
    """What stays the same whatever of a reply and of a capture can be stored."""

    row: dict[str, Any]
    rollout_id: str
    latency_ms: float
    written: WrittenCalls | None
    options: JoinOptions
    trains: bool

    def joined(self, reply: Mapping[str, Any], snapshot: CaptureSnapshot | None) -> Joined:
        """Return the finished record.

        Raises:
            ValueError: Something in it nests too deeply for JSON.
        """
        record = _with_identity(reply, self.row)
        record = build_evidence(
            record, self.row, self.rollout_id, snapshot, self.written, self.latency_ms, self.options
        )
        attachment = None if snapshot is None else record[ATTACHMENT_FIELD]
        summary = summarise(record, attachment, self.rollout_id, self.latency_ms)
        if not self.trains:
            summary = replace(summary, token_mask_reasons=None)
        verdict = check_rollout(record, ignored=self.options.ignored_checks, trusted=not has_no_reply(record))
        facts = facts_line(record, attachment, verdict, summary=summary)
        parts = b""
        if self.options.compact:
            record, parts = compacted(record)
        line = exact_json.dumps(record)
        source = _source_line(self.rollout_id, reply)
        return Joined(line, _destination(record), summary, facts, source, parts or None)


def _source_line(rollout_id: str, reply: Mapping[str, Any]) -> bytes | None:
    brought = {name: reply[name] for name in (OBSERVATIONS_FIELD, TRAJECTORY_FIELD) if name in reply}
    return exact_json.dumps({"rollout_id": rollout_id, **brought}) if brought else None


def _record_of(result: RunResult, terminal: bool) -> dict[str, Any]:
    failure = result.failure
    if failure is None:
        record = None if result.reply is None else exact_json.loads_object(result.reply)
        if record is not None:
            return record
        failure = RunFailure("agent_run_error", "TypeError", "the agent's reply is not a JSON object")
    return _failure_record(failure, terminal)


def _failure_record(failure: RunFailure, terminal: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "_ng_failure_class": failure.failure_class,
        "_ng_failure_type": failure.error_type,
        "_ng_failure_message": failure.message,
        "_ng_failure_http_status": failure.http_status,
        "_ng_failure_response_body": failure.response_body,
        **({} if failure.traceback is None else {"_ng_failure_traceback": failure.traceback}),
    }
    if terminal:
        record["_ng_failure_terminal"] = True
    return record


def _with_identity(reply: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    record = {key: value for key, value in reply.items() if key not in _NEVER_FROM_THE_REPLY}
    for key in _FROM_THE_ROW:
        record[key] = row.get(key)
    for key in _FROM_THE_ROW_IF_THERE:
        if row.get(key) is not None:
            record[key] = row[key]
    return record


def _destination(record: Mapping[str, Any]) -> Destination:
    if record.get("_ng_no_persist"):
        return "nowhere"
    return "main" if record.get("_ng_failure_class") is None else "failures"
