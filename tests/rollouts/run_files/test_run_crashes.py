"""Processes that write a run and are killed, and power cuts that forget what was not synced."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.rollouts.row_states.failure_classes import class_code
from gym_ray.rollouts.run_files.run_index import read_index, written_of
from gym_ray.rollouts.run_files.run_log import line_digest, read_record
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.testing.written_runs import UnsyncedCalls, WrittenRun, resumed

ROWS = 400
WRITER = """
import os, signal, sys
from pathlib import Path
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.written_runs import WrittenRun

class Slow(FileCalls):
    left = int(sys.argv[3])

    def write(self, fd, data):  # a few bytes at a time, so that a kill hits the middle of a line or frame
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(fd, bytes(data)[: int(sys.argv[2])])

def tell(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

with WrittenRun(Path(sys.argv[1]), None, calls=Slow()) as run:
    state = run.resumed.state
    for ordinal in state.pending(3):
        attempt = state.attempts[ordinal]
        tell("start", ordinal, attempt)
        run.start(ordinal, attempt)
        tell("started", ordinal, attempt)
        bad = {"_ng_failure_class": "agent_timeout"} if (ordinal + attempt) % 4 == 3 else {"reward": 1.0}
        written = run.record(ordinal, attempt, pad="x" * (ordinal * 97 % 3000), **bad)
        tell("failed" if bad.get("_ng_failure_class") else "done", ordinal, attempt)
        run.log(ordinal, attempt, written)
tell("end", 0, 0)
"""


def told(lines: list[bytes]) -> Iterator[tuple[str, int, int]]:
    for line in lines:
        if line.endswith(b"\n"):
            what, ordinal, attempt = line.decode().split()
            yield what, int(ordinal), int(attempt)


@pytest.mark.parametrize("from_outside", [True, False])
def test_kill_9_of_the_writer_of_all_files_loses_nothing_and_repeats_no_attempt(
    tmp_path: Path, from_outside: bool
) -> None:
    """Killed from outside at any moment, which is mostly in a sync; or by itself between two pieces of a write."""
    WrittenRun(tmp_path, ROWS).close()
    paths = RunPaths.of(tmp_path / "out.jsonl")
    pick = random.Random(from_outside)
    begun: set[tuple[int, int]] = set()
    ended: dict[str, set[tuple[int, int]]] = {"done": set(), "failed": set()}
    torn = 0
    for _ in range(6):
        piece, pieces = ("4096", "0") if from_outside else ("24", str(pick.randrange(1, 1500)))
        command = [sys.executable, "-c", WRITER, str(tmp_path), piece, pieces]
        lines = lines_until_killed(command, pick.randrange(1, 70) if from_outside else 100_000)
        for what, ordinal, attempt in told(lines):
            if what == "start":
                assert (ordinal, attempt) not in begun, "an attempt ran twice"
                assert (ordinal, attempt) not in ended["failed"] | ended["done"]
            elif what == "started":
                begun.add((ordinal, attempt))
            else:
                ended[what].add((ordinal, attempt))
        torn += any(path.read_bytes()[-1:] not in (b"\n", b"") for path in (paths.output, paths.failures))
        torn += any(path.stat().st_size % 64 for path in (paths.ledger, paths.index))
    found = resumed(paths)
    for ordinal, _ in ended["done"]:
        assert found.state.done[ordinal]
    for ordinal, attempt in ended["failed"]:
        assert found.state.failures[ordinal] >= 1
        assert found.state.attempts[ordinal] > attempt
        assert found.state.last_class[ordinal] == class_code("agent_timeout")
    for ordinal, attempt in begun:
        assert found.state.attempts[ordinal] > attempt
    assert len(ended["done"]) > 10
    check_files(paths, found.rows)
    if not from_outside:
        assert torn >= 3, "no kill hit the middle of a line or frame; the test proves too little"


class Died(Exception):
    """Stands for the process's death."""


class DiesInWrites(UnsyncedCalls):
    """Takes a few bytes a write, and dies before one of them."""

    def __init__(self, piece: int, writes: int) -> None:
        self._piece, self._left = piece, writes

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self._left <= 0:
            raise Died
        self._left -= 1
        return super().write(fd, bytes(data)[: self._piece])


@given(
    lives=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 40)), min_size=1, max_size=6),
    outcomes=st.lists(st.sampled_from(["done", "failed", "terminal", "killed"]), min_size=12, max_size=12),
)
@settings(max_examples=25, deadline=None)
def test_any_number_of_deaths_leaves_each_row_in_one_place(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]], outcomes: list[str]
) -> None:
    root = tmp_path_factory.mktemp("run")
    with WrittenRun(root, 4, calls=UnsyncedCalls()) as begun:
        paths = begun.paths
    ran: set[tuple[int, int]] = set()
    stored: dict[tuple[int, int], str] = {}
    turn = iter(outcomes * 20)
    for piece, writes in lives:
        with contextlib.suppress(Died):
            live_once(root, DiesInWrites(piece, writes), turn, ran, stored)
    state = resumed(paths, calls=UnsyncedCalls()).state
    for ordinal in range(4):
        ends = {what for (row, _), what in stored.items() if row == ordinal}
        assert state.done[ordinal] >= ("done" in ends)
        assert state.terminal[ordinal] >= ("terminal" in ends)
        assert state.failures[ordinal] >= len([1 for (row, _), what in stored.items() if row == ordinal]) - 1
        assert state.attempts[ordinal] >= max([attempt + 1 for row, attempt in ran if row == ordinal], default=0)
    if paths.output.stat().st_size:
        check_files(paths, 4)


def live_once(
    root: Path, calls: FileCalls, turn: Iterator[str], ran: set[tuple[int, int]], stored: dict[tuple[int, int], str]
) -> None:
    with WrittenRun(root, None, calls=calls) as run:
        assert run.resumed is not None
        state = run.resumed.state
        for ordinal in list(state.pending(3)):
            attempt = state.attempts[ordinal]
            run.start(ordinal, attempt)
            assert (ordinal, attempt) not in ran, "an attempt ran twice"
            ran.add((ordinal, attempt))
            outcome = next(turn)
            if outcome == "killed":
                continue
            failed = {"_ng_failure_class": "judge_failed"} if outcome != "done" else {"reward": 1.0}
            terminal = {"_ng_failure_terminal": True} if outcome == "terminal" else {}
            written = run.record(ordinal, attempt, pad="x" * (ordinal * 11), **failed, **terminal)
            stored[ordinal, attempt] = outcome
            run.log(ordinal, attempt, written)


def check_files(paths: RunPaths, rows: int) -> None:
    """Every line is whole and named by one frame; every row is in one place; no attempt has two records."""
    lines = {}
    for file in ("main", "failures"):
        data, offset = paths.output_of(file).read_bytes(), 0  # type: ignore[arg-type]
        assert data[-1:] in (b"\n", b"")
        for line in data.splitlines(keepends=True):
            record = json.loads(line)
            lines[file, offset] = record["_ng_task_index"], record.get("_ng_attempt_index", 0)
            offset += len(line)
    named = {}
    for frame in read_index(paths.index):
        written = written_of(frame)
        assert line_digest(read_record(paths, written)) == written.digest
        assert (written.file, written.offset) not in named
        named[written.file, written.offset] = frame.ordinal, frame.attempt
    assert named == lines
    assert len(set(lines.values())) == len(lines)
    done = [row for (file, _), (row, _) in lines.items() if file == "main"]
    assert len(set(done)) == len(done)
    assert max(done) < rows


def test_a_writer_that_is_killed_leaves_a_lock_that_a_resume_takes(tmp_path: Path) -> None:
    WrittenRun(tmp_path, ROWS).close()
    lines = lines_until_killed([sys.executable, "-c", WRITER, str(tmp_path), "4096", "0"], 3)
    assert lines
    with RunLock(RunPaths.of(tmp_path / "out.jsonl")) as lock:
        assert resume_run(lock).rows == ROWS


class CutAt(ForgetfulCalls):
    """Copies what a power cut would leave each time a file was written or synced, before the next step happens."""

    def __init__(self, root: Path, kept: Path) -> None:
        super().__init__()
        self._root, self._kept, self.cuts = root, kept, 0

    def _cut(self) -> None:
        place = self._kept / str(self.cuts)
        for directory in (self._root, self._root / "out.run"):
            target = place / directory.relative_to(self._root)
            target.mkdir(parents=True)
            for name, content in self.after_power_cut(directory).items():
                (target / name).write_bytes(content)
        self.cuts += 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        taken = super().write(fd, data)
        self._cut()
        return taken

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self._cut()


def test_a_power_cut_at_any_step_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Only what was synced is left; still no frame names a record that is not there."""
    root, kept = tmp_path / "run", tmp_path / "cuts"
    root.mkdir()
    with WrittenRun(root, 5):
        pass
    calls = CutAt(root, kept)
    acknowledged: list[tuple[int, int, int]] = []  # cut number from which on an attempt is started, done
    with WrittenRun(root, None, calls=calls) as run:
        for ordinal in range(5):
            run.start(ordinal, 0)
            started = calls.cuts
            bad = {"_ng_failure_class": "node_lost"} if ordinal % 2 else {}
            written = run.record(ordinal, 0, **bad)
            acknowledged.append((ordinal, started, calls.cuts))
            run.log(ordinal, 0, written)
    calls._cut()
    assert calls.cuts > 30
    for cut in range(acknowledged[0][1], calls.cuts):
        place = kept / str(cut)
        copy_what_was_there_before(root, place)
        paths = RunPaths.of(place / "out.jsonl")
        found = resumed(paths)
        assert not any("disagrees" in warning or "damaged" in warning for warning in found.warnings), (cut, found)
        for ordinal, started, stored in acknowledged:
            if cut >= started:
                assert found.state.attempts[ordinal] == 1
            if cut >= stored:
                assert (found.state.failures if ordinal % 2 else found.state.done)[ordinal] == 1


def copy_what_was_there_before(root: Path, place: Path) -> None:
    """Add the files of the run that were durable before the watched process began and are never written by it."""
    for name in ("out_materialized_inputs.jsonl", "out.run/manifest.json", "out.run/rows.index"):
        shutil.copyfile(root / name, place / name)


class UnsyncedOutputs(FileCalls):
    """The order of writes and syncs over all files."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self._names[fd] = Path(path).name
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.log.append(("write", self._names[fd]))
        return super().write(fd, data)

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.log.append(("synced", self._names[fd]))


def test_a_start_comes_before_the_record_and_the_record_before_its_frame(tmp_path: Path) -> None:
    calls = UnsyncedOutputs()
    with WrittenRun(tmp_path, 1, calls=calls) as run:
        calls.log.clear()
        run.finish(0, 0, reward=1.0)
    steps = ("ledger.log", "out.jsonl", "index.log")
    assert calls.log == [(what, name) for name in steps for what in ("write", "synced")]


ORPHAN = """
import sys
from pathlib import Path
from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import RunPaths
with RunOutputs(RunPaths.of(sys.argv[1])) as outputs:
    print("open", flush=True)
    for line in sys.stdin.buffer:
        try:
            print(outputs.append("main", line.rstrip(b"\\n")).offset, flush=True)
        except StorageError as error:
            print(error, flush=True)
"""
LATE = b'{"_ng_task_index": 0, "_ng_rollout_index": 0, "late": true}\n'


def test_a_joiner_that_outlives_its_collector_gives_no_row_a_second_result(tmp_path: Path) -> None:
    """Its record counts when it comes before the run is taken up, and is refused afterwards."""
    with WrittenRun(tmp_path, 3) as run:
        run.start(0, 0)
        paths = run.paths
    command = [sys.executable, "-c", ORPHAN, str(paths.output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as orphan:
        assert orphan.stdin is not None
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == b"open\n"
        orphan.stdin.write(LATE.replace(b": 0,", b": 1,", 1))
        orphan.stdin.flush()
        assert orphan.stdout.readline() == b"0\n"
        with WrittenRun(tmp_path, None) as run:
            assert run.resumed is not None
            assert list(run.resumed.state.done) == [0, 1, 0]
            assert list(run.resumed.state.attempts) == [1, 1, 0]
            orphan.stdin.write(LATE)
            orphan.stdin.flush()
            assert b"another collector has taken over" in orphan.stdout.readline()
            run.finish(0, 1, reward=1.0)
        orphan.stdin.close()
    found = resumed(paths)
    assert list(found.state.done) == [1, 1, 0]
    assert list(found.state.attempts) == [2, 1, 0]
    assert found.warnings == ()
