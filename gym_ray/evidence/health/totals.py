"""Counts over the verdict rows of a run, and shows them as ``quality_summary.json`` does (D109)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.evidence.health.rollout import STATS
from gym_ray.evidence.health.rules import CHECKS, SEVERITIES, TASK_CHECKS
from gym_ray.evidence.health.task_checks import TaskHealth

__all__ = ["VERDICTS", "Totals"]

VERDICTS: Final = ("healthy", "unhealthy", "unobserved")

_MOST_TOKENS: Final = 1 << 63
"""A reply that reports more has counted nothing, and its number would fit into no sum."""
_TOKENS: Final = ("prompt", "completion", "capture_prompt", "capture_completion")


@dataclass(slots=True)
class Totals:
    """Running counts; they grow with the number of checks and statuses, never with that of rollouts.

    Attributes:
        ignored: Checks that do not run.
    """

    ignored: frozenset[str]
    _records: int = 0
    _tasks: int = 0
    _findings: Counter[str] = field(default_factory=Counter)
    _unobserved: Counter[str] = field(default_factory=Counter)
    _verdicts: Counter[str] = field(default_factory=Counter)
    _statuses: Counter[str] = field(default_factory=Counter)
    _figures: Counter[str] = field(default_factory=Counter)
    _first: dict[str, str] = field(default_factory=dict)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Count a row's findings and figures; its verdict is known only when its copies are."""
        self._records += 1
        for finding in row["findings"]:
            self.add_findings(finding["check"], 1, row["rollout_id"])
        self._unobserved.update(row["unobserved"])
        stats, figures = row[STATS], self._figures
        failed = sum(stats["failed_calls"].values())
        self._statuses.update(stats["failed_calls"])
        figures["failed"] += failed
        figures["rollouts_affected"] += failed > 0
        figures["ended_on_error"] += stats["ended_on_error"]
        figures["replayed"] += stats["replayed_calls"]
        figures["replayed_rollouts"] += stats["replayed_calls"] > 0
        figures["captures"] += stats["has_calls"]
        for name, value in zip(_TOKENS, stats["tokens"], strict=True):
            figures[name] += value if value is not None and abs(value) < _MOST_TOKENS else 0

    def add_findings(self, check: str, count: int, where: str) -> None:
        """Count findings of a check; ``where`` is the rollout or the task that has them."""
        self._findings[check] += count
        self._first.setdefault(check, where)

    def add_verdict(self, verdict: str, count: int) -> None:
        """Count the verdicts of rows that are the copies of one repeat."""
        self._verdicts[verdict] += count

    def add_task(self, task_id: str, task: TaskHealth) -> None:
        """Count what the checks of a task found."""
        self._tasks += 1
        self._unobserved.update(task.unobserved)
        for check in task.flags:
            self.add_findings(check, 1, f"task {task_id}")

    @property
    def first(self) -> Mapping[str, str]:
        """The first rollout or task with a finding of each check that has any."""
        return self._first

    def as_json(self) -> dict[str, Any]:
        """Return the ``run`` part of the summary."""
        figures = self._figures
        return {
            "ignored_checks": sorted(self.ignored),
            "artifacts": {
                "records": self._records,
                "captures": figures["captures"],
                "coverage": {check: self._coverage(check) for check in CHECKS},
            },
            "verdicts": {verdict: self._verdicts[verdict] for verdict in VERDICTS},
            "issues": {check: self._findings[check] for check in CHECKS},
            "stats": {
                "model_call_errors": {
                    "total": figures["failed"],
                    "by_status": dict(sorted(self._statuses.items())),
                    "rollouts_affected": figures["rollouts_affected"],
                    "ended_on_error": figures["ended_on_error"],
                },
                "duplicated_calls": {"replayed": figures["replayed"], "rollouts": figures["replayed_rollouts"]},
                "tokens": {name: figures[name] for name in _TOKENS},
            },
            "severity": {severity: self.findings_of(severity) for severity in ("error", "warning")},
        }

    def findings_of(self, severity: str) -> int:
        """Return how many findings are that bad (D170)."""
        return sum(count for check, count in self._findings.items() if SEVERITIES[check] == severity)

    def _coverage(self, check: str) -> dict[str, int]:
        whole = self._tasks if check in TASK_CHECKS else self._records
        if check in self.ignored:
            return {"evaluated": 0, "unobserved": 0, "ignored": whole}
        unobserved = self._unobserved[check]
        return {"evaluated": whole - unobserved, "unobserved": unobserved, "ignored": 0}
