"""One collector that is used in every wrong way: bad rows, slow consumers, killed servers, and calls after its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import ClusterError, InputError, SettingsError
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SPACE = "gym-ray/room"
AT_ONCE = 4
ROOM = 100_000
STEERED = Path(__file__).parent / "agents" / "steered_agent.py"
SETTINGS = f"""
model_endpoint_timeout_s: 0
model_call_capture_dir: DIRECTORY/model-calls
observability_enabled: true
num_rollout_workers: 1
policy_model:
  responses_api_models:
    vllm_model: {{base_url: "UPSTREAM/v1", model: served, dialects: [chat], scale_out: true}}
trained:
  responses_api_agents:
    callable_agent: {{callable: "{STEERED}:agent", token_id_capture: true}}
steered:
  responses_api_agents:
    callable_agent: {{callable: "{STEERED}:agent"}}
token_id_capture: {{enabled: true, dir: DIRECTORY/tokens}}
"""


def row(agent: str = "steered", **more: Any) -> dict[str, Any]:
    return {"agent_ref": {"name": agent}, "responses_create_params": {"input": "x"}, **more}


def wait(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def loop(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from gym_ray.actors import RolloutCollector

    directory = tmp_path_factory.mktemp("room")
    answers = ([*spelled(f"answer {number}"), END] for number in itertools.count())
    with served(FakeUpstream(FakeVllm(answers).script)) as url:  # type: ignore[arg-type]
        settings = directory / "settings.yaml"
        settings.write_text(SETTINGS.replace("UPSTREAM", url).replace("DIRECTORY", str(directory)))
        with RolloutCollector.start(
            settings,
            output_dir=directory / "steps",
            cache_dir=directory,
            namespace=SPACE,
            max_in_flight=AT_ONCE,
            max_undelivered_bytes=ROOM,
            max_staleness=1,
            environ={},
        ) as collector:
            collector.set_weight_version(5)
            yield collector


def test_what_cannot_run_is_named_before_anything_runs(loop: Any, tmp_path: Path) -> None:
    good = row(begun=str(tmp_path))
    for given, problem in (
        ([], "no rows"),
        (None, "NoneType"),
        ([good, 7], ":2.*int"),
        ([good, row(x=float("nan"))], ":2.*JSON"),
        ([good, row("nobody")], ":2.*nobody"),
        ([good | {"_ng_rollout_id": "same"}] * 2, ":2.*same"),
    ):
        with pytest.raises(InputError, match=problem):
            list(loop.collect(given))
    for limits in ({"timeout_s": 0}, {"rollout_timeout_s": -1}, {"group_timeout_s": float("nan")}, {"timeout_s": "1"}):
        with pytest.raises(SettingsError, match=next(iter(limits))):
            list(loop.collect([good], **limits))
    assert loop.status()["steps"] == {}
    assert not list(tmp_path.iterdir()), "nothing ran"
    unmeasured, fine = loop.collect_batch([row(reward="nan"), good]).results
    assert (unmeasured.masked, unmeasured.reward, unmeasured.reasons) == (True, None, ("agent_run_error",)), (
        "NaN is no JSON"
    )
    assert (fine.masked, fine.reward) == (False, 1.0)


def test_no_more_run_at_once_than_may(loop: Any, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    begun.mkdir()
    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(loop.collect_batch, [row(begun=str(begun), gate=str(gate)) for _ in range(12)])
        wait(lambda: len(list(begun.iterdir())) >= AT_ONCE)
        assert [step["undecided"] for step in loop.status()["steps"].values()] == [12]
        assert len(list(begun.iterdir())) == AT_ONCE
        gate.touch()
        assert len(batch.result().usable) == 12


def test_a_slow_consumer_keeps_more_from_starting_and_may_leave(loop: Any, tmp_path: Path) -> None:
    size, count = 30_000, 40
    results = loop.collect([row(begun=str(tmp_path), says=size) for _ in range(count)])
    next(results)
    (number,) = loop.status()["steps"]
    wait(lambda: loop.status()["steps"][number]["undelivered_bytes"] >= ROOM)
    held = loop.status()["steps"][number]["undelivered_bytes"]
    assert held < ROOM + 2 * AT_ONCE * (size + 5_000)
    assert len(list(tmp_path.iterdir())) < count
    results.close()
    wait(lambda: number not in loop.status()["steps"])
    assert len(list(tmp_path.iterdir())) < count, "who leaves wants no more of it"
    assert len(loop.collect_batch([row()]).usable) == 1


def test_steps_run_at_once_and_mix_nothing(loop: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        batches = list(threads.map(loop.collect_batch, [[row(n=n) for n in range(8)] for _ in range(2)]))
    assert [len(batch.usable) for batch in batches] == [8, 8]
    assert len({result.rollout_id for batch in batches for result in batch.results}) == 16


def test_who_cancels_waits_for_no_straggler(loop: Any, tmp_path: Path) -> None:
    async def cut_off() -> None:
        async def take() -> list[Any]:
            return [item async for item in loop.acollect([row(begun=str(tmp_path), gate=str(tmp_path / "never"))])]

        taking = asyncio.create_task(take())
        await asyncio.to_thread(wait, lambda: list(tmp_path.iterdir()))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(cut_off())
    wait(lambda: loop.status()["steps"] == {})


def test_a_model_server_that_is_killed_knows_the_weights_when_it_is_back(loop: Any, tmp_path: Path) -> None:
    import ray

    from gym_ray.actors.calls import get

    (name,) = (
        item["name"]
        for item in ray.util.list_named_actors(all_namespaces=True)
        if item["namespace"] == SPACE and item["name"].startswith("model-policy_model")
    )
    server = ray.get_actor(name, namespace=SPACE)
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    begun.mkdir()
    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(
            loop.collect_batch, [row("trained", calls=True, begun=str(begun), gate=str(gate)) for _ in range(2)]
        )
        wait(lambda: len(list(begun.iterdir())) == 2)
        before = get(server.health.remote(), 60).pid
        os.kill(before, signal.SIGKILL)

        def back() -> bool:
            try:
                health = get(server.health.remote(), 60)
            except ClusterError:
                return False
            return bool(health.ready and health.pid != before)

        wait(back)
        gate.touch()
        results = batch.result().results
    assert [result.reasons for result in results] == [(), ()]
    assert [result.tokens.column("oldest_weight_version").to_pylist() for result in results] == [[5], [5]]


def test_rows_of_an_earlier_epoch_are_masked(loop: Any, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    begun.mkdir()
    with ThreadPoolExecutor(1) as thread:
        rows = [row("trained", calls=True, begun=str(begun), gate=str(gate)), row(begun=str(begun), gate=str(gate))]
        batch = thread.submit(loop.collect_batch, rows)
        wait(lambda: len(list(begun.iterdir())) == 2)
        with pytest.raises(SettingsError, match="4 goes back behind 5"):
            loop.set_weight_version(4)
        loop.set_weight_version(4, new_epoch=True)
        gate.touch()
        old = batch.result().results
    assert [result.reasons for result in old] == [("earlier_epoch",)] * 2
    assert [result.reward for result in old] == [None, None]
    fresh = loop.collect_batch([row("trained", calls=True)])
    assert fresh.tokens.column("oldest_weight_version").to_pylist() == [4]
    assert len(fresh.usable) == 1


def test_a_closed_collector_says_so_and_leaves_the_trainers_ray_alone(loop: Any, tmp_path: Path) -> None:
    import ray

    class Trainer:
        def learns(self) -> str:
            return "still"

    mine = ray.remote(num_cpus=0)(Trainer).options(name="trainer").remote()  # type: ignore[call-overload]
    began = loop.collect([row(), row(gate=str(tmp_path / "never"))])
    assert next(began).reward == 1.0
    loop.close()
    loop.close()
    assert [item.reasons for item in began] == [("collector_lost",)]
    for use in (lambda: list(loop.collect([row()])), loop.status, loop.pause, lambda: loop.set_weight_version(6)):
        with pytest.raises(ClusterError, match="closed"):
            use()
    assert ray.is_initialized()
    assert ray.get(mine.learns.remote()) == "still"
    assert not [item for item in ray.util.list_named_actors(all_namespaces=True) if item["namespace"] == SPACE]
    ray.kill(mine)
    notes = sorted((loop._loop._dir).glob("step-*.run/step.json"))
    states = {json.loads(note.read_text())["state"] for note in notes}
    assert states == {"complete", "cut short", "refused"}
