"""Figures of a run while it goes on, one finished attempt at a time; memory does not depend on how many there are.

Unknown is not zero: every mean carries how many rollouts it was measured on, and is null when that is none.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gym_ray.evidence.summary import RolloutSummary

__all__ = ["Distribution", "MetricsRow", "RunMetrics"]

_STEP = math.log(1.02)


class Distribution:
    """Mean and percentiles of non-negative values in buckets 2 % wide, so that a percentile is exact to 1 %."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Take one value in; negative values count as 0."""
        value = max(0.0, value)
        self.count += 1
        self._sum += value
        # Everything below a microsecond, when values are milliseconds, is one bucket.
        self._buckets[math.floor(math.log(max(value, 1e-3)) / _STEP)] += 1

    def mean(self) -> float | None:
        """Return the exact mean, None without values."""
        return round(self._sum / self.count, 3) if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Return the middle of the bucket that holds the nearest-rank percentile, None without values."""
        rank = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= max(1, rank):
                return round(math.exp((bucket + 0.5) * _STEP), 3)
        return None


@dataclass(slots=True)
class _Sum:
    """A total of known values and how many were known."""

    total: float = 0
    known: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.known += 1

    def value(self) -> float | None:
        return self.total if self.known else None

    def mean(self) -> float | None:
        return self.total / self.known if self.known else None


_MOST_CLASSES = 100
_MOST_REASONS = 100
_OTHER_REASONS = "(other reasons)"
_OTHER_CLASSES = "(other classes)"
_TOKENS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")


@dataclass(slots=True)
class _Training:
    """What became of the exact tokens of rollouts."""

    finalised: int = 0
    masked: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, reasons: tuple[str, ...] | None) -> None:
        if reasons is None:
            return
        self.finalised += 1
        self.masked += bool(reasons)
        for reason in dict.fromkeys(reasons):
            known = reason in self.reasons or len(self.reasons) < _MOST_REASONS
            self.reasons[reason if known else _OTHER_REASONS] += 1

    def to_dict(self) -> dict[str, Any]:
        reasons = dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0])))
        return {"finalised": self.finalised, "masked": self.masked, "mask_reasons": reasons}


@dataclass(slots=True)
class _Group:
    done: int = 0
    failed: int = 0
    unstored: int = 0
    retried: int = 0
    masked: int = 0
    unmeasured: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    rollouts_with_gaps: int = 0
    reward: _Sum = field(default_factory=_Sum)
    solved: int = 0
    calls: _Sum = field(default_factory=_Sum)
    tokens: dict[str, _Sum] = field(default_factory=lambda: {name: _Sum() for name in _TOKENS})
    latency: Distribution = field(default_factory=Distribution)
    training: _Training = field(default_factory=_Training)

    def add(self, summary: RolloutSummary, *, stored: bool, retried: bool) -> None:
        self._add_end(summary, stored=stored, retried=retried)
        self.gaps.update(summary.gap_codes)
        self.rollouts_with_gaps += bool(summary.gap_codes)
        self.calls.add(summary.num_calls)
        for name, total in self.tokens.items():
            total.add(getattr(summary, name))
        self.latency.add(summary.latency_ms)
        self.training.add(summary.token_mask_reasons)

    def _add_end(self, summary: RolloutSummary, *, stored: bool, retried: bool) -> None:
        if not stored:
            self.unstored += 1
            return
        if summary.failure_class is not None:
            known = summary.failure_class in self.failures or len(self.failures) < _MOST_CLASSES
            self.failures[summary.failure_class if known else _OTHER_CLASSES] += 1  # replies may name any number
            self.retried += retried
            self.failed += not retried
            return
        self.done += 1
        self.masked += summary.masked
        self.unmeasured += not summary.masked and summary.reward is None
        self.reward.add(summary.reward)
        self.solved += summary.reward is not None and summary.reward >= 1

    def to_dict(self) -> dict[str, Any]:
        measured = self.reward.known
        return {
            "rollouts": {"done": self.done, "failed": self.failed, "unstored": self.unstored, "retried": self.retried},
            "failures": dict(sorted(self.failures.items())),
            "reward": {
                "mean": self.reward.mean(),
                "measured": measured,
                "masked": self.masked,
                "unmeasured": self.unmeasured,
            },
            "pass@1": 100 * self.solved / measured if measured else None,
            "model_calls": self.calls.value(),
            "tokens": {name: total.value() for name, total in self.tokens.items()},
            "latency_ms": {
                "mean": self.latency.mean(),
                "p50": self.latency.percentile(50),
                "p90": self.latency.percentile(90),
            },
            "gaps": dict(sorted(self.gaps.items())),
            "rollouts_with_gaps": self.rollouts_with_gaps,
            "token_capture": self.training.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """One line of the table at the end of a run; None is unknown.

    Attributes:
        agent: Agent, or ``all``.
        done, failed: Rows with a result, rows whose last attempt failed.
        reward: Mean over the measured rollouts.
        pass_at_1: Percent of the measured rollouts with a reward of at least 1.
        calls, tokens_in, tokens_out: Totals.
        latency_p50_ms, latency_p90_ms: Of whole runs.
        gaps: Rollouts whose capture has a gap.
        half_width: Of the 95 % interval of ``reward``, clustered by task; None also while the run goes on.
        masked, unmeasured: Rows with a result that is not in ``reward``: masked by the verifier; without a number.
    """

    agent: str
    done: int
    failed: int
    reward: float | None
    pass_at_1: float | None
    calls: int | None
    tokens_in: int | None
    tokens_out: int | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    gaps: int
    half_width: float | None = None
    masked: int = 0
    unmeasured: int = 0


class RunMetrics:
    """Figures of one run of a collector, over everything and by agent; see :func:`~gym_ray.rollouts.metrics.aggregate`.

    ``pass@1`` here weighs rollouts equally, which equals the mean over tasks when all tasks have the same number of
    repeats.
    """

    def __init__(self) -> None:
        self._all = _Group()
        self._by_agent: dict[str, _Group] = {}

    def add(self, summary: RolloutSummary, *, stored: bool = True, retried: bool = False) -> None:
        """Take one finished attempt in.

        Args:
            summary: Its figures.
            stored: It has a record; one without is counted as such and its reward is not.
            retried: Its row runs again, so its failure is not the row's last word.
        """
        self._all.add(summary, stored=stored, retried=retried)
        group = self._by_agent.setdefault(summary.agent, _Group())
        group.add(summary, stored=stored, retried=retried)

    def requeued(self, agent: str) -> None:
        """Note that a row whose failure was counted as its last word runs again."""
        for group in (self._all, self._by_agent[agent]):
            group.failed -= 1
            group.retried += 1

    def ended(self) -> tuple[int, int, dict[str, int]]:
        """Return how many have a result, how many asked for no record, and the failures of attempts by class."""
        return self._all.done, self._all.unstored, dict(self._all.failures)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain JSON values; integers are exact, rewards and latencies are floats."""
        by_agent = {agent: self._by_agent[agent].to_dict() for agent in sorted(self._by_agent)}
        return {"overall": self._all.to_dict(), "agents": by_agent}

    def rows(self) -> list[MetricsRow]:
        """Return the table: one row an agent, and ``all`` last when there are several."""
        rows = [_row(agent, self._by_agent[agent]) for agent in sorted(self._by_agent)]
        return rows if len(rows) == 1 else [*rows, _row("all", self._all)]


def _row(agent: str, group: _Group) -> MetricsRow:
    figures = group.to_dict()
    return MetricsRow(
        agent=agent,
        done=group.done,
        failed=group.failed,
        reward=figures["reward"]["mean"],
        pass_at_1=figures["pass@1"],
        calls=figures["model_calls"],
        tokens_in=figures["tokens"]["tokens_in"],
        tokens_out=figures["tokens"]["tokens_out"],
        latency_p50_ms=figures["latency_ms"]["p50"],
        latency_p90_ms=figures["latency_ms"]["p90"],
        gaps=group.rollouts_with_gaps,
        masked=group.masked,
        unmeasured=group.unmeasured,
    )
