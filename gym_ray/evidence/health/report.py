"""Puts the verdict rows of a run together: duplicates, the checks of tasks, and the summary (D107-D109).

Rows come one by one and are not kept; what stays of each is 34 bytes, so that a run of a million rollouts fits.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gym_ray.evidence.health.rollout import STATS, verdict_of
from gym_ray.evidence.health.rules import CHECKS, RULES_VERSION
from gym_ray.evidence.health.task_checks import Repeat, health_of_task
from gym_ray.evidence.health.totals import VERDICTS, Totals

__all__ = ["HealthReport", "finished_row"]

_DUPLICATE: Final = "rollout_duplicate_identity"
_BEFORE_DUPLICATES: Final = CHECKS[: CHECKS.index(_DUPLICATE)]
_DIGITS_OF_AN_INDEX: Final = 18
_NO_STAGE: Final = -(1 << 63)
_BOUND: Final = 1 << 2
_SUCCEEDED: Final = 1 << 3


def finished_row(row: Mapping[str, Any], copies: int, ignored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a row as ``rollout_verdicts.jsonl`` has it (D109).

    Args:
        row: What :func:`~gym_ray.evidence.health.rollout.check_rollout` gave.
        copies: How many rows of the run have its identity, this one included.
        ignored: Checks that do not run.
    """
    finished = {key: value for key, value in row.items() if key != STATS}
    if copies > 1 and _DUPLICATE not in ignored:
        findings = list(row["findings"])
        at = sum(finding["check"] in _BEFORE_DUPLICATES for finding in findings)
        findings.insert(at, {"check": _DUPLICATE, "detail": {"duplicate_count": copies}})
        finished["findings"], finished["verdict"] = findings, verdict_of(findings, row["unobserved"])
    return finished


class HealthReport:
    """The report of one run. Add every row, then ask once for the order and once for the summary.

    Args:
        ignored: Checks that did not run; the same as for the rows.
        rules_version: The rules that the rows were made by.
    """

    def __init__(self, ignored: frozenset[str] = frozenset(), rules_version: int = RULES_VERSION) -> None:
        self._ignored, self._rules_version = ignored, rules_version
        self._places, self._states, self._named = array("Q"), array("B"), array("b")
        self._tasks, self._rollouts, self._stages = array("q"), array("q"), array("q")
        self._names: dict[str, int] = {}
        self._totals = Totals(ignored)

    @property
    def first_findings(self) -> Mapping[str, str]:
        """The first rollout or task with a finding of each check that has any; whole behind :meth:`run_summary`."""
        return self._totals.first

    def add(self, place: int, row: Mapping[str, Any]) -> None:
        """Take one row in.

        Args:
            place: Where the caller keeps the row; handed back by :meth:`ordered`.
            row: What :func:`~gym_ray.evidence.health.rollout.check_rollout` gave.
        """
        text, stats = str(row["_ng_task_index"]), row[STATS]
        number = _index(text)
        self._named.append(number is None)
        self._tasks.append(self._names.setdefault(text, len(self._names)) if number is None else number)
        self._rollouts.append(row["_ng_rollout_index"])
        self._stages.append(row.get("stage_index", _NO_STAGE))
        self._places.append(place)
        state = VERDICTS.index(row["verdict"])
        state |= _BOUND * stats["turns_fully_bound"] | _SUCCEEDED * stats["turn_call_succeeded"]
        self._states.append(state)
        self._totals.add_row(row)

    def ordered(self) -> Iterator[tuple[int, int]]:
        """Yield place and number of copies of every row, by task, then by rollout (D109)."""
        for group in self._copies():
            for position in group:
                yield self._places[position], len(group)

    def summary(self) -> dict[str, Any]:
        """Return ``quality_summary.json`` (D109)."""
        tasks: dict[str, Any] = {}
        return {"run": self.run_summary(tasks.__setitem__), "tasks": tasks}

    def run_summary(self, show_task: Callable[[str, dict[str, Any]], object]) -> dict[str, Any]:
        """Return the ``run`` part of the summary; ``show_task`` gets the id and the entry of every task, in order.

        It counts what it meets, so it is asked once.
        """
        names = list(self._names)
        for (is_named, number), groups in groupby(self._copies(), key=self._task):
            task_id = names[number] if is_named else str(number)
            task = health_of_task([self._repeat(group, task_id) for group in groups], self._ignored)
            self._totals.add_task(task_id, task)
            show_task(task_id, task.as_json())
        return self._totals.as_json() | {"rules_version": self._rules_version}

    def _task(self, group: list[int]) -> tuple[bool, int]:
        return bool(self._named[group[0]]), self._tasks[group[0]]

    def _repeat(self, group: list[int], task_id: str) -> Repeat:
        """Count the copies of one repeat; return what its task sees: one repeat, and what they agree on (D109)."""
        states = [self._states[position] for position in group]
        verdicts = [VERDICTS[state & 3] for state in states]
        if len(group) > 1 and _DUPLICATE not in self._ignored:
            verdicts = ["unhealthy"] * len(group)
            where = f"{task_id}-{self._rollouts[group[0]]}"
            self._totals.add_findings(_DUPLICATE, len(group), where)
        for verdict in verdicts:
            self._totals.add_verdict(verdict, 1)
        return Repeat(
            verdict=verdicts[0] if len(set(verdicts)) == 1 else "unobserved",
            fully_bound=all(state & _BOUND for state in states),
            succeeded=any(state & _SUCCEEDED for state in states),
        )

    def _copies(self) -> Iterator[list[int]]:
        """Yield the positions of the rows of each identity, in order."""
        for _, group in groupby(self._order(), key=self._identity):
            yield list(group)

    def _identity(self, position: int) -> tuple[int, int, int, int]:
        return self._named[position], self._tasks[position], self._rollouts[position], self._stages[position]

    def _order(self) -> Iterator[int]:
        """Yield the positions of all rows by task (numbers before names), rollout, stage, and as they came."""
        named = np.array(self._named, dtype=np.bool_)
        tasks = np.array(self._tasks, dtype=np.int64)
        if self._names:
            ranks = np.empty(len(self._names), dtype=np.int64)
            for rank, name in enumerate(sorted(self._names)):
                ranks[self._names[name]] = rank
            tasks[named] = ranks[tasks[named]]
        rollouts: npt.NDArray[np.int64] = np.array(self._rollouts, dtype=np.int64)
        order = np.lexsort((np.array(self._stages, dtype=np.int64), rollouts, tasks, named))
        return map(int, order)


def _index(text: str) -> int | None:
    """Return the number that a task id spells, None when it is a name."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_OF_AN_INDEX:
        return None
    number = int(text)
    return number if str(number) == text else None
