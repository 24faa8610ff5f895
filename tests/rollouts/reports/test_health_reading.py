from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_ray.rollouts.reports.health_reading import HealthRules, _processes, check_stored_line
from gym_ray.rollouts.run_paths import RunPaths


@pytest.mark.parametrize(
    ("cpus", "asked", "ranges", "processes"),
    [
        (64, None, 10_000, 8),
        (2, None, 10_000, 2),
        (64, None, 70, 2),
        (64, None, 3, 1),
        (64, None, 0, 1),
        (1, 16, 10_000, 16),
        (64, 16, 3, 3),
        (64, 16, 0, 1),
    ],
)
def test_as_many_processes_help_as_there_are_cpus_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, cpus: int, asked: int | None, ranges: int, processes: int
) -> None:
    """D110: little work gets one, and nobody gets more than there is work for."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    assert _processes(asked, ranges) == processes


def test_a_line_that_is_no_json_says_why_in_few_words(tmp_path: Path) -> None:
    answer = check_stored_line(RunPaths.of(tmp_path / "out.jsonl"), b"{" + b"x" * 10_000, HealthRules())
    assert isinstance(answer, str)
    assert answer.startswith("the line is not JSON: ")
    assert len(answer) < 600
