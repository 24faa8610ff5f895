"""Aggregates a run over its records: the peer's array of agents, and our figures with intervals (D112-D117).

It reads facts, never payloads, one rollout at a time; nothing here fails a run that is over because of what one record
holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import InputError
from gym_ray.rollouts.metrics.agent_entries import PostMetrics, write_agent_entries
from gym_ray.rollouts.metrics.group_figures import GroupFigures
from gym_ray.rollouts.metrics.live import MetricsRow
from gym_ray.rollouts.metrics.outcome_table import OutcomeTable, RolloutOutcome, TaskOutcomes
from gym_ray.rollouts.metrics.scoring import AggregationOptions, group_of
from gym_ray.rollouts.reports.facts_files import read_facts
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.posix import PosixStore

__all__ = ["Aggregation", "aggregate"]

_VERSION = 1
_MOST_GROUPS = 1000
_OTHER_GROUPS = "(other groups)"
_SHOWN_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What was written, without anything that grows with the number of rollouts.

    Attributes:
        metrics: The object in the metrics file of the run.
        warnings: What is not as it should be, one sentence each, the first 20.
    """

    metrics: dict[str, Any]
    warnings: tuple[str, ...]

    def rows(self) -> list[MetricsRow]:
        """Return the table: one row an agent, and ``all`` last when there are several."""
        agents = [_row(name, figures) for name, figures in self.metrics["agents"].items()]
        return agents if len(agents) == 1 else [*agents, _row("all", self.metrics["overall"])]


def _row(agent: str, figures: dict[str, Any]) -> MetricsRow:
    rollouts, reward, latency = figures["rollouts"], figures["reward"], figures["latency_ms"]
    return MetricsRow(
        agent=agent,
        done=rollouts["done"],
        failed=rollouts["failed"],
        reward=reward["mean"],
        pass_at_1=figures["pass_at_k"][0]["percent"] if figures["pass_at_k"] else None,
        calls=figures["model_calls"]["total"],
        tokens_in=figures["tokens"]["tokens_in"]["total"],
        tokens_out=figures["tokens"]["tokens_out"]["total"],
        latency_p50_ms=latency["p50"],
        latency_p90_ms=latency["p90"],
        gaps=figures["attempts_with_gaps"],
        half_width=None if reward["high_95"] is None else reward["high_95"] - reward["mean"],
        masked=rollouts["masked"],
        unmeasured=rollouts["unmeasured"],
    )


class _Warnings:
    """Keeps the first warnings and counts all."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.count = 0

    def add(self, warning: str) -> None:
        self.count += 1
        if len(self.shown) < _SHOWN_WARNINGS:
            self.shown.append(warning)


def aggregate(
    sources: RunPaths | Sequence[RunPaths],
    rows: MaterialisedRows | Sequence[MaterialisedRows] | None,
    *,
    options: AggregationOptions | None = None,
    output: RunPaths | None = None,
    post: PostMetrics | None = None,
) -> Aggregation:
    """Aggregate one run, or shards of one, and replace both metrics files.

    ``<stem>_aggregate_metrics.json`` is the array of D113; ``<stem>_metrics.json`` holds the figures of
    :class:`~gym_ray.rollouts.metrics.group_figures.GroupFigures` overall, by agent and by group of tasks. Memory:
    about 33 bytes a record, failure and row, an entry for each task, and 8 bytes for each number of one agent's
    replies.

    Args:
        sources: Where records and failures are; of several records of one rollout the last one counts.
        rows: The dispatched rows, of all shards, which say what is missing and what groups tasks have; None when nobody
            knows.
        options: How to count.
        output: Whose files are written; the first source's by default.
        post: Asks agents that aggregate themselves; see :data:`~gym_ray.rollouts.metrics.agent_entries.PostMetrics`.

    Raises:
        InputError: Two shards have records of the same rollout.
        StorageError: A file cannot be written; an old one is then intact.
        OSError: A source cannot be read, or no temporary file be made beside the output.
    """
    options = options or AggregationOptions()
    shards = [sources] if isinstance(sources, RunPaths) else list(sources)
    target, warnings = output or shards[0], _Warnings()
    with OutcomeTable(target.output.parent) as table:
        for row in _rows([rows] if isinstance(rows, MaterialisedRows) else rows or (), warnings):
            table.add_row(row, group_of(row, options.group_by))
        origins = _Origins(shards)
        for shard in shards:
            _read(shard, table, options, origins, warnings)
        figures = _Figures(table, options)
        if nameless := table.nameless_count():
            warnings.add(f"{nameless} records or rows name no task or no repeat; each counts as one rollout")
        for warning in write_agent_entries(target.aggregate_metrics, table, options, post):
            warnings.add(warning)
    if figures.replaced:
        warnings.add(f"{figures.replaced} records of rollouts that have a later record were not counted")
    metrics = figures.to_dict(rows_known=rows is not None)
    metrics["warnings"] = {"count": warnings.count, "first": warnings.shown}
    PosixStore(target.metrics.parent).publish(target.metrics.name, exact_json.dumps(metrics, as_line=True))
    return Aggregation(metrics, tuple(warnings.shown))


def _rows(files: Sequence[MaterialisedRows], warnings: _Warnings) -> Iterator[dict[str, Any]]:
    for rows in files:
        for ordinal in range(len(rows)):
            try:
                row = exact_json.loads_object(rows.read(ordinal))
            except InputError as error:
                warnings.add(str(error))
                continue
            if row is None:
                warnings.add(f"{rows.path}:{ordinal + 1}: the row is not a JSON object")
            else:
                yield row


class _Origins:
    """Refuses rollouts that several shards have: nobody could say whether they are one or two (D117)."""

    def __init__(self, shards: Sequence[RunPaths]) -> None:
        self._several = len(shards) > 1
        self._shard_of: dict[bytes, RunPaths] = {}

    def note(self, reduced: Mapping[str, Any], shard: RunPaths) -> None:
        """Take one record in.

        Raises:
            InputError: Another shard has a record of the same rollout.
        """
        task, repeat = reduced.get("_ng_task_index"), reduced.get("_ng_rollout_index")
        if not self._several or task is None or repeat is None:
            return
        key = hashlib.blake2b(exact_json.dumps([task, repeat]), digest_size=8).digest()
        other = self._shard_of.setdefault(key, shard)
        if other != shard:
            problem = f"rollout {task}-{repeat} is in {other.output} as well; give the rows of each shard task indices"
            raise InputError(shard.output, 0, "_ng_task_index", f"{problem} of their own, or aggregate one by one")


def _read(
    shard: RunPaths, table: OutcomeTable, options: AggregationOptions, origins: _Origins, warnings: _Warnings
) -> None:
    for _, facts in read_facts(shard, damaged=warnings.add):
        origins.note(facts.reduced, shard)
        table.add_record(facts, group_of(facts.reduced, options.group_by))
    for _, facts in read_facts(shard, file="failures", damaged=warnings.add):
        origins.note(facts.reduced, shard)
        table.add_failure(facts, group_of(facts.reduced, options.group_by))


class _Figures:
    """The figures of the whole, of each agent and of each group, taken in one pass."""

    def __init__(self, table: OutcomeTable, options: AggregationOptions) -> None:
        self._options, self.replaced = options, 0
        self._all, names = GroupFigures(), table.agents()
        # The figures of the only agent are those of the whole.
        self._agents: dict[str, GroupFigures] = {names[0]: self._all} if len(names) == 1 else {}
        self._groups: dict[str, GroupFigures] = {}
        for task in table.tasks():
            self._all.add_task(task.task, task.rollouts, options)
            self.replaced += sum(rollout.duplicates for rollout in task.rollouts)
            if len(names) > 1:
                self._add_by_agent(task)
            if task.group is not None:
                self._group(task.group).add_task(task.task, task.rollouts, options)

    def _add_by_agent(self, task: TaskOutcomes) -> None:
        by_agent: dict[str, list[RolloutOutcome]] = {}
        for rollout in task.rollouts:
            by_agent.setdefault(rollout.agent, []).append(rollout)
        for agent, rollouts in by_agent.items():
            self._agents.setdefault(agent, GroupFigures()).add_task(task.task, rollouts, self._options)

    def _group(self, name: str) -> GroupFigures:
        known = name in self._groups or len(self._groups) < _MOST_GROUPS
        return self._groups.setdefault(name if known else _OTHER_GROUPS, GroupFigures())

    def to_dict(self, *, rows_known: bool) -> dict[str, Any]:
        found: dict[str, Any] = {
            "schema_version": _VERSION,
            "overall": self._all.to_dict(),
            "agents": {name: self._agents[name].to_dict() for name in sorted(self._agents)},
            "groups": {
                "by": self._options.group_by,
                "values": {name: self._groups[name].to_dict() for name in sorted(self._groups)},
            },
        }
        if not rows_known:  # without the rows nobody knows what is missing; that is not 0
            for figures in (found["overall"], *found["agents"].values(), *found["groups"]["values"].values()):
                figures["rollouts"]["missing"] = None
        return found
