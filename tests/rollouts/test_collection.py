from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import ClusterError, MaskLimitExceededError, StorageError
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.pace import Pace
from gym_ray.rollouts.attempts.attempt_flow import AttemptFlow
from gym_ray.rollouts.attempts.ledger import Ledger, SlotFree, StartAttempt
from gym_ray.rollouts.attempts.slots import Slots
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.ports import AttemptJob, JoinRequest, Lost
from gym_ray.rollouts.run_files.frames import FrameKind, read_frames
from gym_ray.rollouts.run_files.ledger_log import rollout_digest
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, answer, by_task, failing, hang
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.mask_limit import MaskLimit


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Any]:
    runs: list[BegunRun] = []

    def make(rows: int, calls: FileCalls | None = None) -> BegunRun:
        runs.append(BegunRun(tmp_path, rows, calls))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


async def test_every_row_is_run_once_and_stored_as_it_finishes(make_run: Any) -> None:
    run = make_run(10)
    three = asyncio.Barrier(3)

    async def together(job: AttemptJob) -> RunResult:
        if job.ordinal < 3:
            await three.wait()
        return await answer(job)

    port = FakePort(run.outputs, together, capacity=3)
    collection = run.collection(port)
    seen = []
    async for finished in collection.finished():
        record = json.loads(read_record(run.paths, finished.written))
        assert record["response"]["id"] == finished.summary.rollout_id
        seen.append(finished.summary.rollout_id)
    assert sorted(seen) == sorted(run.records()) == [f"{n}-0" for n in range(10)]
    assert set(port.times("run").values()) == {1}
    assert port.most_running == 3
    assert collection.progress().complete
    assert collection.metrics.to_dict()["overall"]["reward"] == {
        "mean": 1.0,
        "measured": 10,
        "masked": 0,
        "unmeasured": 0,
    }


async def masked_for(job: AttemptJob, *reasons: str) -> RunResult:
    return RunResult(json.dumps({"reward": 1.0, "token_mask_reasons": reasons}).encode(), None, 5.0)


async def test_a_run_ends_when_too_many_rollouts_cannot_be_trained_on(make_run: Any) -> None:
    run = make_run(50)

    async def every_other(job: AttemptJob) -> RunResult:
        return await masked_for(job, *["capture_incomplete"][: job.ordinal % 2])

    limited = run.collection(FakePort(run.outputs, every_other, capacity=1), MaskLimit(0.4, 10))
    with pytest.raises(MaskLimitExceededError, match=r"5 of 10 .*capture_incomplete: 5"):
        await limited.run()
    assert 10 <= len(run.records()) < 50  # what tipped the balance is stored
    assert limited.progress().done == len(run.records())


async def test_rollouts_without_tokens_do_not_count_for_the_limit(make_run: Any) -> None:
    run = make_run(20)
    collection = run.collection(FakePort(run.outputs, answer), MaskLimit(0.0, 1))
    assert (await collection.run()).done == 20


async def test_an_attempt_is_durable_as_started_and_cleared_before_it_runs(make_run: Any) -> None:
    run = make_run(5)

    async def check(job: AttemptJob) -> RunResult:
        assert rollout_digest(job.rollout_id) in run.started()
        assert port.events.index(("clear", job.rollout_id)) < port.events.index(("run", job.rollout_id))
        return await answer(job)

    port = FakePort(run.outputs, check)
    assert (await run.collection(port).run()).done == 5


async def test_a_failed_rollout_is_a_record_and_the_run_goes_on(make_run: Any) -> None:
    run = make_run(4)
    boom = AssertionError("a bug in the worker")

    async def explode(job: AttemptJob) -> RunResult:
        raise boom

    port = FakePort(run.outputs, by_task({"0": failing("agent_run_error"), "2": explode}))
    progress = await run.collection(port).run()
    assert (progress.done, progress.failed, progress.complete) == (2, 2, True)
    assert run.records()["2-0"]["_ng_failure_class"] == "agent_run_error"
    assert set(port.times("run").values()) == {1}


async def test_a_reply_that_asks_for_no_record_leaves_none(make_run: Any) -> None:
    run = make_run(1)

    async def silent(job: AttemptJob) -> RunResult:
        return RunResult(b'{"_ng_no_persist": true}', None, 1.0)

    collection = run.collection(FakePort(run.outputs, silent))
    found = [finished async for finished in collection.finished()]
    assert [finished.written for finished in found] == [None]
    assert collection.progress().unstored == 1


async def test_a_lost_process_is_recorded_and_tried_again_as_a_new_attempt(make_run: Any) -> None:
    run = make_run(2)

    async def lose_once(job: AttemptJob) -> RunResult | Lost:
        return Lost("node_lost", "gone") if job.rollout_id == "0-0" else await answer(job)

    port = FakePort(run.outputs, lose_once)
    collection = run.collection(port)
    retried = [f.summary.rollout_id async for f in collection.finished() if f.retried]
    assert retried == ["0-0"]
    records = run.records()
    assert sorted(records) == ["0-0", "0-0-a1", "1-0"]
    assert records["0-0"]["_ng_failure_class"] == "node_lost"
    assert set(port.times("run").values()) == {1}
    assert set(run.started()) == {rollout_digest(key) for key in records}
    progress = collection.progress()
    assert (progress.done, progress.failed, progress.retries) == (2, 0, 1)
    assert collection.metrics.to_dict()["overall"]["rollouts"] == {"done": 2, "failed": 0, "unstored": 0, "retried": 1}


async def test_a_row_that_kills_workers_is_quarantined(make_run: Any) -> None:
    run = make_run(1)

    async def kill(job: AttemptJob) -> Lost:
        return Lost("worker_lost", "gone")

    progress = await run.collection(FakePort(run.outputs, kill)).run()
    records = run.records()
    assert sorted(records) == ["0-0", "0-0-a1"]
    assert [bool(r.get("_ng_failure_terminal")) for r in records.values()] == [False, True]
    assert progress.failed == 1


@pytest.mark.parametrize("lanes", [1, 4, 9])
async def test_a_row_that_kills_its_worker_does_not_take_its_neighbours_down_for_good(
    make_run: Any, lanes: int
) -> None:
    run = make_run(30)
    deaths: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def one_worker(job: AttemptJob) -> RunResult | Lost:
        """Everything that runs dies when row 7 has run for a moment; the worker comes back each time."""
        nonlocal deaths
        death = deaths
        if job.ordinal == 7:
            for _ in range(20):
                await asyncio.sleep(0)
            deaths = asyncio.get_running_loop().create_future()
            death.set_result(None)
        else:
            await asyncio.wait([death], timeout=0.002)
        return Lost("worker_lost", "killed") if death.done() else await answer(job)

    port = FakePort(run.outputs, one_worker, capacity=lanes)
    progress = await run.collection(port, max_resident_rollout_tasks=lanes).run()
    assert (progress.done, progress.failed) == (29, 1)
    terminal = [key for key, record in run.records().items() if record.get("_ng_failure_terminal")]
    assert [key.split("-")[0] for key in terminal] == ["7"]
    assert set(port.times("run").values()) == {1}


async def test_a_join_that_dies_is_asked_again_and_stores_one_record(make_run: Any) -> None:
    run = make_run(3)
    tries: dict[str, int] = {}

    async def die_twice(job: AttemptJob, request: JoinRequest) -> None:
        tries[job.rollout_id] = tries.get(job.rollout_id, 0) + 1
        assert request.retry == (tries[job.rollout_id] > 1)
        if tries[job.rollout_id] == 2:  # stored, but the answer never came
            run.outputs.append("main", json.dumps({"_ng_rollout_id": job.rollout_id, "stored": "before"}).encode())
        if tries[job.rollout_id] < 3:
            raise ClusterError("the joiner died")

    progress = await run.collection(FakePort(run.outputs, join_script=die_twice)).run()
    assert progress.done == 3
    assert len(run.paths.output.read_text().splitlines()) == 3


async def test_a_reply_lost_before_its_join_is_recorded_and_tried_again(make_run: Any) -> None:
    run = make_run(1)
    lost = [Lost("node_lost", "the reply died with its node")]

    async def lose_once(job: AttemptJob, request: JoinRequest) -> Lost | None:
        return lost.pop() if lost else None

    progress = await run.collection(FakePort(run.outputs, join_script=lose_once)).run()
    assert sorted(run.records()) == ["0-0", "0-0-a1"]
    assert progress.done == 1


async def test_a_record_that_cannot_be_stored_ends_the_run_with_its_cause(make_run: Any) -> None:
    run = make_run(50)

    async def refuse(job: AttemptJob, request: JoinRequest) -> None:
        if job.ordinal == 3:
            raise StorageError("disk full")

    collection = run.collection(FakePort(run.outputs, join_script=refuse, capacity=2))
    with pytest.raises(StorageError, match="disk full"):
        await collection.run()
    progress = collection.progress()
    assert progress.unrecorded == 1
    assert progress.done == len(run.records())
    assert progress.done + progress.pending + progress.cancelled + 1 == 50


async def test_a_capture_that_cannot_be_cleared_is_a_failure_without_a_run(make_run: Any) -> None:
    run = make_run(2)

    class Stuck(FakePort):
        async def clear(self, rollout_ids: Any) -> None:
            if rollout_ids == ["1-0"]:
                raise StorageError("1-0.capture.jsonl: Permission denied")

    port = Stuck(run.outputs)
    progress = await run.collection(port).run()
    assert (progress.done, progress.failed) == (1, 1)
    assert port.times("run") == {"0-0": 1}
    assert {key: request.attach_capture for key, request in port.requests} == {"0-0": True, "1-0": False}


async def test_no_workers_left_ends_the_run_and_leaves_the_rest_unfinished(make_run: Any) -> None:
    run = make_run(30)

    async def gone(job: AttemptJob) -> RunResult:
        raise ClusterError("no worker is left")

    collection = run.collection(FakePort(run.outputs, by_task({"5": gone}), capacity=1))
    with pytest.raises(ClusterError, match="no worker"):
        await collection.run()
    progress = collection.progress()
    assert progress.failed == 0
    assert progress.done == len(run.records()) >= 5
    assert progress.done + progress.pending + progress.cancelled == 30


class FullDisk(FileCalls):
    def sync_data(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


async def test_nothing_runs_that_is_not_durable_as_started(make_run: Any) -> None:
    run = make_run(5, FullDisk())
    port = FakePort(run.outputs)
    with pytest.raises(StorageError, match="No space left"):
        await run.collection(port).run()
    assert port.events == []


async def test_a_stop_cancels_runs_stores_replies_and_keeps_the_rest_pending(make_run: Any) -> None:
    run = make_run(20)
    port = FakePort(run.outputs, by_task({"1": hang, "2": hang}), capacity=3)
    collection = run.collection(port)
    async for finished in collection.finished():
        assert finished.summary.rollout_id not in ("1-0", "2-0")
        if collection.progress().done >= 4:
            collection.stop()
    progress = collection.progress()
    assert progress.done == len(run.records()) >= 4
    assert sorted(port.times("cancelled")) == ["1-0", "2-0"]
    assert (progress.running, progress.joining) == (0, 0)
    cancelled = [f.digest for f in read_frames(run.paths.ledger) if f.kind is FrameKind.CANCELLED]
    assert {rollout_digest("1-0"), rollout_digest("2-0")} <= set(cancelled)
    assert len(cancelled) == progress.cancelled
    assert port.times("run").total() == progress.done + 2
    assert len(run.started()) == progress.done + progress.cancelled


async def test_leaving_the_iteration_early_stores_what_has_ended(make_run: Any) -> None:
    run = make_run(100)
    port = FakePort(run.outputs, capacity=8)
    collection = run.collection(port)
    finished = collection.finished()
    await anext(finished)
    await finished.aclose()
    assert port.running == 0
    progress = collection.progress()
    assert progress.done == len(run.records()) == port.times("ran").total()
    assert progress.pending > 0
    assert (progress.running, progress.joining) == (0, 0)


async def test_a_cancelled_consumer_leaves_nothing_behind(make_run: Any) -> None:
    run = make_run(50)
    port = FakePort(run.outputs, by_task({str(n): hang for n in range(3, 50)}), capacity=4)
    task = asyncio.create_task(run.collection(port).run())
    await until(lambda: port.times("joined").total() == 3)
    before = asyncio.all_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert port.running == 0
    assert len(run.records()) == 3
    assert asyncio.all_tasks() < before


async def test_an_attempt_that_is_abandoned_takes_its_run_with_it(make_run: Any) -> None:
    run = make_run(1)
    port = FakePort(run.outputs, hang)
    ledger = Ledger(1)
    flow = AttemptFlow(run.rows, run.outputs, run.log, port, ledger, CollectionSettings(), Slots(1), Pace())
    (start,) = ledger.handle(SlotFree())
    assert isinstance(start, StartAttempt)
    task = asyncio.create_task(flow.follow(start))
    await until(lambda: port.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert port.times("cancelled") == {"0-0": 1}


async def test_a_listener_that_does_not_keep_up_slows_dispatch(make_run: Any) -> None:
    run = make_run(200)
    port = FakePort(run.outputs, capacity=2)
    collection = run.collection(port)
    finished = collection.finished()
    await anext(finished)
    # Two runs at once, four attempts in hand, as many records waiting for the listener, and one that it has.
    most = 1 + 4 + 4
    await until(lambda: collection.progress().done >= most or port.times("run").total() > most)
    assert port.times("run").total() == most
    assert (collection.progress().running, collection.progress().joining) == (0, 0), "each waits to be heard"
    await finished.aclose()


async def test_limits_hold_together(make_run: Any) -> None:
    run = make_run(40)
    gate = asyncio.Event()

    async def slow_join(job: AttemptJob, request: JoinRequest) -> None:
        await gate.wait()

    port = FakePort(run.outputs, join_script=slow_join, capacity=100)
    collection = run.collection(port, num_samples_in_parallel=2, max_resident_rollout_tasks=6)
    task = asyncio.create_task(collection.run())
    await until(lambda: port.times("join").total() == 6)
    assert collection.progress().joining == 6
    gate.set()
    await task
    assert port.most_running <= 2


async def test_a_spent_budget_starts_nothing_more_and_leaves_the_rest_unfinished(make_run: Any) -> None:
    run = make_run(30)
    port = FakePort(run.outputs)
    collection = run.collection(port, num_samples_in_parallel=2, dispatch_budget_s=60, drain_margin_s=61)
    progress = await collection.run()
    assert (progress.pending, progress.cancelled, progress.failed) == (30, 0, 0)
    assert port.events == []
    assert run.started() == []


async def test_a_budget_lets_what_runs_end(make_run: Any) -> None:
    run = make_run(30)
    collection = None

    async def spend(job: AttemptJob) -> RunResult:
        assert collection is not None
        collection._flow._budget._ends_at = 0.0
        await asyncio.sleep(0)
        return await answer(job)

    collection = run.collection(FakePort(run.outputs, spend), num_samples_in_parallel=2, dispatch_budget_s=60)
    progress = await collection.run()
    assert progress.cancelled == 0
    assert 1 <= progress.done == len(run.records()) <= 4
    assert progress.pending == 30 - progress.done


async def test_a_collection_runs_once(make_run: Any) -> None:
    run = make_run(1)
    collection = run.collection(FakePort(run.outputs))
    await collection.run()
    with pytest.raises(RuntimeError, match="once"):
        await collection.run()


async def test_a_failure_class_with_odd_text_is_kept(make_run: Any) -> None:
    run = make_run(1)

    async def odd(job: AttemptJob) -> RunResult:
        return RunResult(None, RunFailure("agent_timeout", "E", "line\nbreak \ud800"), 1.0)

    collection = run.collection(FakePort(run.outputs, odd))
    await collection.run()
    assert collection.metrics.to_dict()["overall"]["failures"] == {"agent_timeout": 1}


@pytest.mark.parametrize("rows", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_memory_does_not_grow_with_finished_rollouts(make_run: Any, rows: int) -> None:
    run = make_run(rows)
    collection = run.collection(FakePort(None, capacity=32, keep_events=False))
    held, count = [], 0
    async for _ in collection.finished():
        count += 1
        if count in (rows // 4, rows - 100):
            gc.collect()
            held.append(sys.getallocatedblocks())
    assert count == rows
    # A single object kept for each rollout would be thousands; what moves is how far the attempts in hand have come.
    assert held[1] - held[0] < 1_000, held


@pytest.mark.parametrize(
    "bad", [{"num_samples_in_parallel": 0}, {"run_timeout_s": -1}, {"max_resident_rollout_tasks": 0}]
)
def test_impossible_limits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        CollectionSettings(**bad)
