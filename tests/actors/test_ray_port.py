"""What the collector's port does with seats that hang instead of dying, and with seats that cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_ray.agents.context import ServerUrls
from gym_ray.errors import ClusterError, ServerStartError, StorageError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.ports import AttemptJob, JoinRequest, Lost, ReplyHandle
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import OutputMark, RunPaths
from gym_ray.rollouts.session import RunPlan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SETTINGS = f"""
wild_agent:
  responses_api_agents:
    callable_agent:
      callable: {Path(__file__).parent / "agents" / "wild_agent.py"}:agent
"""


def job(what: str, timeout_s: float | None = None, *, begun: Path | None = None) -> AttemptJob:
    row = {"agent_ref": {"name": "wild_agent"}, "_ng_task_index": 0, "_ng_rollout_index": 0}
    row["responses_create_params"] = {"input": what}
    row["begun"] = None if begun is None else str(begun)
    return AttemptJob(0, 0, "0-0", "wild_agent", json.dumps(row).encode(), timeout_s)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextmanager
def seat(cls: type, *arguments: Any) -> Iterator[Any]:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, start_actor
    from gym_ray.actors.seats import Seat

    node = local_node()
    handle = start_actor(cls, node, "seat", *arguments)
    try:
        get(handle.ready.remote(), 120)
        yield Seat("seat", node.node_id, handle)
    finally:
        close_actors([handle], 2)


@pytest.fixture
def worker(ray_cluster: None, write_settings: Callable[..., Any]) -> Iterator[Any]:
    from gym_ray.actors.rollout_worker import RolloutWorkerHost

    settings = write_settings(SETTINGS, capture=False)
    with seat(RolloutWorkerHost, settings, ServerUrls({}, {}), None) as found:
        yield found


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths.of(tmp_path / "records.jsonl")
    found.output.touch()
    found.failures.touch()
    return found


def plan_of(paths: RunPaths) -> RunPlan:
    return RunPlan(paths, paths.output.with_name("rows.jsonl"), RowOptions(), CollectionSettings(), None)


async def test_a_joiner_that_hangs_is_ended_and_its_record_is_stored_once(ray_cluster: None, paths: RunPaths) -> None:
    from gym_ray.actors.joiner import JoinerHost
    from gym_ray.actors.ray_port import RayPort

    result, request = RunResult(b'{"reward": 1.0}', None, 1.0), JoinRequest(OutputMark(0, 0))
    with seat(JoinerHost, plan_of(paths)) as joiner:
        port = RayPort([], [joiner], lanes=1, clearing=Clearing(None), join_patience_s=1.0)
        pid = (await joiner.handle.health.remote()).pid
        os.kill(pid, signal.SIGSTOP)
        tries = 0
        while True:
            try:
                outcome = await port.join(job("ok"), result, JoinRequest(request.mark, retry=tries > 0))
                break
            except ClusterError:
                tries += 1
                assert not is_alive(pid), "the hung process could still wake up and store its record"
                assert tries < 90
                await asyncio.sleep(1.0)  # the pause between two tries; a new process needs a moment
        await port.aclose()
    assert tries >= 1
    assert not isinstance(outcome, Lost)
    assert len(paths.output.read_text().splitlines()) == 1


async def test_a_worker_whose_agent_blocks_it_is_ended_when_its_attempt_is_cancelled(
    worker: Any, tmp_path: Path
) -> None:
    from gym_ray.actors.ray_port import RayPort

    port = RayPort([worker], [], lanes=1, clearing=Clearing(None), cancel_patience_s=1.0)
    pid = (await worker.handle.health.remote()).pid
    begun = tmp_path / "begun"
    run = asyncio.create_task(port.run(job("block", begun=begun)))
    async with asyncio.timeout(120):
        while not begun.exists():  # noqa: ASYNC110 - an attempt cancelled before its agent ran blocks nothing
            await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert isinstance(await port.run(job("ok")), ReplyHandle)
    assert (await worker.handle.health.remote()).pid != pid
    await port.aclose()


async def test_a_worker_whose_loop_an_agent_ended_is_lost_at_once(worker: Any) -> None:
    from gym_ray.actors.ray_port import RayPort

    port = RayPort([worker], [], lanes=1, clearing=Clearing(None))
    async with asyncio.timeout(120):
        lost = await port.run(job("end the loop"))
    assert isinstance(lost, Lost)
    assert lost.failure_class == "worker_lost"
    await port.aclose()


async def test_a_worker_that_lost_its_process_is_given_nothing_until_the_next_one_answers(
    worker: Any, tmp_path: Path
) -> None:
    from gym_ray.actors.ray_port import RayPort

    port = RayPort([worker], [], lanes=8, clearing=Clearing(None))
    pid = (await worker.handle.health.remote()).pid
    begun = tmp_path / "begun"
    run = asyncio.create_task(port.run(job("block", begun=begun)))
    async with asyncio.timeout(120):
        while not begun.exists():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        lost = await run
        assert isinstance(lost, Lost)
        assert lost.failure_class == "worker_lost"
        after = await asyncio.gather(*(port.run(job("ok")) for _ in range(8)))
    assert all(isinstance(ended, ReplyHandle) for ended in after), "they were lost though they had not begun"
    await port.aclose()


def test_a_joiner_without_outputs_says_why_it_is_not_ready(ray_cluster: None, tmp_path: Path) -> None:
    from gym_ray.actors.joiner import JoinerHost

    missing = RunPaths.of(tmp_path / "nowhere" / "records.jsonl")
    with (
        pytest.raises(StorageError, match=r"nowhere/records\.jsonl: the output cannot be opened"),
        seat(JoinerHost, plan_of(missing)),
    ):
        pass


def test_a_cluster_without_free_cpus_is_named(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any]
) -> None:
    import ray

    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.server_directory import ServerDirectory

    class Holder:
        def held(self) -> bool:
            return True

    holder = ray.remote(num_cpus=2)(Holder).remote()
    get(holder.held.remote(), 120)
    settings = write_settings(SETTINGS, "++start_timeout_s=1", capture=False)
    paths = RunPaths.of(tmp_path / "records.jsonl")
    plan = CollectionPlan(RunPlan(paths, tmp_path / "rows.jsonl", RowOptions(), CollectionSettings(), None), 1)
    try:
        with (
            pytest.raises(ServerStartError, match="of which 0 CPU are free"),
            collecting(settings, plan, ServerDirectory({}, {}), run_token=None),
        ):
            pass
    finally:
        ray.kill(holder)
