"""What became of every rollout of a run, task by task, without holding the records.

Facts come in the order in which rollouts ended; metrics need them by task and repeat. What is read goes to a temporary
file at once, and only its place and its key stay in memory: 33 bytes a record or row, and one entry for each task.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gym_ray import exact_json
from gym_ray.evidence.facts import RecordFacts

__all__ = ["OutcomeTable", "RolloutOutcome", "TaskOutcomes"]

_ROW, _FAILURE, _RECORD = 0, 1, 2

State = Literal["done", "failed", "missing"]
_STATES: tuple[State, State, State] = ("missing", "failed", "done")


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """One rollout.

    Attributes:
        state: ``done`` when the main output has it; ``failed`` when only the failures have it; ``missing`` when there
            is only its row.
        repeat: Its ``_ng_rollout_index``, as it was written.
        agent: Its agent, "" when none is named.
        reply: The reduced verify response, None when it is missing.
        summary: Figures of its last record, None when it is missing.
        failures: Summaries of the failed attempts before the last record.
        duplicates: Records of the main output that a later one of the same rollout replaces.
    """

    state: State
    repeat: Any
    agent: str
    reply: dict[str, Any] | None
    summary: dict[str, Any] | None
    failures: tuple[dict[str, Any], ...] = ()
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class TaskOutcomes:
    """All rollouts of one task, sorted by repeat.

    Attributes:
        task: Its ``_ng_task_index``, as it was written.
        group: What :meth:`OutcomeTable.add_row` or a record said it belongs to, None without.
        rollouts: Its rollouts; when one agent was asked for, those of this agent.
    """

    task: Any
    group: str | None
    rollouts: tuple[RolloutOutcome, ...]


class _Names:
    """Numbers values in the order in which they come, so that arrays can hold them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        plain = type(value) is str or (type(value) is int and abs(value) < 1 << 62)
        key = value if plain else (type(value).__name__, exact_json.dumps(value))
        number = self._numbers.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def ranks(self) -> np.ndarray[Any, Any]:
        """Return the place of each number in the order of the values: whole numbers first, then texts."""
        order = sorted(range(len(self.values)), key=lambda number: _sortable(self.values[number]))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks


def _sortable(value: Any) -> tuple[int, int, str]:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0, value, ""
    return (1, 0, value) if isinstance(value, str) else (2, 0, exact_json.dumps(value).decode("utf-8", "replace"))


class OutcomeTable:
    """Collects rows, failures and records in any order, then gives tasks. Close it: it owns a temporary file.

    Args:
        scratch: Directory for the temporary file; it never has a name there.

    Raises:
        OSError: No temporary file can be made.
    """

    def __init__(self, scratch: Path) -> None:
        self._spool = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed by close()
        self._end = 0
        self._tasks, self._repeats, self._agents, self._groups = _Names(), _Names(), _Names(), _Names()
        self._kinds = array("B")
        self._task_numbers, self._repeat_numbers, self._agent_numbers = array("I"), array("I"), array("I")
        self._places, self._lengths = array("Q"), array("I")
        self._group_of: dict[int, int] = {}
        self._order: np.ndarray[Any, Any] | None = None
        self._nameless = 0

    def __enter__(self) -> OutcomeTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the temporary file; safe to repeat."""
        self._spool.close()

    def add_row(self, row: Mapping[str, Any], group: str | None = None) -> None:
        """Take a dispatched row in, so that a rollout that left nothing is known to be missing."""
        self._add(_ROW, row, group, b"")

    def add_record(self, facts: RecordFacts, group: str | None = None) -> None:
        """Take the facts of a record of the main output in; the last one of a rollout counts."""
        self._add(_RECORD, facts.reduced, group, _stored(facts))

    def add_failure(self, facts: RecordFacts, group: str | None = None) -> None:
        """Take the facts of a failed attempt in; the last one of a rollout counts while no record is there."""
        self._add(_FAILURE, facts.reduced, group, _stored(facts))

    def _add(self, kind: int, keyed: Mapping[str, Any], group: str | None, data: bytes) -> None:
        task, repeat = self._tasks(keyed.get("_ng_task_index")), keyed.get("_ng_rollout_index")
        if repeat is None or keyed.get("_ng_task_index") is None:
            self._nameless += 1  # nothing says that two such records are one rollout
            repeat = {"nameless": self._nameless}
        if group is not None:
            self._group_of.setdefault(task, self._groups(group))
        self._kinds.append(kind)
        self._task_numbers.append(task)
        self._repeat_numbers.append(self._repeats(repeat))
        self._agent_numbers.append(self._agents(_agent(keyed)))
        self._places.append(self._end)
        self._lengths.append(len(data))
        self._spool.write(data)
        self._end += len(data)
        self._order = None

    def nameless_count(self) -> int:
        """Return how many of what was added named no task or no repeat; each counts as a rollout of its own."""
        return self._nameless

    def agents(self) -> list[str]:
        """Return the names of all agents, sorted."""
        return sorted(self._agents.values)

    def task_count(self) -> int:
        """Return how many tasks there are."""
        return len(self._tasks.values)

    def tasks(self, agent: str | None = None) -> Iterator[TaskOutcomes]:
        """Yield the tasks in their order, one at a time in memory.

        Args:
            agent: Only its rollouts; tasks without any are left out. None for all.
        """
        if self._order is None:
            self._order = self._sorted()
        wanted = None if agent is None else self._agents(agent)
        entries: list[int] = []
        for entry in map(int, self._order):
            if entries and self._task_numbers[entry] != self._task_numbers[entries[-1]]:
                yield from self._task(entries, wanted)
                entries = []
            entries.append(entry)
        yield from self._task(entries, wanted)

    def _sorted(self) -> np.ndarray[Any, Any]:
        if not self._kinds:
            return np.zeros(0, np.int64)
        tasks = self._tasks.ranks()[np.frombuffer(self._task_numbers, np.uint32)]
        repeats = self._repeats.ranks()[np.frombuffer(self._repeat_numbers, np.uint32)]
        return np.lexsort((np.frombuffer(self._kinds, np.uint8), repeats, tasks))  # stable: in the order of adding

    def _task(self, entries: Sequence[int], agent: int | None) -> Iterator[TaskOutcomes]:
        rollouts: list[RolloutOutcome] = []
        same: list[int] = []
        for entry in entries:
            if same and self._repeat_numbers[entry] != self._repeat_numbers[same[-1]]:
                rollouts.extend(self._rollout(same, agent))
                same = []
            same.append(entry)
        if same:
            rollouts.extend(self._rollout(same, agent))
        if rollouts:
            task = self._task_numbers[entries[0]]
            group = self._groups.values[self._group_of[task]] if task in self._group_of else None
            yield TaskOutcomes(self._tasks.values[task], group, tuple(rollouts))

    def _rollout(self, entries: Sequence[int], agent: int | None) -> Iterator[RolloutOutcome]:
        last = entries[-1]
        if agent is not None and self._agent_numbers[last] != agent:
            return
        kind = self._kinds[last]
        name = self._agents.values[self._agent_numbers[last]]
        repeat = self._repeats.values[self._repeat_numbers[last]]
        if isinstance(repeat, dict):
            repeat = None
        if kind == _ROW:
            yield RolloutOutcome("missing", repeat, name, None, None)
            return
        reply, summary = self._load(last)
        before = [entry for entry in entries[:-1] if self._kinds[entry] == _FAILURE]
        records = sum(self._kinds[entry] == _RECORD for entry in entries)
        failures = tuple(self._load(entry)[1] for entry in before)
        yield RolloutOutcome(_STATES[kind], repeat, name, reply, summary, failures, max(0, records - 1))

    def _load(self, entry: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self._spool.seek(self._places[entry])
        reply, summary = exact_json.loads(self._spool.read(self._lengths[entry]))
        return reply, summary


def _stored(facts: RecordFacts) -> bytes:
    return exact_json.dumps([facts.reduced, facts.summary])


def _agent(keyed: Mapping[str, Any]) -> str:
    ref = keyed.get("agent_ref")
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return name if isinstance(name, str) else ""
