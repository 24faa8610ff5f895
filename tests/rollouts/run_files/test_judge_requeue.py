from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.run_files.judge_requeue import REQUEUED_FROM, requeue_invalid_judge
from gym_ray.rollouts.run_files.run_log import line_digest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.dying_calls import DiedError, DiesAfter
from gym_ray.testing.written_runs import UnsyncedCalls, WrittenRun, resumed


def story(root: Path) -> RunPaths:
    with WrittenRun(root, 4, calls=UnsyncedCalls()) as run:
        run.finish(0, 0, reward=1.0)
        run.finish(1, 0, reward=0.0, invalid_judge_response=True, response={"id": "r"})
        run.finish(2, 0, reward=1.0, invalid_judge_response=False, text='"invalid_judge_response": true')
        run.finish(3, 1, reward=0.0, invalid_judge_response=1)
        return run.paths


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_results_without_a_valid_verdict_become_failures_and_run_again(tmp_path: Path) -> None:
    paths = story(tmp_path)
    main = paths.output.read_bytes().splitlines()
    assert requeue_invalid_judge(paths) == 2
    assert paths.output.read_bytes().splitlines() == [main[0], main[2]]
    moved = lines(paths.failures)
    assert [(m["_ng_task_index"], m["_ng_failure_class"]) for m in moved] == [
        (1, "judge_invalid"),
        (3, "judge_invalid"),
    ]
    assert moved[0]["response"] == {"id": "r"}
    assert moved[0][REQUEUED_FROM] == line_digest(main[1]).hex()
    state = resumed(paths).state
    assert list(state.done) == [1, 0, 1, 0]
    assert list(state.attempts) == [1, 1, 1, 2]
    assert list(state.failures) == [0, 1, 0, 1]
    assert requeue_invalid_judge(paths) == 0
    assert lines(paths.failures) == moved


def test_one_result_that_stands_there_twice_is_one_failure(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with paths.output.open("ab") as file:
        file.write(paths.output.read_bytes().splitlines(keepends=True)[1])
    assert requeue_invalid_judge(paths) == 3
    assert [failure["_ng_task_index"] for failure in lines(paths.failures)] == [1, 3]


def test_a_move_that_dies_anywhere_can_be_done_again_and_moves_each_once(tmp_path: Path) -> None:
    for step in range(30):
        root = tmp_path / str(step)
        root.mkdir()
        paths = story(root)
        whole = lines(paths.output)
        try:
            requeue_invalid_judge(paths, calls=DiesAfter(step))
        except DiedError:
            there = {record["_ng_task_index"] for record in [*lines(paths.output), *lines(paths.failures)]}
            assert there == {0, 1, 2, 3}, "each record is in one file at least"
            assert lines(paths.output) in (whole, [whole[0], whole[2]])
        else:
            assert step > 6
            return
        requeue_invalid_judge(paths)
        assert [record["_ng_task_index"] for record in lines(paths.failures)] == [1, 3]
        assert list(resumed(paths).state.done) == [1, 0, 1, 0]
    pytest.fail("a move never came to its end")
