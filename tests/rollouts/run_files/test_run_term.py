"""A joiner that outlives its collector writes nothing into the run that another collector has taken up."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_files.run_term import RunTerm
from gym_ray.rollouts.run_paths import RunPaths

RECORD = b'{"_ng_task_index": %d, "_ng_rollout_index": 0, "reward": 1.0}'


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths.of(tmp_path / "out.jsonl")


@pytest.fixture
def left_behind(paths: RunPaths) -> RunOutputs:
    """What the joiner of a dead collector holds open: the collector's lock ended with it."""
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    source = paths.output.with_name("in.jsonl")
    source.write_text("".join(json.dumps(row | {"n": n}) + "\n" for n in range(3)))
    with RunLock(paths) as lock:
        begin_run(lock, source, RowOptions())
        return RunOutputs(paths)


def test_what_comes_before_the_next_collector_is_found_by_it(paths: RunPaths, left_behind: RunOutputs) -> None:
    with left_behind:
        left_behind.append("main", RECORD % 1)
    with RunLock(paths) as lock:
        assert list(resume_run(lock).state.done) == [0, 1, 0]


@pytest.mark.parametrize("resumed", [False, True], ids=["it has the lock", "it has resumed"])
def test_what_comes_after_it_is_refused(paths: RunPaths, left_behind: RunOutputs, resumed: bool) -> None:
    with ExitStack() as held:
        held.enter_context(left_behind)
        lock = held.enter_context(RunLock(paths))
        if resumed:
            resume_run(lock)
        before = {path: path.read_bytes() for path in (paths.output, paths.failures, paths.sources)}
        mark = left_behind.mark()
        for write in (
            lambda: left_behind.append("main", RECORD % 1),
            lambda: left_behind.append("failures", RECORD % 1),
            lambda: left_behind.append_source(b"{}"),
            lambda: left_behind.find("1-0", mark),
        ):
            with pytest.raises(StorageError, match="another collector has taken over this output"):
                write()
        assert {path: path.read_bytes() for path in before} == before
        with RunOutputs(paths) as own:
            own.append("main", RECORD % 1)


def test_the_collector_and_joiners_of_one_term_write_side_by_side(paths: RunPaths, left_behind: RunOutputs) -> None:
    with left_behind, RunOutputs(paths) as another:
        left_behind.append("main", RECORD % 0)
        another.append("main", RECORD % 1)
        left_behind.append("main", RECORD % 2)
    assert paths.output.read_bytes().count(b"\n") == 3


def test_a_collector_that_is_refused_begins_no_term(paths: RunPaths, left_behind: RunOutputs) -> None:
    with left_behind, RunLock(paths), RunOutputs(paths) as outputs:
        with pytest.raises(StorageError, match="another collector"):
            RunLock(paths)
        outputs.append("main", RECORD % 0)


def test_files_that_nobody_ever_locked_have_one_term(paths: RunPaths) -> None:
    term = RunTerm(paths)
    term.check()
    RunLock(paths).close()
    with pytest.raises(StorageError, match="taken over"):
        term.check()


def test_a_lock_that_cannot_be_read_is_said(paths: RunPaths) -> None:
    term = RunTerm(paths)
    paths.lock.parent.mkdir()
    paths.lock.mkdir()
    with pytest.raises(StorageError, match=f"{paths.lock}: cannot be read"):
        term.check()
