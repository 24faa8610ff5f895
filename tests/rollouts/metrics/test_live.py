from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.metrics import Distribution, RunMetrics

UNKNOWN: dict[str, Any] = dict.fromkeys(
    ["reward", "failure_class", "num_calls", "tokens_in", "tokens_out", "tokens_reasoning", "tokens_total",
     "cached_tokens", "call_latency_ms"]
)  # fmt: skip


def summary(**figures: Any) -> RolloutSummary:
    given = {"rollout_id": "0-0", "agent": "a", "task": "0", "masked": False, "latency_ms": 10.0, "gap_codes": ()}
    return RolloutSummary(**{**UNKNOWN, **given, **figures})


def test_unknown_is_null_and_never_zero() -> None:
    metrics = RunMetrics()
    metrics.add(summary())
    found = metrics.to_dict()["overall"]
    assert found["reward"] == {"mean": None, "measured": 0, "masked": 0, "unmeasured": 1}
    assert found["pass@1"] is None
    assert found["model_calls"] is None
    assert set(found["tokens"].values()) == {None}
    assert metrics.rows()[0].tokens_in is None


def test_means_are_over_what_was_measured() -> None:
    metrics = RunMetrics()
    for reward in (1.0, 0.0, None, 0.5):
        metrics.add(summary(reward=reward))
    metrics.add(summary(masked=True))
    found = metrics.to_dict()["overall"]
    assert found["reward"] == {"mean": 0.5, "measured": 3, "masked": 1, "unmeasured": 1}
    assert found["pass@1"] == pytest.approx(100 / 3)
    assert found["rollouts"]["done"] == 5


def test_totals_sum_known_values_exactly() -> None:
    metrics = RunMetrics()
    metrics.add(summary(num_calls=2, tokens_in=2**53, tokens_out=None))
    metrics.add(summary(num_calls=1, tokens_in=1, tokens_out=0))
    found = metrics.to_dict()["overall"]
    assert found["model_calls"] == 3
    assert found["tokens"]["tokens_in"] == 2**53 + 1
    assert found["tokens"]["tokens_out"] == 0


def test_failures_are_counted_by_class_and_a_retried_one_is_not_the_rows_last_word() -> None:
    metrics = RunMetrics()
    metrics.add(summary(failure_class="node_lost"), retried=True)
    metrics.add(summary(failure_class="agent_timeout", num_calls=1, gap_codes=("g",)))
    metrics.add(summary(reward=1.0), stored=False)
    found = metrics.to_dict()["overall"]
    assert found["rollouts"] == {"done": 0, "failed": 1, "unstored": 1, "retried": 1}
    assert found["failures"] == {"agent_timeout": 1, "node_lost": 1}
    assert found["reward"]["measured"] == 0
    assert (found["gaps"], found["rollouts_with_gaps"]) == ({"g": 1}, 1)


def test_rollouts_whose_tokens_cannot_be_used_are_counted_with_every_reason() -> None:
    metrics = RunMetrics()
    assert metrics.to_dict()["overall"]["token_capture"] == {"finalised": 0, "masked": 0, "mask_reasons": {}}
    metrics.add(summary(reward=1.0, token_mask_reasons=()))
    metrics.add(summary(masked=True, token_mask_reasons=("b", "b", "a")))
    metrics.add(summary(masked=True, token_mask_reasons=("b",), agent="other"))
    metrics.add(summary(reward=1.0))
    found = metrics.to_dict()
    counted = found["overall"]["token_capture"]
    assert counted == {"finalised": 3, "masked": 2, "mask_reasons": {"b": 2, "a": 1}}
    assert list(counted["mask_reasons"]) == ["b", "a"], "the commonest first"
    assert found["agents"]["other"]["token_capture"] == {"finalised": 1, "masked": 1, "mask_reasons": {"b": 1}}


def test_agents_have_their_own_figures_and_one_row_each() -> None:
    metrics = RunMetrics()
    assert metrics.rows() != []
    metrics.add(summary(agent="b", reward=1.0))
    assert [row.agent for row in metrics.rows()] == ["b"]
    metrics.add(summary(agent="a", reward=0.0))
    assert [(row.agent, row.reward, row.done) for row in metrics.rows()] == [
        ("a", 0.0, 1),
        ("b", 1.0, 1),
        ("all", 0.5, 2),
    ]
    json.dumps(metrics.to_dict(), allow_nan=False)


@given(values=st.lists(st.floats(0.01, 1e8), min_size=1, max_size=200), percent=st.sampled_from([50, 90, 99]))
def test_percentiles_are_within_a_hundredth_of_the_nearest_rank(values: list[float], percent: int) -> None:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    ranked = sorted(values)
    exact = ranked[max(1, -(-len(ranked) * percent // 100)) - 1]
    assert distribution.percentile(percent) == pytest.approx(exact, rel=0.0105, abs=0.001)
    assert distribution.mean() == pytest.approx(sum(values) / len(values), abs=0.001)


def test_a_distribution_without_values_says_nothing() -> None:
    assert Distribution().mean() is None
    assert Distribution().percentile(50) is None


def test_odd_latencies_do_not_break_a_distribution() -> None:
    distribution = Distribution()
    for value in (0.0, -5.0, 1e300):
        distribution.add(value)
    assert distribution.count == 3
    assert distribution.percentile(50) == pytest.approx(0.001, rel=0.02)


def test_memory_does_not_depend_on_the_number_of_rollouts() -> None:
    metrics = RunMetrics()

    def add(count: int) -> int:
        for n in range(count):
            reasons = (f"reason {n}",)
            figures = {"num_calls": n, "tokens_in": n, "latency_ms": float(n % 997 + 1)}
            metrics.add(summary(reward=1.0, token_mask_reasons=reasons, **figures))
        return sys.getallocatedblocks()

    assert add(3_000) - add(2_000) < 200


def test_memory_does_not_depend_on_how_many_failure_classes_replies_invent() -> None:
    metrics = RunMetrics()
    for n in range(1_000):
        metrics.add(summary(failure_class=f"class {n}"))
    failures = metrics.to_dict()["overall"]["failures"]
    assert len(failures) == 101
    assert failures["(other classes)"] == 900
    assert sum(failures.values()) == 1_000
