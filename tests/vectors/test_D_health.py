"""Record lines -> both report files, by the peer's rules and by ours (D106-D111)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gym_ray.evidence.health import PEER_RULES, RULES_VERSION
from gym_ray.rollouts.reports.health_files import health_of_records
from gym_ray.rollouts.run_paths import RunPaths

PROSE = "ANY_STRING"
RULE = "token_totals_of_every_owned_call"
CHECK = "rollout_token_count_mismatch"


def reports(case: dict[str, Any], directory: Path, rules_version: int) -> tuple[list[Any], dict[str, Any]]:
    paths = RunPaths.of(directory / "rollouts.jsonl")
    paths.output.write_text("".join(f"{line}\n" for line in case["lines"]))
    health_of_records(paths, ignored=frozenset(case["ignored_checks"]), rules_version=rules_version)
    verdicts = [json.loads(line) for line in paths.public_rollout_verdicts.read_text().splitlines()]
    summary = json.loads(paths.public_quality_summary.read_text())
    assert summary["run"].pop("rules_version") == rules_version  # what only this project's summary has
    severity = summary["run"].pop("severity")
    assert sum(severity.values()) == sum(summary["run"]["issues"].values())
    return verdicts, summary


def without_prose(value: Any, pattern: Any) -> Any:
    """``value`` with ``ANY_STRING`` wherever the pattern has it and a text stands there."""
    if pattern == PROSE and isinstance(value, str):
        return PROSE
    if isinstance(value, dict) and isinstance(pattern, dict):
        return {key: without_prose(item, pattern.get(key)) for key, item in value.items()}
    if isinstance(value, list) and isinstance(pattern, list) and len(value) == len(pattern):
        return [without_prose(item, other) for item, other in zip(value, pattern, strict=True)]
    return value


def test_by_the_peers_rules(case: dict[str, Any], tmp_path: Path) -> None:
    verdicts, summary = reports(case, tmp_path, PEER_RULES)
    assert without_prose(verdicts, case["rollout_verdicts"]) == case["rollout_verdicts"]
    assert without_prose(summary, case["quality_summary"]) == case["quality_summary"]


def owned_and_turn_bound_calls_differ(line: str) -> bool:
    """Whether an invocation names a call that no turn names."""
    trajectory = json.loads(line).get("ng_trajectory") or {}
    named = {
        holder: {ref.get("model_call_id") for item in trajectory.get(holder, []) for ref in item.get("model_calls", [])}
        for holder in ("turns", "invocations")
    }
    return not named["invocations"] <= named["turns"]


def test_by_our_rules(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    """The same, except for what the comparison of tokens says where an invocation owns more than its turns name."""
    assert departures[RULE]["file"] == "D_health.json"
    expected = case["rollout_verdicts"]
    verdicts, _ = reports(case, tmp_path, RULES_VERSION)
    assert len(verdicts) == len(expected)
    departing = any(owned_and_turn_bound_calls_differ(line) for line in case["lines"])
    for row, right in zip(without_prose(verdicts, expected), expected, strict=True):
        if departing:
            row, right = without_check(row), without_check(right)
        assert row == right


def without_check(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key != "verdict"}
    kept["findings"] = [finding for finding in row["findings"] if finding["check"] != CHECK]
    kept["unobserved"] = [check for check in row["unobserved"] if check != CHECK]
    return kept
