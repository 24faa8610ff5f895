"""What a step of a loop adds to the figures of the loop."""

from __future__ import annotations

import json
from pathlib import Path

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.rollouts.session import RunPlan
from gym_ray.rollouts.training.step import Step, StepPlan
from gym_ray.testing.fake_rollouts import FakePort, by_task, hang
from gym_ray.testing.waiting import until


async def test_a_step_is_told_from_before_it_opens_until_it_is_closed(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    row = {"agent_ref": {"name": "a"}, "responses_create_params": {"input": "q"}}
    source.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(3)))
    limits = CollectionSettings()
    step = Step(StepPlan(RunPlan(RunPaths.of(tmp_path / "step.jsonl"), source, RowOptions(), limits, None)))
    await step.begin()
    assert step.standing() == RunStanding()
    step.open(FakePort(None, by_task({"1": hang})))
    await until(lambda: step.standing().unstored == 2)
    now = step.standing()
    assert (now.pending, now.in_flight, now.paused) == (0, 1, False)
    step.pause()
    assert step.standing().paused
    await step.aclose()
    assert step.standing().counts() == RunStanding(unstored=2, cancelled=1)
