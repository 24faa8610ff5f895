"""The exit code of several benchmarks: the worst wins."""

from __future__ import annotations

import pytest

from gym_ray.submission.job_states import BenchmarkState, exit_code_of


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["complete", "complete"], 0),
        (["complete", "incomplete"], 2),
        (["incomplete", "stopped"], 130),
        (["stopped", "failed", "complete"], 1),
        (["complete", "running"], 2),
        (["queued"], 2),
        (["preparing", "stopped"], 130),
        ([], 1),
    ],
)
def test_the_worst_benchmark_decides(states: list[BenchmarkState], code: int) -> None:
    assert exit_code_of(states) == code
