"""A run that somebody pauses, drains, cancels in, asks for rows again, or gives more workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.ports import AttemptJob
from gym_ray.rollouts.run_files.frames import FrameKind, read_frames
from gym_ray.rollouts.run_files.ledger_log import rollout_digest
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, answer, by_task, failing, hang
from gym_ray.testing.waiting import until


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Any]:
    runs: list[BegunRun] = []

    def make(rows: int) -> BegunRun:
        runs.append(BegunRun(tmp_path, rows))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


class Gate:
    """Lets attempts answer once it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, job: AttemptJob) -> RunResult:
        await self.open.wait()
        return await answer(job)


async def test_a_pause_starts_nothing_new_and_a_resume_runs_the_rest_once(make_run: Any) -> None:
    run, gate = make_run(12), Gate()
    port = FakePort(run.outputs, gate, capacity=2)
    collection = run.collection(port)
    task = asyncio.create_task(collection.run())
    await until(lambda: port.running == 2)
    collection.pause()
    gate.open.set()
    await until(lambda: collection.progress().done == 2 and collection.progress().starting == 0)
    progress = collection.progress()
    assert (progress.paused, progress.pending, progress.running) == (True, 10, 0)
    assert port.times("run").total() == len(run.started()) == 2
    collection.resume()
    assert (await task).complete
    assert port.times("run") == {f"{n}-0": 1 for n in range(12)}


async def test_a_paused_run_can_be_stopped_and_drained(make_run: Any) -> None:
    run = make_run(6)
    collection = run.collection(FakePort(run.outputs))
    collection.pause()
    task = asyncio.create_task(collection.run())
    await asyncio.sleep(0)
    collection.drain()
    progress = await task
    assert (progress.pending, progress.stopped, progress.complete) == (6, True, False)


async def test_a_drain_lets_what_runs_end_and_leaves_the_rest(make_run: Any) -> None:
    run, gate = make_run(9), Gate()
    port = FakePort(run.outputs, gate, capacity=3)
    collection = run.collection(port)
    task = asyncio.create_task(collection.run())
    await until(lambda: port.running == 3)
    collection.drain()
    gate.open.set()
    progress = await task
    assert (progress.done, progress.pending, progress.cancelled) == (3, 6, 0)
    assert not port.times("cancelled")


async def test_one_attempt_is_cancelled_durably_and_the_others_go_on(make_run: Any) -> None:
    run = make_run(5)
    port = FakePort(run.outputs, by_task({"1": hang}), capacity=2)
    collection = run.collection(port)
    task = asyncio.create_task(collection.run())
    await until(lambda: collection.progress().done == 4)
    assert [place.rollout_id for place in collection.placements()] == ["1-0"]
    assert collection.cancel(["1-0", "0-0", "no-such"]) == {"1-0": True, "0-0": False, "no-such": False}
    progress = await task
    assert (progress.done, progress.cancelled) == (4, 1)
    cancelled = [frame.digest for frame in read_frames(run.paths.ledger) if frame.kind is FrameKind.CANCELLED]
    assert cancelled == [rollout_digest("1-0")]
    assert "1-0" not in run.records()


async def test_an_attempt_that_is_cancelled_while_it_starts_never_runs(make_run: Any) -> None:
    run = make_run(1)

    class Slow(FakePort):
        async def clear(self, rollout_ids: Any) -> None:
            assert collection.cancel() == {"0-0": True}

    port = Slow(run.outputs)
    collection = run.collection(port)
    progress = await collection.run()
    assert (progress.cancelled, port.times("run").total(), len(run.started())) == (1, 0, 1)


async def test_a_cancel_of_an_attempt_that_is_being_stored_changes_nothing(make_run: Any) -> None:
    run = make_run(1)

    async def during(job: AttemptJob, _: object) -> None:
        assert collection.cancel(["0-0"]) == {"0-0": False}

    collection = run.collection(FakePort(run.outputs, join_script=during))
    assert (await collection.run()).done == 1
    assert run.records()["0-0"]["reward"] == 1.0


async def test_failed_rows_are_asked_for_again_as_new_attempts_that_are_durable_first(make_run: Any) -> None:
    run, broken = make_run(4), {"0-0", "2-0"}

    async def script(job: AttemptJob) -> RunResult:
        assert rollout_digest(job.rollout_id) in run.started()
        return await (failing("agent_run_error") if job.rollout_id in broken else answer)(job)

    port = FakePort(run.outputs, script)
    collection, answers = run.collection(port), {}
    async for finished in collection.finished():
        if collection.progress().failed == 2 and not answers:
            answers = collection.requeue()
            assert finished.ordinal in range(4)
    assert answers == {0: None, 2: None}
    assert sorted(run.records()) == ["0-0", "0-0-a1", "1-0", "2-0", "2-0-a1", "3-0"]
    assert (collection.progress().done, collection.progress().retries) == (4, 2)


async def test_rows_are_asked_for_again_after_the_last_attempt_has_ended(make_run: Any) -> None:
    run = make_run(3)
    collection = run.collection(FakePort(run.outputs, by_task({"1": failing("agent_run_error")})))
    listening = collection.finished()
    seen = [await anext(listening) for _ in range(3)]
    await until(lambda: not collection.progress().running)
    for _ in range(20):
        await asyncio.sleep(0)
    assert collection.requeue([0, 1, 7]) == {
        0: "it has its result",
        1: None,
        7: "there is no such row; the run has 3",
    }
    rest = [finished async for finished in listening]
    assert [(finished.ordinal, finished.attempt) for finished in rest] == [(1, 1)]
    assert len(seen) == 3
    assert collection.requeue([1]) == {1: "the run is over; resume it"}


async def test_more_workers_run_more_at_once_and_fewer_run_fewer(make_run: Any) -> None:
    run, gate = make_run(40), Gate()
    port = FakePort(run.outputs, gate, capacity=1)
    collection = run.collection(port)
    task = asyncio.create_task(collection.run())
    await until(lambda: port.running == 1)
    port.capacity = 6
    collection.resize()
    await until(lambda: port.running == 6)
    port.capacity = 2
    collection.resize()
    assert port.running == 6
    port.most_running = 0
    gate.open.set()
    assert (await task).done == 40
    assert port.most_running <= 2


async def test_a_number_that_was_asked_for_stays(make_run: Any) -> None:
    run, gate = make_run(10), Gate()
    port = FakePort(run.outputs, gate, capacity=2)
    collection = run.collection(port, num_samples_in_parallel=2)
    task = asyncio.create_task(collection.run())
    await until(lambda: port.running == 2)
    port.capacity = 9
    collection.resize()
    for _ in range(50):
        await asyncio.sleep(0)
    assert port.running == 2
    gate.open.set()
    assert (await task).done == 10


async def test_the_failure_of_a_row_that_is_asked_for_again_is_not_its_last_word(make_run: Any) -> None:
    run, tries = make_run(3), iter((failing("agent_run_error"), failing("judge_failed"), answer))
    gate = Gate()

    async def script(job: AttemptJob) -> RunResult:
        return await (next(tries) if job.ordinal == 0 else gate)(job)

    collection = run.collection(FakePort(run.outputs, script, capacity=3))
    task = asyncio.create_task(collection.run())
    for failures in (1, 2):
        await until(lambda: collection.progress().failed == 1)
        assert collection.metrics.ended() == (0, 0, dict.fromkeys(("agent_run_error", "judge_failed")[:failures], 1))
        assert collection.requeue([0]) == {0: None}
    await until(lambda: collection.progress().done == 1)
    gate.open.set()
    assert (await task).complete
    rollouts = collection.metrics.to_dict()["overall"]["rollouts"]
    assert rollouts == {"done": 3, "failed": 0, "unstored": 0, "retried": 2}
