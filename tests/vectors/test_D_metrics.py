from __future__ import annotations

from typing import Any

import pytest

from gym_ray.rollouts.metrics.pass_at_k import pass_majority
from gym_ray.rollouts.metrics.perf_summary import perf_summary
from gym_ray.rollouts.metrics.reply_metrics import default_metrics


def close(found: Any, expected: Any, path: str = "$") -> None:
    """The same JSON value; numbers that were computed may differ in their last digits."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), path
        assert sorted(found) == sorted(expected), path
        for key, value in expected.items():
            close(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), path
        assert len(found) == len(expected), path
        for index, value in enumerate(expected):
            close(found[index], value, f"{path}[{index}]")
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        assert isinstance(found, int | float), path
        assert not isinstance(found, bool), path
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-12), path
    else:
        assert found == expected, path


def test_vector(case: dict[str, Any]) -> None:
    if case["kind"] == "perf_summary":
        found: Any = perf_summary(case["ng_perf"], case["total_rollouts"])
    elif case["kind"] == "aggregate":
        found = default_metrics(case["verify_responses"])
    else:
        assert case["kind"] == "pass_majority"
        found = pass_majority(case["tasks"])
    close(found, case["expected"])
