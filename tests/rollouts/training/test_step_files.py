"""Steps have numbers of their own, rows have ids of their step, and what a killed loop left is closed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.training.step_files import StepDirectory, step_lines

ROW = {"responses_create_params": {"input": "x"}}


def test_numbers_go_on_from_what_is_stored_and_half_finished_steps_are_closed(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    for expected in (1, 2):
        number, source = steps.next_step(step_lines([ROW]))
        assert (number, source.name) == (expected, f"step-00000{expected}_input.jsonl")
    steps.note_closed(1, "complete", {"failure": ""})
    steps.note_closed(1, "cut short", {})
    steps.close()
    again = StepDirectory(tmp_path)
    assert again.interrupted == (2,)
    assert again.next_step(step_lines([ROW]))[0] == 3
    states = [json.loads((again.paths(n).directory / "step.json").read_text())["state"] for n in (1, 2)]
    assert states == ["complete", "interrupted"]
    assert (tmp_path / "step-000002_input.jsonl").exists(), "its files stay"
    again.close()


def test_the_same_id_in_two_steps_names_two_rollouts(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    given = [steps.next_step(step_lines([ROW | {"_ng_rollout_id": "mine"}]))[1].read_text() for _ in range(2)]
    ids = [json.loads(line)["_ng_rollout_id"] for line in given]
    assert all(found.endswith("-mine") for found in ids)
    assert len(set(ids)) == 2
    steps.close()


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"x": found}
    return found


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no rows"),
        (iter(()), "no rows"),
        (None, "NoneType"),
        (ROW, "dict"),
        ("rows", "str"),
        ([ROW, 7], ":2.*int"),
        ([ROW, None], ":2.*NoneType"),
        ([{"x": object()}], ":1.*object"),
        ([ROW, {"x": float("nan")}], ":2.*JSON"),
        ([{"x": [np.int64(1)]}], ":1.*int64"),
        ([{"x": {1, 2}}], ":1.*set"),
        ([nested(100_000)], ":1.*JSON"),
        ([{"_ng_rollout_id": "a b"}], "a b"),
        ([{"_ng_rollout_id": 7}], ":1.*7"),
    ],
)
def test_what_is_no_row_is_named(rows: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        step_lines(rows)


def test_rows_may_come_from_an_iterator_and_arrive_as_they_were() -> None:
    assert [json.loads(line) for line in step_lines({**ROW, "n": n, "ü": "\ud800"} for n in range(2))] == [
        {**ROW, "n": n, "ü": "\ud800"} for n in range(2)
    ]


def test_steps_that_begin_at_once_have_numbers_of_their_own(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: steps.next_step(step_lines([ROW]))[0], range(32)))
    assert sorted(found) == list(range(1, 33))
    steps.close()


def test_one_collector_at_a_time(tmp_path: Path) -> None:
    first = StepDirectory(tmp_path)
    with pytest.raises(StorageError, match="another collector"):
        StepDirectory(tmp_path, patience_s=0)
    first.close()
    StepDirectory(tmp_path, patience_s=0).close()
