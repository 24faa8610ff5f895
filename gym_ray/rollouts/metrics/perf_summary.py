"""``perf_summary`` of aggregate metrics: what the ``ng_perf`` of many records says together (D116)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray.evidence.scores.numbers import finite, linear_percentile, mean, median, population_std

__all__ = ["PerfSummary"]

_TOKENS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "reasoning_tokens")
_COLUMNS = (*_TOKENS, "num_turns", "tokens_per_turn", "total_latency_ms")


class PerfSummary:
    """Takes ``ng_perf`` of one record after the other; at most 56 bytes a record."""

    def __init__(self) -> None:
        self._records = self._with_perf = self._with_tokens = 0
        self._columns = {name: array("d") for name in _COLUMNS}

    def add(self, perf: object) -> None:
        """Take the ``ng_perf`` of a record in; what is no object is none, and the record still counts."""
        self._records += 1
        if not isinstance(perf, Mapping):
            return
        self._with_perf += 1
        self._with_tokens += (_number(perf, "token_observability_coverage") or 0) > 0
        for name in (*_TOKENS, "num_turns", "total_latency_ms"):
            value = _number(perf, name)
            if value is not None:
                self._columns[name].append(value)
        turns, completed = _number(perf, "num_turns"), _number(perf, "completion_tokens")
        if turns and completed is not None:
            self._columns["tokens_per_turn"].append(completed / turns)

    def result(self) -> dict[str, Any] | None:
        """Return the summary, None when no record has ``ng_perf``; figures that nobody reported are left out."""
        if not self._with_perf:
            return None
        found: dict[str, Any] = {
            "overall_observability_coverage": self._with_perf / self._records,
            "token_observability_coverage": self._with_tokens / self._records,
        }
        ordered = {name: sorted(column) for name, column in self._columns.items()}
        for name in _TOKENS:
            if values := ordered[name]:
                found[f"mean_{name}"] = mean(values)
                found[f"median_{name}"] = _whole(median(values))
                found[f"total_{name}"] = _whole(math.fsum(values))
        found |= _turns(ordered["num_turns"])
        if values := ordered["tokens_per_turn"]:
            found |= {"mean_tokens_per_turn": mean(values), "median_tokens_per_turn": median(values)}
        if values := ordered["total_latency_ms"]:
            found |= {f"total_latency_p{p}_ms": linear_percentile(values, p) for p in (50, 90, 99)}
            found["total_latency_mean_ms"] = mean(values)
        return found


def _turns(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {}
    return {
        "mean_num_turns": mean(values),
        "median_num_turns": _whole(median(values)),
        "std_num_turns": population_std(values),
        "min_num_turns": _whole(values[0]),
        "p90_num_turns": linear_percentile(values, 90),
        "max_num_turns": _whole(values[-1]),
    }


def _number(perf: Mapping[str, Any], name: str) -> float | None:
    value = perf.get(name)
    return None if isinstance(value, bool) else finite(value)


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() else value
