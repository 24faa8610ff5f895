"""Steps have numbers of their own, rows have ids of their step, and what a killed loop left is closed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.training.step_files import StepDirectory

ROW = {"responses_create_params": {"input": "x"}}


def test_numbers_go_on_from_what_is_stored_and_half_finished_steps_are_closed(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    for expected in (1, 2):
        number, source = steps.next_step([ROW])
        assert (number, source.name) == (expected, f"step-00000{expected}_input.jsonl")
    steps.note_closed(1, "complete", {"failure": ""})
    steps.note_closed(1, "cut short", {})
    steps.close()
    again = StepDirectory(tmp_path)
    assert again.interrupted == (2,)
    assert again.next_step([ROW])[0] == 3
    states = [json.loads((again.paths(n).directory / "step.json").read_text())["state"] for n in (1, 2)]
    assert states == ["complete", "interrupted"]
    assert (tmp_path / "step-000002_input.jsonl").exists(), "its files stay"
    again.close()


def test_the_same_id_in_two_steps_names_two_rollouts(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    given = [steps.next_step([ROW | {"_ng_rollout_id": "mine"}])[1].read_text() for _ in range(2)]
    ids = [json.loads(line)["_ng_rollout_id"] for line in given]
    assert all(found.endswith("-mine") for found in ids)
    assert len(set(ids)) == 2
    steps.close()


def test_what_is_no_row_is_named_and_takes_no_number(tmp_path: Path) -> None:
    steps = StepDirectory(tmp_path)
    for rows, problem in (
        ([], "no rows"),
        ([ROW, 7], ":2.*int"),
        ([{"x": object()}], ":1"),
        ([{"_ng_rollout_id": "a b"}], "a b"),
    ):
        with pytest.raises(InputError, match=problem):
            steps.next_step(rows)  # type: ignore[arg-type]
    assert steps.next_step([ROW])[0] == 1
    steps.close()


def test_one_collector_at_a_time(tmp_path: Path) -> None:
    first = StepDirectory(tmp_path)
    with pytest.raises(StorageError, match="another collector"):
        StepDirectory(tmp_path, patience_s=0)
    first.close()
    StepDirectory(tmp_path, patience_s=0).close()
