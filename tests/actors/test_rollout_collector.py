"""The collector that training loops call, on a real cluster: tokens as views, deadlines, restarts, killed processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import CaptureError, SettingsError
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.token_id_capture.token_table import token_arrays

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
AGENTS = Path(__file__).parent / "agents"

SETTINGS = f"""
model_endpoint_timeout_s: 0
num_rollout_workers: 1
num_repeats: 2
policy_model:
  responses_api_models:
    vllm_model: {{base_url: "UPSTREAM/v1", model: served, dialects: [chat], scale_out: true}}
trained:
  responses_api_agents:
    callable_agent: {{callable: "{AGENTS / "training_agent.py"}:agent", token_id_capture: true}}
token_id_capture: {{enabled: true, dir: TOKENS}}
"""


def rows(*what: str, agent: str = "trained") -> list[dict[str, Any]]:
    return [{"agent_ref": {"name": agent}, "responses_create_params": {"input": text}} for text in what]


def in_store(address: int) -> bool:
    """Whether an address lies in a mapping of the object store."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds and "plasma" in line and int(bounds[1], 16) <= address < int(bounds[2], 16):
            return True
    return False


@pytest.fixture
def start(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> Callable[..., Any]:
    answers = ([*spelled(f"answer {number}"), END] for number in itertools.count())
    url = serve(FakeUpstream(FakeVllm(answers).script))  # type: ignore[arg-type]
    settings = write_settings(SETTINGS.replace("UPSTREAM", url).replace("TOKENS", str(tmp_path / "tokens")))

    def begin(**how: Any) -> Any:
        from gym_ray.actors import RolloutCollector

        return RolloutCollector.start(settings, output_dir=tmp_path / "steps", cache_dir=tmp_path, **how)

    return begin


def test_a_loop_takes_its_tokens_out_of_the_store_step_after_step(start: Callable[..., Any], tmp_path: Path) -> None:
    import ray

    with start(max_staleness=0, namespace="gym-ray/loop") as loop:
        with pytest.raises(SettingsError, match="set_weight_version"):
            next(loop.collect(rows("a")))
        loop.set_weight_version(3)
        batch = loop.collect_batch(rows("a", "b"))
        assert [(item.row_index, item.rollout_index) for item in batch.results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert len(batch.usable) == 4
        assert batch.tokens.num_rows == 4
        for row in range(4):
            for array in token_arrays(batch.tokens, row):
                assert array.size
                assert in_store(array.__array_interface__["data"][0]), "tokens are read where the store keeps them"
                assert not array.flags.writeable
        assert set(batch.tokens.column("oldest_weight_version").to_pylist()) == {3}
        assert batch.tokens.column("reward").to_pylist() == [1.0] * 4
        first = batch.results[0]
        assert first.record is not None
        assert first.record["_ng_training_rows"][0]["token_ids"] == token_arrays(first.tokens, 0)[0].tolist()

        with pytest.raises(SettingsError, match="2 goes back behind 3"):
            loop.set_weight_version(2)
        loop.set_weight_version(2, new_epoch=True)
        groups = list(loop.collect(rows("a", "b"), groups=True))
        assert [len(group.usable) for group in groups] == [2, 2]
        ids = {result.rollout_id for group in groups for result in group.results}
        assert not ids & {result.rollout_id for result in batch.results}, "the same rows get ids of their own"
        assert [row for row, _ in loop.raw(rows("c"))] == rows("c", "c")
        assert loop.status()["weight_version"] == 2
    assert ray.is_initialized(), "the caller's Ray is the caller's"
    states = [
        json.loads(path.read_text())["state"] for path in sorted((tmp_path / "steps").glob("step-*.run/step.json"))
    ]
    assert states == ["complete"] * 3


def test_a_straggler_wedges_neither_its_group_nor_the_next_step(start: Callable[..., Any]) -> None:
    with start() as loop:
        begun = time.monotonic()
        whole, partial = sorted(
            loop.collect(rows("fine", "sleeps in its second repeat"), groups=True, group_timeout_s=10),
            key=lambda group: len(group.reasons),
        )
        assert time.monotonic() - begun < 60
        assert [result.masked for result in whole.results] == [False, False]
        assert [result.masked for result in partial.results] == [False, True]
        lost = partial.results[1]
        assert (lost.reasons, lost.reward, lost.record) == (("group_deadline",), None, None)
        assert lost.tokens.column("masked").to_pylist() == [True]
        nothing = loop.collect_batch(rows("sleeps"), timeout_s=3)
        assert [result.reasons for result in nothing.results] == [("deadline",)] * 2
        with pytest.raises(CaptureError, match=r"none of 2 rollouts .*deadline: 2"):
            _ = nothing.usable
        timed = loop.collect_batch(rows("sleeps"), rollout_timeout_s=1)
        assert [result.reasons for result in timed.results] == [("agent_timeout",)] * 2
        assert len(loop.collect_batch(rows("fine")).usable) == 2


def test_cancel_pause_and_drain_decide_every_rollout_once(start: Callable[..., Any]) -> None:
    with start(max_in_flight=1) as loop:

        async def paused_and_cancelled() -> list[Any]:
            await asyncio.to_thread(loop.pause)
            found = []

            async def take() -> None:
                found.extend([item async for item in loop.acollect(rows("fine", "fine as well"))])

            taking = asyncio.create_task(take())
            while not (steps := (await asyncio.to_thread(loop.status))["steps"]):  # noqa: ASYNC110 - another process's word
                await asyncio.sleep(0.05)
            assert [step["undecided"] for step in steps.values()] == [4]
            assert await asyncio.to_thread(loop.cancel) == 4
            await taking
            await asyncio.to_thread(loop.resume)
            return found

        found = asyncio.run(paused_and_cancelled())
        assert [item.reasons for item in found] == [("cancelled",)] * 4

        async def drained() -> Counter[str]:
            reasons: Counter[str] = Counter()
            async for item in loop.acollect(rows("fine", "sleeps", "never begins")):
                reasons[item.reasons[0] if item.reasons else "usable"] += 1
                if reasons.total() == 2:
                    await asyncio.to_thread(loop.drain, 1.0)
            return reasons

        assert asyncio.run(drained()) == {"usable": 2, "drained": 4}


def test_killed_joiners_and_hosts_lose_no_result(start: Callable[..., Any], tmp_path: Path) -> None:
    import ray

    from gym_ray.actors.calls import get

    with start(namespace="gym-ray/killed") as loop:
        feed = loop._loop.begin(rows("a", "b"), threading.Event(), groups=False, rollout_timeout_s=None, limits={})
        taken = []
        while len(taken) < 4:
            taken += get(feed.host.take.remote(feed.number, 8, 2.0, len(taken)), 60).units
        joiner = ray.get_actor("joiner-0", namespace="gym-ray/killed")
        pid = get(joiner.health.remote(), 60).pid
        os.kill(pid, signal.SIGKILL)
        from gym_ray.actors.training.feed import fetched
        from gym_ray.rollouts.training.results import ResultMaker

        maker = ResultMaker(frozenset({"trained"}), None, fetched, feed._read)
        until = time.monotonic() + 90
        while any(fetched(outcome.token_rows) is not None for (outcome,) in taken):
            assert time.monotonic() < until, "tables outlive their owner only until Ray has noticed its death"
            time.sleep(0.2)
        for (outcome,) in taken:
            result = maker.result(outcome, None)
            assert (result.masked, result.reward) == (False, 1.0)
            assert token_arrays(result.tokens, 0)[0].size

        results = loop.collect(rows("fine", "sleeps"))
        found = [next(results), next(results)]
        os.kill(get(feed.host.health.remote(), 60).pid, signal.SIGKILL)
        found += list(results)
        assert Counter(item.reasons for item in found) == {(): 2, ("collector_lost",): 2}
        assert len(loop.collect_batch(rows("fine")).usable) == 2, "the next step has a new host"
    states = [
        json.loads(path.read_text())["state"] for path in sorted((tmp_path / "steps").glob("step-*.run/step.json"))
    ]
    assert states[1:] == ["interrupted", "complete"]
