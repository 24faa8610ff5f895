"""Checks one record: its verdict row (D106, D109), without what only a whole run can tell.

It runs in the joiner for every record while the record is hot, and again for records read from files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import RolloutIdError
from gym_ray.evidence.health.checks import RECORD_CHECKS, usage_totals
from gym_ray.evidence.health.endings import ended_on_failure
from gym_ray.evidence.health.rules import RULES_VERSION
from gym_ray.evidence.health.view import RolloutView, view_of
from gym_ray.evidence.observations import validated_trajectory
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD

__all__ = [
    "STATS",
    "check_rollout",
    "check_stored",
    "located",
    "partly_unreadable",
    "rules_of",
    "unreadable_row",
    "verdict_of",
]

STATS: Final = "stats"
"""The member of a verdict row with what the report of a run counts; no row of ``rollout_verdicts.jsonl`` has it."""

_LONGEST_ERROR: Final = 500
_MOST: Final = 1 << 63
"""No index is so large: what a report keeps of a row has 64 bits for each."""


def check_rollout(
    record: Mapping[str, Any],
    *,
    ignored: frozenset[str] = frozenset(),
    trusted: bool = False,
    rules_version: int = RULES_VERSION,
) -> dict[str, Any]:
    """Return the verdict row of one record; it never raises for what a record holds.

    Args:
        record: A finished record with its payloads inline.
        ignored: Checks that do not run (D110).
        trusted: The record's trajectory was built and validated in this process, so it is not validated again.
        rules_version: Which calls the token comparison sums, see :mod:`gym_ray.evidence.health.rules`.

    Returns:
        The row of D109, and under :data:`STATS` what the report of the run counts. Findings of a trajectory that is
        invalid name no file and line.
    """
    findings: list[dict[str, Any]] = []
    trajectory = record.get(TRAJECTORY_FIELD)
    if trajectory is not None and not (trusted and isinstance(trajectory, dict)):
        try:
            trajectory = validated_trajectory(trajectory)
        except ValidationError as error:
            trajectory = None
            if "record_unreadable" not in ignored:
                findings.append(_finding("record_unreadable", None, {"error": _problem_of(error)}))
    view = view_of(record, trajectory, rules_version)
    unobserved = _run_checks(view, ignored, findings)
    return {
        "_ng_task_index": record.get("_ng_task_index"),
        "_ng_rollout_index": record.get("_ng_rollout_index"),
        **({} if (stage := _stage_of(record)) is None else {"stage_index": stage}),
        "rollout_id": _rollout_id(record),
        "verdict": verdict_of(findings, unobserved),
        "findings": findings,
        "unobserved": unobserved,
        STATS: {"rules": rules_of(ignored, rules_version), **_stats(view)},
    }


def _stage_of(record: Mapping[str, Any]) -> int | None:
    """Return the stage that a record names; a reply may bring anything under that name, and only a number is one."""
    stage = record.get("stage_index")
    if not isinstance(stage, int) or isinstance(stage, bool):
        return None
    return stage if abs(stage) < _MOST else None


def _problem_of(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    where = ".".join(str(part) for part in (TRAJECTORY_FIELD, *problems[0]["loc"]))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return _shortened(f"{where}: {problems[0]['msg']}{more}")


def rules_of(ignored: frozenset[str], rules_version: int = RULES_VERSION) -> list[Any]:
    """Return what tells rows that were made by other rules apart; it stands under :data:`STATS` of each row."""
    return [rules_version, *sorted(ignored)]


def _run_checks(view: RolloutView, ignored: frozenset[str], findings: list[dict[str, Any]]) -> list[str]:
    """Append the findings of all checks, the broken ones first; return the ids of those that could not look."""
    unobserved: list[str] = []
    broken: list[dict[str, Any]] = []
    for name, check in RECORD_CHECKS.items():
        if name in ignored:
            continue
        try:
            found = check(view)
        except Exception as error:  # noqa: BLE001 - a check that breaks on a strange record is itself a finding
            unobserved.append(name)
            detail = {"failed_check": name, "error": _shortened(f"{type(error).__name__}: {error}")}
            broken.append(_finding("check_execution_error", None, detail))
            continue
        if found is None:
            unobserved.append(name)
        for locator, detail in found or ():
            findings.append(_finding(name, locator, detail))
    if "check_execution_error" not in ignored:
        findings[:0] = broken
    return unobserved


def _finding(check: str, locator: dict[str, Any] | None, detail: dict[str, Any]) -> dict[str, Any]:
    return {"check": check, **({} if locator is None else {"locator": locator}), "detail": detail}


def verdict_of(findings: object, unobserved: object) -> str:
    """Return the verdict of a record with those findings and those checks that could not look (D106)."""
    return "unhealthy" if findings else "unobserved" if unobserved else "healthy"


def _stats(view: RolloutView) -> dict[str, Any]:
    prompt, completion, failed, answers = 0, 0, [], []
    for call in view.calls:
        prompt += call.prompt_tokens or 0
        completion += call.completion_tokens or 0
        if call.failed:
            failed.append(call)
        if call.response_id and call.model_ref:
            answers.append((call.model_ref, call.response_id))
    return {
        "failed_calls": dict(Counter(str(call.status or "unknown") for call in failed)) if failed else {},
        "ended_on_error": bool(failed) and bool(ended_on_failure(view)),
        "replayed_calls": len(answers) - len(set(answers)),  # an answer's id that an earlier call of the server has
        "tokens": [*usage_totals(view.record), prompt, completion],
        "has_calls": bool(view.calls),
        "turns_fully_bound": view.turns_fully_bound,
        "turn_call_succeeded": any(not view.calls[place].failed for place in view.turn_bound),
    }


def _rollout_id(record: Mapping[str, Any]) -> str:
    try:
        derived = derive_rollout_id(record)
    except RolloutIdError:
        derived = None
    return derived or f"{record.get('_ng_task_index')}-{record.get('_ng_rollout_index')}"


def check_stored(record: Any, *, ignored: frozenset[str], rules_version: int = RULES_VERSION) -> dict[str, Any] | str:
    """Return the verdict row of a stored line that is parsed, or why it cannot be read as a record (D108)."""
    if not isinstance(record, dict):
        return "the line is not a JSON object"
    task, rollout = record.get("_ng_task_index"), record.get("_ng_rollout_index")
    if task is None or isinstance(task, dict | list):
        return "the record names no task: _ng_task_index is missing or no scalar"
    if isinstance(rollout, bool) or not isinstance(rollout, int) or abs(rollout) >= _MOST:
        return "the record names no repeat: _ng_rollout_index is missing or no integer"
    return check_rollout(record, ignored=ignored, rules_version=rules_version)


def unreadable_row(
    source: str, line: int, error: str, *, input_index: int = 0, ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the row of a line that is no record: what no line names, its place names (D108).

    Args:
        source: Name of the file.
        line: Number of the line, from 1.
        error: Why it cannot be read.
        input_index: Number of the file among those that are looked at, from 0.
        ignored: Checks that do not run.
    """
    task = f"__unreadable_record__:input-{input_index}:line-{line}"
    row = check_rollout({"_ng_task_index": task, "_ng_rollout_index": 0}, ignored=ignored)
    row["rollout_id"] = f"{task}-0"
    return located(partly_unreadable(row, error, ignored=ignored), source, line)


def partly_unreadable(row: dict[str, Any], error: str, *, ignored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the row of a record that could be read only in part, and why."""
    if "record_unreadable" in ignored:
        return row
    finding = _finding("record_unreadable", None, {"error": _shortened(error)})
    return {**row, "verdict": "unhealthy", "findings": [finding, *row["findings"]]}


def located(row: dict[str, Any], source: str, line: int) -> dict[str, Any]:
    """Return a row whose findings of what could not be read name file and line."""
    locator = {"source_file": source, "line": line}
    findings = [
        _finding(finding["check"], locator, finding["detail"]) if finding["check"] == "record_unreadable" else finding
        for finding in row["findings"]
    ]
    return {**row, "findings": findings}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"
