"""Default metrics over the replies of one agent: every number of every reply, by task, by repeat and overall (D114)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gym_ray.evidence.perf import PERF_FIELD
from gym_ray.evidence.scores.numbers import finite, linear_percentile, mean, median, sample_std
from gym_ray.rollouts.metrics.perf_summary import PerfSummary
from gym_ray.rollouts.metrics.student import t_975

__all__ = ["ReplyMetrics"]

Columns = dict[str, "array[float]"]

_MOST_FIELDS = 256
_STATISTICS = ("mean", "max", "min", "median", "std")
_NO_METRIC = ("mask_sample",)


def numeric_fields(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a reply by field: its own, then those of ``response.usage``; none that begins with ``_``.

    Booleans are 0 or 1 in every statistic. What is not finite is no number.
    """
    response = reply.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    parts = (reply, usage) if isinstance(usage, Mapping) else (reply,)
    return {
        name: value
        for part in parts
        for name, value in part.items()
        if not name.startswith("_") and name not in _NO_METRIC and finite(value) is not None
    }


class ReplyMetrics:
    """Takes the tasks of one agent one after the other; 8 bytes for each number, none for anything else.

    Beyond 256 different fields, further ones are left out of the statistics and counted, up to 256 of them.
    """

    def __init__(self) -> None:
        self._repeats: dict[Any, Columns] = {}
        self._counts: dict[Any, int] = {}
        self._fields: dict[str, None] = {}
        self._all_repeats: set[Any] = set()
        self._left_out: set[str] = set()
        self._perf = PerfSummary()
        self._measured = self._masked = self._tasks = self._masked_tasks = self._unmeasured = 0

    def add_task(self, task: Any, replies: Sequence[Mapping[str, Any]], *, missing: int = 0) -> dict[str, Any] | None:
        """Take all replies of one task in, sorted by repeat, and return its entry; None when all of them are masked.

        Args:
            task: Its ``_ng_task_index``.
            replies: Reduced verify responses (D112).
            missing: Rollouts of the task that gave no reply.
        """
        kept = []
        for reply in replies:
            self._perf.add(reply.get(PERF_FIELD))
            self._all_repeats.add(_key(reply.get("_ng_rollout_index")))
            if reply.get("mask_sample"):
                self._masked += 1
            else:
                kept.append(reply)
        if not kept:
            self._masked_tasks += bool(replies)
            return None
        self._tasks += 1
        self._measured += len(kept)
        self._unmeasured += sum(finite(reply.get("reward")) is None for reply in kept)
        infos = [self._add(task, reply) for reply in kept]
        return _group_entry(task, infos, self._fields, missing)

    def _add(self, task: Any, reply: Mapping[str, Any]) -> dict[str, Any]:
        repeat = reply.get("_ng_rollout_index")
        columns = self._repeats.setdefault(_key(repeat), {})
        self._counts[_key(repeat)] = self._counts.get(_key(repeat), 0) + 1
        numbers = numeric_fields(reply)
        for name, value in numbers.items():
            if name not in self._fields:
                if len(self._fields) >= _MOST_FIELDS:
                    if len(self._left_out) < _MOST_FIELDS:
                        self._left_out.add(name)
                    continue
                self._fields[name] = None
            columns.setdefault(name, array("d")).append(float(value))
        known = {name: value for name, value in numbers.items() if name in self._fields}
        return {"rollout_id": f"{task}:{repeat}", "_ng_task_index": task, "_ng_rollout_index": repeat, **known}

    def result(self) -> dict[str, Any]:
        """Return ``agent_metrics``, ``key_metrics``, ``perf_summary`` and ``repeat_level_metrics`` (D113)."""
        metrics: dict[str, Any] = {}
        if self._measured:
            metrics |= _flat(self._fields, _five_of(self._whole_columns()))
            metrics |= self._across_repeats()
        coverage = self._coverage()
        metrics |= coverage
        if self._measured:
            metrics["num_repeats"] = len(self._all_repeats)
        if self._left_out:
            metrics["fields_left_out"] = len(self._left_out)
        keys = {name: value for name, value in metrics.items() if name.startswith("mean/")} | coverage
        return {
            "agent_metrics": metrics,
            "key_metrics": keys,
            "perf_summary": self._perf.result(),
            "repeat_level_metrics": list(self._repeat_entries()) if len(self._repeats) > 1 else [],
        }

    def _whole_columns(self) -> Iterator[tuple[str, Sequence[float]]]:
        for name in self._fields:
            parts = (columns[name] for columns in self._repeats.values() if name in columns)
            yield name, array("d", chain.from_iterable(parts))

    def _coverage(self) -> dict[str, int]:
        found = {}
        if self._masked:
            found = {
                "coverage/measured_rollouts": self._measured,
                "coverage/masked_rollouts": self._masked,
                "coverage/measured_tasks": self._tasks,
                "coverage/fully_masked_tasks": self._masked_tasks,
            }
        if self._unmeasured:
            found["coverage/unmeasured_rollouts"] = self._unmeasured
        return found

    def _across_repeats(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self._fields:
            means = [mean(columns[name]) for columns in self._repeats.values() if name in columns]
            if len(means) < 2:
                continue
            middle, deviation = mean(means), sample_std(means)
            error = deviation / math.sqrt(len(means))
            half = t_975(len(means) - 1) * error
            figures = {
                "mean": middle,
                "median": median(means),
                "std": deviation,
                "min": min(means),
                "max": max(means),
                "se": error,
                "ci_low_95": middle - half,
                "ci_high_95": middle + half,
            }
            found |= {f"{figure}_across_repeats/mean/{name}": value for figure, value in figures.items()}
        return found

    def _repeat_entries(self) -> Iterator[dict[str, Any]]:
        for repeat in sorted(self._repeats):
            count = self._counts[repeat]
            entry: dict[str, Any] = {
                "_ng_rollout_index": _value(repeat),
                "sample_count": count,
                "missing_count": max(0, self._tasks - count),
            }
            for name, values in self._repeats[repeat].items():
                entry |= _spread(name, values)
            yield entry


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    middle, deviation = mean(ordered), sample_std(ordered)
    error = deviation / math.sqrt(len(ordered))
    half = t_975(len(ordered) - 1) * error if len(ordered) > 1 else 0.0
    return {
        f"mean/{name}": middle,
        f"median/{name}": linear_percentile(ordered, 50),
        f"std/{name}": deviation,
        f"sem/{name}": error,
        f"min/{name}": ordered[0],
        f"max/{name}": ordered[-1],
        f"p25/{name}": linear_percentile(ordered, 25),
        f"p75/{name}": linear_percentile(ordered, 75),
        f"ci_low_95/{name}": middle - half,
        f"ci_high_95/{name}": middle + half,
    }


def _five_of(columns: Iterable[tuple[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    found = {}
    for name, values in columns:
        figures = (mean(values), max(values), min(values), median(values), sample_std(values))
        found[name] = dict(zip(_STATISTICS, figures, strict=True))
    return found


def _flat(fields: Iterable[str], figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in fields if name in figures]
    return {f"{statistic}/{name}": figures[name][statistic] for statistic in _STATISTICS for name in names}


def _group_entry(task: Any, infos: list[dict[str, Any]], fields: Mapping[str, None], missing: int) -> dict[str, Any]:
    columns = {name: [float(info[name]) for info in infos if name in info] for name in fields}
    figures = _five_of((name, values) for name, values in columns.items() if values)
    expected = len(infos) + missing
    return {
        "_ng_task_index": task,
        **_flat(fields, figures),
        # What stands under these names elsewhere describes the agent; readers look for the member, not for its value.
        "sample": {"agent_ref": {"name": "agent"}},
        "num_rollouts": len(infos),
        "expected_num_rollouts": expected,
        "missing_num_rollouts": missing,
        "reward_profile_completion_pct": 100.0 * len(infos) / expected,
        "rollout_infos": infos,
    }


def _key(repeat: Any) -> tuple[bool, int, str]:
    """Return a repeat index as something that can be sorted beside others, whatever JSON it is."""
    if isinstance(repeat, int) and not isinstance(repeat, bool):
        return (False, repeat, "")
    return (True, 0, "" if repeat is None else str(repeat))


def _value(key: tuple[bool, int, str]) -> int | str | None:
    return key[1] if not key[0] else key[2] or None
