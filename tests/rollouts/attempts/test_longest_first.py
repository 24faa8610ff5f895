from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.attempts.longest_first import elapsed_seconds, longest_first
from gym_ray.rollouts.run_files.run_index import IndexLog
from gym_ray.testing.begun_run import BegunRun


@pytest.mark.parametrize(
    ("record", "elapsed_s"),
    [
        ({"elapsed_seconds": 5}, 5.0),
        ({"response": {"metadata": {"elapsed_seconds": 2.5}}}, 2.5),
        ({"elapsed_seconds": 5, "response": {"metadata": {"elapsed_seconds": 9}}}, 5.0),
        ({"elapsed_seconds": 0, "response": {"metadata": {"elapsed_seconds": 9}}}, 9.0),
        *(({"elapsed_seconds": value}, None) for value in (0, -1, "5", True, None)),
        ({}, None),
        ({"response": []}, None),
        ({"response": {"metadata": "x"}}, None),
    ],
)
def test_a_failure_may_say_how_long_it_took(record: dict[str, Any], elapsed_s: float | None) -> None:
    assert elapsed_seconds(record) == elapsed_s


async def store(run: BegunRun, index: IndexLog, file: Any, ordinal: int, attempt: int, **record: Any) -> None:
    await index.append(ordinal, attempt, run.outputs.append(file, json.dumps(record).encode()))


async def test_rows_go_by_the_longest_of_their_failures_and_the_rest_keep_their_order(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 6)
    with IndexLog(run.paths.index) as index:
        await store(run, index, "failures", 1, 0, elapsed_seconds=5)
        await store(run, index, "main", 2, 0, elapsed_seconds=500)
        await store(run, index, "failures", 3, 0, elapsed_seconds=50)
        await store(run, index, "failures", 3, 1, elapsed_seconds=2)
        await store(run, index, "failures", 4, 0)
        await store(run, index, "failures", 5, 0, elapsed_seconds=5)
    order = longest_first(run.paths, 6)
    run.close()
    assert order is not None
    assert list(order) == [3, 1, 5, 0, 2, 4]


async def test_without_times_there_is_no_order(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 2)
    assert longest_first(run.paths, 2) is None
    with IndexLog(run.paths.index) as index:
        await store(run, index, "failures", 1, 0, reward=0)
    assert longest_first(run.paths, 2) is None
    run.close()
