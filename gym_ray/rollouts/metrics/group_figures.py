"""Figures of one group of rollouts: the whole run, one agent, or one group of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gym_ray.evidence.scores.numbers import finite
from gym_ray.evidence.scores.pass_at_k import PassMajority
from gym_ray.rollouts.metrics.intervals import ClusteredMean
from gym_ray.rollouts.metrics.live import Distribution
from gym_ray.rollouts.metrics.outcome_table import RolloutOutcome
from gym_ray.rollouts.metrics.scoring import AggregationOptions, scored_reply

__all__ = ["GroupFigures"]

_TOKENS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")
_MOST_NAMES = 100
_OTHERS = "(others)"


class _Known:
    """A sum of what was reported, and of how many it was."""

    def __init__(self) -> None:
        self._total: float = 0
        self._known = 0

    def add(self, value: object) -> None:
        if not isinstance(value, bool) and finite(value) is not None:
            self._total += value  # type: ignore[operator]  # a number, as finite says; whole ones stay exact
            self._known += 1

    def to_dict(self) -> dict[str, Any]:
        return {"total": self._total if self._known else None, "reported": self._known}


class GroupFigures:
    """Takes tasks one after the other; 32 bytes a task.

    Every attempt's calls and tokens count, also those of attempts that failed; rewards and times are of the rollouts
    that were done, and of the zeros that the options ask for.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._gaps: Counter[str] = Counter()
        self._mask_reasons: Counter[str] = Counter()
        self._reward, self._solved = ClusteredMean(), ClusteredMean()
        self._passed = PassMajority(whole=False)
        self._calls = _Known()
        self._tokens = {name: _Known() for name in _TOKENS}
        self._latency = Distribution()

    def add_task(self, task: Any, rollouts: Sequence[RolloutOutcome], options: AggregationOptions) -> None:
        """Take the rollouts of one task that belong to the group in, sorted by repeat."""
        if not rollouts:
            return
        self._counts["tasks"] += 1
        scored: list[dict[str, Any]] = []
        for rollout in rollouts:
            self._count(rollout)
            reply = scored_reply(task, rollout, options)
            if reply is None:
                continue
            self._counts["counted_as_zero"] += rollout.state != "done"
            if reply.get("mask_sample"):
                continue
            if finite(reply.get("reward")) is None:
                self._counts["unmeasured"] += 1
                continue
            scored.append(reply)
        rewards = [float(reply["reward"]) for reply in scored]
        solved = [float(reward >= 1) for reward in rewards]
        self._reward.add_task(rewards)
        self._solved.add_task(solved)
        self._passed.add_task([{**reply, "reward": own} for reply, own in zip(scored, solved, strict=True)])

    def _count(self, rollout: RolloutOutcome) -> None:
        self._counts[rollout.state] += 1
        self._counts["retried"] += len(rollout.failures)
        self._counts["replaced_records"] += rollout.duplicates
        summary = rollout.summary
        if rollout.state == "failed" and summary is not None:
            _count_names(self._failures, [summary.get("failure_class")])
        if rollout.state == "done" and summary is not None:
            self._counts["masked"] += bool(summary.get("masked"))
            latency = finite(summary.get("latency_ms"))
            if latency is not None:
                self._latency.add(latency)
        for attempt in (*rollout.failures, *((summary,) if summary is not None else ())):
            self._count_attempt(attempt)

    def _count_attempt(self, summary: Mapping[str, Any]) -> None:
        self._calls.add(summary.get("num_calls"))
        for name, known in self._tokens.items():
            known.add(summary.get(name))
        gaps = summary.get("gap_codes") or ()
        _count_names(self._gaps, gaps)
        self._counts["with_gaps"] += bool(gaps)
        reasons = summary.get("token_mask_reasons")
        if reasons is not None:
            self._counts["tokens_finalised"] += 1
            self._counts["tokens_masked"] += bool(reasons)
            _count_names(self._mask_reasons, dict.fromkeys(reasons))

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON values; null is unknown, percent is of 100, times are milliseconds."""
        counts = self._counts
        names = ("done", "failed", "missing", "masked", "unmeasured", "counted_as_zero", "retried", "replaced_records")
        return {
            "tasks": counts["tasks"],
            "rollouts": {name: counts[name] for name in names},
            "failures": _sorted(self._failures),
            "reward": self._reward.estimate().to_dict(),
            "solved": self._solved.estimate().to_dict(),
            "pass_at_k": self._passed.pass_at_k(),
            "majority_at_k": self._passed.majority_at_k(),
            "model_calls": self._calls.to_dict(),
            "tokens": {name: known.to_dict() for name, known in self._tokens.items()},
            "latency_ms": {
                "mean": self._latency.mean(),
                **{f"p{percent}": self._latency.percentile(percent) for percent in (50, 90, 99)},
                "reported": self._latency.count,
            },
            "gaps": _sorted(self._gaps),
            "attempts_with_gaps": counts["with_gaps"],
            "token_capture": {
                "finalised": counts["tokens_finalised"],
                "masked": counts["tokens_masked"],
                "mask_reasons": _sorted(self._mask_reasons),
            },
        }


def _count_names(counter: Counter[str], names: Iterable[object]) -> None:
    """Count names that replies gave; any number of different ones becomes few."""
    for name in names:
        known = isinstance(name, str) and (name in counter or len(counter) < _MOST_NAMES)
        counter[str(name) if known else _OTHERS] += 1


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda pair: (-pair[1], pair[0])))
