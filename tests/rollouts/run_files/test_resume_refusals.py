"""What a resume refuses leaves nothing behind that loses or mixes anything, or that a later start would not be told."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.run_files.frames import Frame, FrameKind
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, invalid_row_id, rollout_digest
from gym_ray.rollouts.run_files.run_index import IndexLog, finished_frame, read_index, written_of
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.testing.written_runs import STORY, UnsyncedCalls, WrittenRun, facts, resumed, story

FAST = UnsyncedCalls()


def test_a_ledger_in_another_order_gives_no_row_the_record_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of two runs are the same, and so is the last start; only the rows in between have other numbers."""
    monkeypatch.setattr("gym_ray.rollouts.run_files.recovery._HELD_LINES", 2)
    with WrittenRun(tmp_path, 4, calls=FAST) as run:
        for ordinal in (0, 1):
            run.start(ordinal, 0)
            run.record(ordinal, 0, reward=ordinal)
        run.start(3, 0)
        paths = run.paths
    right = paths.ledger.read_bytes()
    with LedgerLog(paths.ledger) as log:
        os.truncate(paths.ledger, 0)
        starts = [(1, "0-0"), (0, "1-0"), (3, "3-0")]
        log.append_frames([Frame(FrameKind.STARTED, row, 0, rollout_digest(name), 1) for row, name in starts])
    with pytest.raises(StorageError, match=r"a start in it is not one of row 2 of .* belongs to other rows"):
        resumed(paths)
    assert not paths.index.read_bytes(), "nothing was believed"
    paths.ledger.write_bytes(right)
    assert facts(resumed(paths).state)["attempts"] == [1, 1, 0, 1]
    assert [(frame.ordinal, written_of(frame).offset == 0) for frame in read_index(paths.index)] == [
        (0, True),
        (1, False),
    ]


def test_a_ledger_that_holds_frames_of_an_index_is_refused(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with LedgerLog(paths.ledger) as log:
        log.append_frames([Frame(FrameKind.FINISHED, 2, 0, bytes(16), 1, length=3)])
    with pytest.raises(StorageError, match=r"ledger\.log: a frame for row 2 is not one of this run"):
        resumed(paths)


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_row_that_was_damaged_when_it_started_last_may_be_restored(tmp_path: Path, attempt: int) -> None:
    """Its start bears a name that the restored row does not have; the ledger is this run's all the same."""
    paths = story(tmp_path)
    with LedgerLog(paths.ledger) as log:
        digest = rollout_digest(invalid_row_id(5, attempt))
        log.append_frames([Frame(FrameKind.STARTED, 5, attempt, digest, 1)])
    assert list(resumed(paths).state.attempts) == [1, 2, 1, 1, 1, attempt + 1]
    with LedgerLog(paths.ledger) as log:
        log.append_frames([Frame(FrameKind.STARTED, 4, attempt, digest, 1)])
    with pytest.raises(StorageError, match="a start in it is not one of row 5"):
        resumed(paths)


def everything(paths: RunPaths) -> dict[str, bytes]:
    """What a resume rests on: all files but the index of the rows, which follows from them, and the lock."""
    left_out = (paths.rows_index, paths.lock)
    return {
        str(path): path.read_bytes()
        for path in paths.output.parent.rglob("*")
        if path.is_file() and path not in left_out
    }


def torn_story(root: Path) -> RunPaths:
    """The story with half a line at the end of every file."""
    paths = story(root)
    for path in (paths.output, paths.failures, paths.sources, paths.ledger, paths.index):
        with path.open("ab") as file:
            file.write(b'{"torn')
    return paths


def without_a_row(paths: RunPaths) -> None:
    paths.materialised.write_bytes(b"".join(paths.materialised.read_bytes().splitlines(keepends=True)[:-1]))


def of_other_rows(paths: RunPaths) -> None:
    paths.materialised.write_bytes(paths.materialised.read_bytes().replace(b'"n":3', b'"n":4'))
    paths.rows_index.unlink()


def with_another_count(paths: RunPaths) -> None:
    paths.manifest.write_bytes(paths.manifest.read_bytes().replace(b'"rows":6', b'"rows":7'))


def without_a_manifest_that_can_be_read(paths: RunPaths) -> None:
    paths.manifest.write_bytes(b"{")


@pytest.mark.parametrize(
    "harm", [without_a_row, of_other_rows, with_another_count, without_a_manifest_that_can_be_read]
)
def test_rows_are_refused_before_anything_changes(tmp_path: Path, harm: Callable[[RunPaths], None]) -> None:
    paths = torn_story(tmp_path)
    harm(paths)
    before = everything(paths)
    for salvage in (False, True):
        with pytest.raises(InputError):
            resumed(paths, salvage=salvage)
        assert everything(paths) == before


def test_outputs_are_not_bound_to_rows_that_are_not_theirs(tmp_path: Path) -> None:
    """An output without a run directory beside the rows of another run: refused, and the right rows are taken."""
    paths = RunPaths.of(tmp_path / "out.jsonl")
    rows = [json.dumps({"_ng_task_index": task, "_ng_rollout_index": 0}) + "\n" for task in range(3)]
    paths.materialised.write_text("".join(rows[:2]))
    paths.output.write_text(rows[2])
    with pytest.raises(InputError, match="belongs to no row"):
        resumed(paths)
    assert not paths.manifest.exists()
    paths.materialised.write_text("".join(rows))
    found = resumed(paths)
    assert list(found.state.done) == [0, 0, 1]
    manifest = read_manifest(paths)
    assert manifest is not None
    assert (manifest.run_id, manifest.rows) == (found.run_id, 3)


def test_an_index_is_not_believed_where_nothing_says_which_rows_it_counts(tmp_path: Path) -> None:
    paths = story(tmp_path)
    resumed(paths)
    paths.manifest.unlink()
    paths.ledger.unlink()
    rows = paths.materialised.read_bytes().splitlines(keepends=True)
    paths.materialised.write_bytes(b"".join([*rows[1:], rows[0]]))
    assert list(resumed(paths).state.done) == [1, 0, 0, 1, 0, 1]


def test_an_index_that_names_a_row_beyond_the_last_is_built_again(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with IndexLog(paths.index) as index:
        index.append_frames([finished_frame(6, 0, Written("main", 0, 10))])
    found = resumed(paths)
    assert facts(found.state) == STORY
    assert any("index.log: names a row 6 of 6; it was built again" in warning for warning in found.warnings)
    assert max(frame.ordinal for frame in read_index(paths.index)) == 4


def test_a_refused_start_hides_nothing_from_the_next_one(tmp_path: Path) -> None:
    """A lost ledger, lost results: both are said when the damaged line that stopped the first start is set aside."""
    paths = story(tmp_path)
    resumed(paths)
    paths.ledger.unlink()
    lines = paths.output.read_bytes().splitlines(keepends=True)
    paths.output.write_bytes(lines[0] + b"no record\n")
    for _ in range(2):
        with pytest.raises(InputError, match=r"out\.jsonl:2: the line is no JSON object"):
            resumed(paths)
    found = resumed(paths, salvage=True)
    assert list(found.state.done) == [1, 0, 0, 0, 0, 0]
    assert any(f"{paths.ledger}: is missing" in warning for warning in found.warnings)


def test_results_that_are_gone_are_said_whatever_else_is_wrong(tmp_path: Path) -> None:
    paths = story(tmp_path)
    resumed(paths)
    lines = paths.output.read_bytes().splitlines(keepends=True)
    for salvage in (False, True):
        paths.output.write_bytes(lines[0])
        for copy in range(2):
            found = resumed(paths, salvage=salvage)
            gone = [warning for warning in found.warnings if "results that were stored and are gone: 2;" in warning]
            assert len(gone) == (copy == 0)
        paths.output.write_bytes(b"".join(lines))
        resumed(paths)
    paths.output.write_bytes(lines[0] + b"no record\n")
    with pytest.raises(InputError, match="and that are gone: 2"):
        resumed(paths)
    paths.output.write_bytes(b"".join(lines))
    resumed(paths)
    paths.output.write_bytes(lines[0] + b"no record\n")
    assert any("are gone: 2;" in warning for warning in resumed(paths, salvage=True).warnings)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["output", "failures", "sources"])
def test_a_stopped_process_that_holds_an_output_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("gym_ray.rollouts.run_files.run_resume.LOCK_TIMEOUT_S", 0.05)
    paths = story(tmp_path)
    path: Path = getattr(paths, name)
    before = everything(paths)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StorageError) as caught:
                resumed(paths)
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        assert str(caught.value).startswith(f"{path}: ")
        assert "has held the lock of this file for more than 0.05 s" in str(caught.value)
        assert "let it go on (kill -CONT) or end it" in str(caught.value)
    assert everything(paths) == before
    assert facts(resumed(paths).state) == STORY


def test_a_lock_that_is_given_back_in_time_is_waited_for(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with paths.output.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(resumed, paths)
            assert not wait([found], timeout=0.2).done
            fcntl.flock(file, fcntl.LOCK_UN)
            assert facts(found.result(timeout=30).state) == STORY
