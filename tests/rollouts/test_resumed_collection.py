from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import ClusterError, StorageError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinRequest, Lost
from gym_ray.rollouts.row_states.failure_classes import TERMINAL, failure_flags
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, rollout_digest
from gym_ray.rollouts.run_files.run_index import IndexLog, read_index, written_of
from gym_ray.rollouts.run_files.run_log import RunOutputs, read_record
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, answer, by_task, failing


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Any]:
    runs: list[BegunRun] = []

    def make(rows: int, calls: FileCalls | None = None) -> BegunRun:
        runs.append(BegunRun(tmp_path, rows, calls))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


class FullDisk(FileCalls):
    def sync_data(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


async def test_each_durable_record_is_noted_in_the_index_and_nothing_else_is(make_run: Any) -> None:
    run = make_run(6)

    async def silent(job: AttemptJob) -> RunResult:
        return RunResult(b'{"_ng_no_persist": true}', None, 1.0)

    lost = [Lost("node_lost", "gone")]

    async def lose_once(job: AttemptJob) -> RunResult | Lost:
        return lost.pop() if lost else await answer(job)

    port = FakePort(run.outputs, by_task({"1": failing("agent_run_error"), "2": silent, "4": lose_once}))
    with IndexLog(run.paths.index) as index:
        seen = [f async for f in run.collection(port, index=index).finished()]
    frames = {(frame.ordinal, frame.attempt): written_of(frame) for frame in read_index(run.paths.index)}
    assert sorted(frames) == [(0, 0), (1, 0), (3, 0), (4, 0), (4, 1), (5, 0)]
    assert {frames[key].file for key in ((1, 0), (4, 0))} == {"failures"}
    for (ordinal, attempt), written in frames.items():
        record = json.loads(read_record(run.paths, written))
        assert (record["_ng_task_index"], record.get("_ng_attempt_index", 0)) == (ordinal, attempt)
    assert {f.written for f in seen if f.written is not None} == set(frames.values())


async def test_a_record_whose_note_is_lost_still_counts_and_the_run_ends_with_the_cause(make_run: Any) -> None:
    run = make_run(40)
    with IndexLog(run.paths.index, calls=FullDisk()) as index:
        collection = run.collection(FakePort(run.outputs, capacity=2), index=index)
        with pytest.raises(StorageError, match="No space left"):
            await collection.run()
    progress = collection.progress()
    assert progress.done == len(run.records()) >= 1
    assert collection.metrics.to_dict()["overall"]["rollouts"]["done"] == progress.done
    assert progress.unrecorded == 0
    assert progress.pending > 0


async def test_a_resumed_run_starts_what_is_left_under_new_attempts(make_run: Any) -> None:
    run = make_run(6)
    state = RunState.fresh(6)
    state.note_done(0, 0)
    state.note_failure(1, 0, 0)
    for attempt in range(3):
        state.note_failure(2, attempt, 0)
    state.note_failure(3, 0, TERMINAL)
    state.note_started(4, 0)
    port = FakePort(run.outputs)
    collection = run.collection(port, state=state)
    assert (collection.progress().done, collection.progress().failed, collection.progress().pending) == (1, 2, 3)
    progress = await collection.run()
    assert sorted(port.times("run")) == sorted(port.times("clear")) == ["1-0-a1", "4-0-a1", "5-0"]
    assert (progress.done, progress.failed, progress.complete) == (4, 2, True)


async def test_a_run_of_which_all_is_done_ends_at_once(make_run: Any) -> None:
    run = make_run(3)
    state = RunState.fresh(3)
    for row in range(3):
        state.note_done(row, 0)
    port = FakePort(run.outputs)
    assert (await run.collection(port, state=state).run()).complete
    assert port.events == []


async def test_the_budget_and_the_order_are_what_was_asked_for(make_run: Any) -> None:
    run = make_run(3)

    async def lose(job: AttemptJob) -> Lost:
        return Lost("node_lost", "gone")

    port = FakePort(run.outputs, by_task({"1": lose}), capacity=1)
    order = array("Q", [2, 1, 0])
    await run.collection(port, order=order, max_attempts=2, max_resident_rollout_tasks=1).run()
    assert [key for what, key in port.events if what == "run"] == ["2-0", "1-0", "1-0-a1", "0-0"]


async def test_a_try_may_be_told_to_reuse_what_an_earlier_one_delivered(make_run: Any) -> None:
    run = make_run(3)
    state = RunState.fresh(3)
    failed = {"_ng_failure_class": "judge_failed"}
    state.note_failure(0, 0, failure_flags({**failed, "reuse_cached_deliverable": True}))
    state.note_failure(0, 1, failure_flags(failed))
    state.note_failure(1, 0, failure_flags({**failed, "reuse_cached_deliverable": False}))
    rows: dict[str, Any] = {}

    async def look(job: AttemptJob) -> RunResult:
        rows[job.rollout_id] = json.loads(job.row).get("reuse_cached_deliverable")
        return await answer(job)

    await run.collection(FakePort(run.outputs, look), state=state).run()
    assert rows == {"0-0-a2": True, "1-0-a1": None, "2-0": None}


async def test_a_damaged_row_is_a_recorded_failure_and_the_run_goes_on(make_run: Any) -> None:
    run = make_run(5)
    line = run.rows.read(2)
    data = run.paths.materialised.read_bytes()
    run.paths.materialised.write_bytes(data.replace(line, b"#" * len(line)))
    tries: list[str] = []

    async def die_once(job: AttemptJob, request: JoinRequest) -> None:
        tries.append(job.rollout_id)
        if tries.count(job.rollout_id) == 1:
            raise ClusterError("the joiner died")

    with RunOutputs(run.paths) as outputs:
        joiner = Joiner(run.paths, None)
        port = FakePort(outputs, join_script=die_once, joiner=joiner)
        progress = await run.collection(port).run()
        await joiner.aclose()
    assert (progress.done, progress.failed, progress.complete) == (4, 1, True)
    (record,) = [json.loads(line) for line in run.paths.failures.read_text().splitlines()]
    assert (record["_ng_failure_class"], record["_ng_row_ordinal"]) == ("invalid_row", 2)
    assert record["_ng_failure_terminal"] is True
    assert f"{run.paths.materialised}:3: " in record["_ng_failure_message"]
    assert sorted(port.times("run")) == ["0-0", "1-0", "3-0", "4-0"]
    assert rollout_digest("invalid-row-2") in run.started()


async def test_many_rollouts_that_end_at_once_leave_the_loop_its_turns(make_run: Any) -> None:
    """A turn of the loop takes a few steps of attempts, however many are ready for one."""
    run = make_run(200)
    gate, joins = asyncio.Barrier(100), asyncio.Barrier(100)
    steps, turns = [0], []

    async def together(job: AttemptJob) -> RunResult:
        await gate.wait()
        return await answer(job)

    async def joined(job: AttemptJob, request: JoinRequest) -> None:
        await joins.wait()

    class Counted(LedgerLog):
        async def append(self, *args: Any) -> None:
            steps[0] += 1
            await super().append(*args)

    class Noted(IndexLog):
        async def append(self, *args: Any) -> None:
            steps[0] += 1
            await super().append(*args)

    async def watch() -> None:
        while True:
            steps[0] = 0
            await asyncio.sleep(0)
            turns.append(steps[0])

    run.log = run.held.enter_context(Counted(run.paths.directory / "counted.log"))
    watching = asyncio.create_task(watch())
    with Noted(run.paths.index) as index:
        port = FakePort(run.outputs, together, join_script=joined, capacity=100)
        progress = await run.collection(port, index=index, max_resident_rollout_tasks=100).run()
    watching.cancel()
    assert progress.done == 200
    assert sum(turns) >= 350
    assert max(turns) <= 2 * 16
