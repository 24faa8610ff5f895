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


async def test_each_benchmark_of_a_job_that_is_under_way_is_steered(tmp_path: Path) -> None:
    runs, desks, tasks = [], [], []
    for name in ("first", "over", "second"):
        (tmp_path / name / "artifacts").mkdir(parents=True)
        (tmp_path / name / "logs").mkdir()
        run = BegunRun(tmp_path / name / "artifacts", 2, output="rollouts.jsonl")
        collection = run.collection(FakePort(run.outputs, hang, capacity=2))
        runs.append((run, collection))
        desks.append(ControlDesk(run.paths, collection, interval_s=0.02))
        await desks[-1].start()
        tasks.append(asyncio.create_task(collection.run()))
    runs[1][1].stop()
    await tasks[1]
    await desks[1].aclose()
    (tmp_path / "not-begun").mkdir()
    (tmp_path / "gym-job.json").write_text("{}")
    result = await asyncio.to_thread(command, "ctl", "pause", tmp_path, "--json")
    assert result.exit_code == 0
    assert [json.loads(line)["name"] for line in result.output.splitlines()] == ["first", "second"]
    assert [collection.progress().paused for _, collection in runs] == [True, False, True]
    await until(lambda: json.loads(ControlPlaces.of(runs[0][0].paths).status.read_text())["progress"]["paused"])
    shown = await asyncio.to_thread(command, "status", tmp_path, "--json")
    states = {(one := json.loads(line))["name"]: (one["state"], one["in_flight"]) for line in shown.output.splitlines()}
    assert states == {"first": ("running", 2), "over": ("over", 0), "second": ("running", 2)}
    desks[0]._closed.set_result(None)  # as if its process had died: no last word
    await asyncio.wait({desks[0]._task})  # type: ignore[arg-type]
    desks[0]._task = None
    result = await asyncio.to_thread(command, "ctl", "resume", tmp_path, "--timeout", 1)
    assert (result.exit_code, runs[2][1].progress().paused) == (2, False)
    assert "first: " in result.output
    assert "nobody answers" in result.output
    assert "second: resume done" in result.output
    for (run, collection), task, desk in zip(runs, tasks, desks, strict=True):
        collection.stop()
        await task
        await desk.aclose()
        run.close()
    for place in (tmp_path / "over" / "artifacts" / "rollouts.jsonl", tmp_path / "over"):
        refused = command("ctl", "pause", place)
        assert isinstance(refused.exception, GymRayError)
        assert "no run" in str(refused.exception)


async def test_a_run_that_never_said_where_it_stands_is_told_by_its_files(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 3)
    collection = run.collection(FakePort(run.outputs, by_task({"0": failing("agent_run_error")})))
    await collection.run()
    shown = command("status", run.paths.output)
    assert shown.exit_code == 2
    assert "3 rows, 2 records, 1 failed attempts; whether it goes on is not known" in shown.output
    found = json.loads(command("status", run.paths.output, "--json").output)
    assert (found["state"], found["records"], found["failed_attempts"]) == ("unknown", 2, 1)
    with run.paths.output.open("ab") as output:
        output.write(b"{}\n")
    assert command("status", run.paths.output).exit_code == 0
    refused = command("ctl", "pause", run.paths.output)
    assert "no run that can be asked" in str(refused.exception)
    run.close()
