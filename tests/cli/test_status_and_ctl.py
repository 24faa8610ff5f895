"""The commands on live runs, against a desk that really answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gym_ray.cli.app import app
from gym_ray.errors import GymRayError
from gym_ray.rollouts.control.control_files import ControlPlaces
from gym_ray.rollouts.control.desk import ControlDesk
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, by_task, failing, hang
from gym_ray.testing.waiting import until


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


async def test_a_run_is_watched_and_steered_from_the_command_line(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 4)
    port = FakePort(run.outputs, by_task({"0": failing("agent_run_error"), "1": hang}), capacity=2)
    collection = run.collection(port)
    desk = ControlDesk(run.paths, collection, interval_s=0.02)
    await desk.start()
    task = asyncio.create_task(collection.run())
    await until(lambda: collection.progress().failed == 1 and collection.progress().done == 2)
    output = run.paths.output
    paused = await asyncio.to_thread(command, "ctl", "pause", output)
    assert (paused.exit_code, collection.progress().paused) == (0, True)
    refused = await asyncio.to_thread(
        command, "ctl", "cancel", output, "--rollout", "3-0", "--rollout", "1-0", "--json"
    )
    answer = json.loads(refused.output)
    assert (refused.exit_code, answer["done"], list(answer["refused"])) == (2, ["1-0"], ["3-0"])
    await desk.aclose()
    collection.stop()
    await task
    shown = command("status", output)
    assert shown.exit_code == 0
    assert "over, incomplete" in shown.output
    assert "agent_run_error: 1" in shown.output
    assert json.loads(command("status", output, "--json").output)["progress"]["done"] == 2
    value = json.loads(ControlPlaces.of(run.paths).status.read_text())
    ControlPlaces.of(run.paths).status.write_text(json.dumps({**value, "state": "running", "at": value["at"] - 60}))
    silent = command("status", output)
    assert (silent.exit_code, "no word since" in silent.output) == (2, True)
    run.close()


@pytest.mark.parametrize("words", [["status"], ["ctl", "pause"]])
def test_a_path_that_is_no_run_is_refused(tmp_path: Path, words: list[str]) -> None:
    for place in (tmp_path, tmp_path / "none.jsonl"):
        result = command(*words, place)
        assert isinstance(result.exception, GymRayError)
        assert "no run" in str(result.exception)
