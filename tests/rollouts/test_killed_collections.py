"""Collections whose process dies at any moment, and the runs that take them up (D55, D168), without a cluster.

A death is a copy of the run's files at some moment: what the copy has is what a process that dies then leaves behind.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import ClusterError
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.rollouts.collection import Collection, CollectionSettings, Progress
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.run_index import IndexLog, read_index, written_of
from gym_ray.rollouts.run_files.run_log import RunOutputs, read_record
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.fake_rollouts import FakePort, answer

ROWS, BUDGET, LIVES = 12, 3, 4


class Mortal(FakePort):
    """Plays by luck, keeps the agent's own log, and dies at one moment: a copy of the run's files is what is left."""

    def __init__(self, outputs: RunOutputs, luck: random.Random, agent_log: list[str], heir: Path | None) -> None:
        super().__init__(outputs, self._played, capacity=4)
        self._home, self._luck, self._agent_log, self._heir = outputs.paths.output.parent, luck, agent_log, heir
        self._moments = luck.randrange(1, 3 * ROWS)  # a whole first life has more
        self.died = asyncio.Event()

    def _moment(self) -> None:
        self._moments -= 1
        if self._heir is not None and self._moments == 0:
            shutil.copytree(self._home, self._heir)
            self.died.set()
        if self.died.is_set():
            raise ClusterError("the process that would have done this is dead")

    async def _played(self, job: AttemptJob) -> RunResult | Lost:
        await asyncio.sleep(0)
        kind = self._luck.randrange(8)
        if kind < 2:
            return Lost("worker_lost" if kind else "node_lost", "gone")
        if kind == 2:
            return RunResult(None, RunFailure("agent_run_error", "Scripted", "told to fail"), 1.0)
        return await answer(job)

    async def run(self, job: AttemptJob) -> Any:
        self._moment()
        self._agent_log.append(job.rollout_id)
        self._moment()
        return await super().run(job)

    async def join(self, job: AttemptJob, result: Any, request: JoinRequest) -> JoinOutcome | Lost:
        self._moment()
        outcome = await super().join(job, result, request)
        self._moment()
        return outcome


async def live(paths: RunPaths, luck: random.Random, agent_log: list[str], heir: Path | None) -> Progress | None:
    """Begin or take up a run; return where it ended, None when its process died and left its files to ``heir``."""
    with ExitStack() as held:
        lock, state = held.enter_context(RunLock(paths)), None
        if paths.output.exists():
            state = resume_run(lock).state
        else:
            begin_run(lock, paths.output.with_name("in.jsonl"), RowOptions())
        return await collect(held, paths, state, luck, agent_log, heir)


async def collect(
    held: ExitStack, paths: RunPaths, state: RunState | None, luck: random.Random, log: list[str], heir: Path | None
) -> Progress | None:
    rows, outputs = held.enter_context(MaterialisedRows.of(paths)), held.enter_context(RunOutputs(paths))
    ledger, index = held.enter_context(LedgerLog(paths.ledger)), held.enter_context(IndexLog(paths.index))
    port, limits = Mortal(outputs, luck, log, heir), CollectionSettings(max_attempts=BUDGET, join_backoff_s=0.0001)
    collection = Collection(rows, outputs, ledger, port, limits, index=index, state=state)
    run, death = asyncio.create_task(collection.run()), asyncio.create_task(port.died.wait())
    await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
    death.cancel()
    if not run.done():
        run.cancel()
    await asyncio.gather(run, death, return_exceptions=True)
    return None if port.died.is_set() else run.result()


def key_of(record: dict[str, Any]) -> str:
    attempt = record.get("_ng_attempt_index")
    return f"{record['_ng_task_index']}-{record['_ng_rollout_index']}" + (f"-a{attempt}" if attempt else "")


def check(paths: RunPaths, progress: Progress, agent_log: list[str]) -> None:
    assert progress.complete
    assert max(Counter(agent_log).values()) == 1, "an attempt id runs at most once, whoever died in between"
    lines = {path: path.read_text().splitlines() for path in (paths.output, paths.failures)}
    done, failed = ([json.loads(line) for line in lines[path]] for path in (paths.output, paths.failures))
    assert max(Counter(map(key_of, [*done, *failed])).values()) == 1, "an attempt leaves at most one record"
    assert {key_of(record) for record in [*done, *failed]} <= set(agent_log)
    rows_done = Counter(record["_ng_task_index"] for record in done)
    assert not rows_done or max(rows_done.values()) == 1
    failures = Counter(record["_ng_task_index"] for record in failed)
    assert all(count <= BUDGET for count in failures.values())
    assert (progress.done, progress.failed) == (len(rows_done), ROWS - len(rows_done))
    assert set(range(ROWS)) <= set(rows_done) | set(failures)
    indexed = [read_record(paths, written_of(frame)).decode() for frame in read_index(paths.index)]
    assert sorted(indexed) == sorted(line for some in lines.values() for line in some)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))])
async def test_whoever_dies_every_row_ends_once_and_no_attempt_runs_twice(tmp_path: Path, seed: int) -> None:
    luck, agent_log, deaths = random.Random(seed), list[str](), 0
    home = tmp_path / "0"
    home.mkdir()
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    (home / "in.jsonl").write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(ROWS)))
    for life in range(LIVES):
        heir = tmp_path / str(life + 1) if life + 1 < LIVES else None
        progress = await live(RunPaths.of(home / "out.jsonl"), luck, agent_log, heir)
        if progress is None and heir is not None:
            deaths, home = deaths + 1, heir
            continue
        assert progress is not None
        check(RunPaths.of(home / "out.jsonl"), progress, agent_log)
    assert deaths
