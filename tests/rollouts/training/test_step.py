"""A step decides and delivers each rollout once: answers that were lost, room for results, thousands of rows."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.rollouts.training.step import Step, StepPlan
from gym_ray.testing.fake_rollouts import FakePort, answer, by_task, hang
from gym_ray.testing.waiting import until

ROW = {"agent_ref": {"name": "a"}, "responses_create_params": {"input": "q"}}


def begun(tmp_path: Path, rows: list[Mapping[str, Any]], at_once: int = 8, *, unique: bool = True, **plan: Any) -> Step:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({**ROW, **row}) + "\n" for row in rows))
    options = RowOptions(agents=("a",), unique_rollout_ids=unique)
    limits = CollectionSettings(num_samples_in_parallel=at_once)
    run = RunPlan(RunPaths.of(tmp_path / "step.jsonl"), source, options, limits, None)
    return Step(StepPlan(run, **plan))


async def delivered(step: Step, most: int = 64) -> list[Any]:
    found: list[Any] = []
    while True:
        taken = await step.take(most, 30, len(found))
        found += [outcome for unit in taken.units for outcome in unit]
        if taken.over:
            return found


async def test_an_answer_that_was_lost_is_given_again_until_another_one_is_asked_for(tmp_path: Path) -> None:
    step = begun(tmp_path, [{"n": n} for n in range(4)])
    await step.begin()
    step.open(FakePort(None, answer))
    await until(lambda: step.standing().unstored == 4)
    first = await step.take(1, 30, 0)
    assert (await step.take(64, 30, 0)).units == first.units
    second = await step.take(2, 30, 1)
    last = await step.take(64, 30, 3)
    assert await step.take(64, 30, 3) is last
    assert last.over
    ordinals = [one.requested.ordinal for taken in (first, second, last) for unit in taken.units for one in unit]
    assert sorted(ordinals) == [0, 1, 2, 3]
    await step.aclose()


async def test_two_questions_at_once_get_one_answer(tmp_path: Path) -> None:
    step = begun(tmp_path, [{}])
    await step.begin()
    asking = [asyncio.create_task(step.take(1, 30, 0)) for _ in range(2)]  # the first one's answer goes nowhere
    await asyncio.sleep(0)
    step.open(FakePort(None, answer))
    one, other = await asyncio.gather(*asking)
    assert one.units == other.units
    await step.aclose()


async def test_five_thousand_rows_are_each_delivered_once(tmp_path: Path) -> None:
    step = begun(tmp_path, [{"n": n} for n in range(5000)], at_once=64)
    requested = await step.begin()
    assert [item.row_index for item in requested] == list(range(5000))
    step.open(FakePort(None, answer))
    found = await delivered(step)
    assert sorted(one.requested.ordinal for one in found) == list(range(5000))
    assert len({one.rollout_id for one in found}) == 5000
    await step.aclose()


async def test_what_waits_to_be_taken_keeps_more_from_starting(tmp_path: Path) -> None:
    step = begun(tmp_path, [{} for _ in range(20)], at_once=2, max_undelivered_bytes=1)
    await step.begin()
    outputs = RunOutputs(step.plan.run.paths)
    port = FakePort(outputs, answer)
    step.open(port)
    await until(lambda: step.progress()[2] > 0)
    for _ in range(50):  # turns of the loop in which more could begin
        await asyncio.sleep(0)
    assert 1 <= len(port.times("run")) <= 4, "what ran at once, and what began while that was joined"
    assert Counter(one.requested.ordinal for one in await delivered(step)) == Counter(range(20))
    assert step.progress()[2] == 0
    await step.aclose()
    outputs.close()


async def test_a_straggler_holds_its_place_and_nothing_else(tmp_path: Path) -> None:
    step = begun(tmp_path, [{"n": n} for n in range(6)], at_once=2, unique=False, timeout_s=1.0)
    await step.begin()
    step.open(FakePort(None, by_task({"0": hang})))
    found = {one.requested.ordinal: one.reasons for one in await delivered(step)}
    assert found.pop(0) == ("deadline",)
    assert len(found) == 5
    await step.aclose()


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"_ng_rollout_id": "same"}, "same"),
        ({"agent_ref": {"name": "nobody"}}, "nobody"),
        ({"agent_ref": 7}, "agent_ref"),
    ],
)
async def test_a_row_that_cannot_run_is_named_before_any_runs(tmp_path: Path, bad: Any, problem: str) -> None:
    step = begun(tmp_path, [{"_ng_rollout_id": "same"}, bad])
    with pytest.raises(InputError, match=rf":2.*{problem}|{problem}.*:2"):
        await step.begin()
    await step.aclose()
