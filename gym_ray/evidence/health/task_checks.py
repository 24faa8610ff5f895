"""The checks of one task: they look at all of its repeats (D107)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.evidence.health.rules import TASK_CHECKS

__all__ = ["Repeat", "TaskHealth", "health_of_task"]

_FEWEST_REPEATS: Final = 2
"""One unhealthy repeat says nothing of its task."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a task's checks see of one repeat.

    Attributes:
        verdict: Its verdict; ``unobserved`` where copies of it disagree.
        fully_bound: Every turn names its calls without doubt.
        succeeded: At least one of those calls succeeded.
    """

    verdict: str
    fully_bound: bool
    succeeded: bool


@dataclass(frozen=True, slots=True)
class TaskHealth:
    """The health of one task.

    Attributes:
        repeats: Its distinct repeats.
        verdicts: How many of them have which verdict.
        flags: Task checks with a finding.
        unobserved: Task checks that could not look.
    """

    repeats: int
    verdicts: Mapping[str, int]
    flags: Sequence[str]
    unobserved: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the task's entry in ``quality_summary.json`` (D109)."""
        counted = {verdict: self.verdicts.get(verdict, 0) for verdict in ("healthy", "unhealthy", "unobserved")}
        return {"repeats": self.repeats, **counted, "flags": list(self.flags)}


def health_of_task(repeats: Sequence[Repeat], ignored: frozenset[str]) -> TaskHealth:
    """Return the health of a task with those repeats."""
    verdicts = Counter(repeat.verdict for repeat in repeats)
    outcomes = {
        "task_consistently_unhealthy": _consistently_unhealthy(verdicts),
        "task_no_successful_model_calls": _no_successful_calls(repeats),
    }
    checked = [check for check in TASK_CHECKS if check not in ignored]
    return TaskHealth(
        repeats=len(repeats),
        verdicts=verdicts,
        flags=[check for check in checked if outcomes[check]],
        unobserved=[check for check in checked if outcomes[check] is None],
    )


def _consistently_unhealthy(verdicts: Mapping[str, int]) -> bool | None:
    computable = verdicts.get("healthy", 0) + verdicts.get("unhealthy", 0)
    return None if computable < _FEWEST_REPEATS else not verdicts.get("healthy", 0)


def _no_successful_calls(repeats: Sequence[Repeat]) -> bool | None:
    if not all(repeat.fully_bound for repeat in repeats):
        return None
    return not any(repeat.succeeded for repeat in repeats)
