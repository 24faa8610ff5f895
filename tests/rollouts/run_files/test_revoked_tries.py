"""Two joiners with one attempt: either the earlier one's record is found, or it can never be appended."""

from __future__ import annotations

import errno
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.parts_files import publish_parts
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputFile, OutputMark, RunPaths
from gym_ray.storage.calls import FileCalls

START = OutputMark(0, 0)
ROUNDS = 300


def record(number: int, task: int = 0) -> bytes:
    return json.dumps({"_ng_task_index": task, "_ng_rollout_index": 0, "try": number}).encode()


def part(name: str) -> bytes:
    return json.dumps({"k": name, "v": f"what {name} says"}).encode() + b"\n"


class Three:
    """A collector and two joiners, each with open files of its own."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.source = root / "in.jsonl"
        row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
        self.source.write_text("".join(json.dumps(row | {"n": n}) + "\n" for n in range(2)))
        self.paths = RunPaths.of(root / "out.jsonl")
        self.lock = RunLock(self.paths)
        begin_run(self.lock, self.source, RowOptions())
        self.collector, self.first, self.second = (RunOutputs(self.paths) for _ in range(3))

    def close(self) -> None:
        for each in (self.collector, self.first, self.second, self.lock):
            each.close()

    def records(self) -> list[Any]:
        return [
            json.loads(line)["try"]
            for path in (self.paths.output, self.paths.failures)
            for line in path.read_bytes().splitlines()
        ]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    found = Three(tmp_path / "run")
    yield found
    found.close()


class Steps:
    """The steps of both tries, each a call; a try that was refused does no more."""

    def __init__(self, three: Three, file: OutputFile, late: OutputFile) -> None:
        self.three, self.files = three, (file, late)
        self.refused_at: str | None = None
        self.found: bool | None = None

    def of_first(self) -> list[Callable[[], None]]:
        return [lambda what=what: self._first(what) for what in ("source", "parts", "record")]  # type: ignore[misc]

    def of_second(self) -> list[Callable[[], None]]:
        later = [lambda what=what: self._second(what) for what in ("source", "parts", "record")]  # type: ignore[misc]
        return [self._revoke, self._find, *later]

    def _first(self, what: str) -> None:
        if self.refused_at is None:
            try:
                store(self.three.first, what, self.files[0], 1)
            except StorageError as error:
                if "try 1 of its join was called back" not in str(error):
                    raise
                self.refused_at = what

    def _revoke(self) -> None:
        self.three.collector.revoke(JoinTry("0-0", 1))

    def _find(self) -> None:
        self.found = self.three.second.find("0-0", START) is not None

    def _second(self, what: str) -> None:
        if not self.found:
            store(self.three.second, what, self.files[1], 2)


def store(outputs: RunOutputs, what: str, file: OutputFile, number: int) -> None:
    mine = JoinTry("0-0", number)
    if what == "source":
        outputs.append_source(json.dumps({"rollout_id": "0-0", "try": number}).encode(), of_try=mine)
    elif what == "parts":
        publish_parts(outputs.paths, "0-0", part(str(number)), alone=lambda: outputs.alone(mine))
    else:
        outputs.append(file, record(number), of_try=mine)


def orders() -> Iterator[tuple[int, ...]]:
    """Every way in which three steps of one and five of the other can follow each other: 1 is a step of the first."""
    for chosen in itertools.combinations(range(8), 3):
        yield tuple(1 if place in chosen else 2 for place in range(8))


@pytest.mark.parametrize("files", [("main", "main"), ("failures", "failures"), ("main", "failures")], ids=str)
def test_exactly_one_record_comes_of_two_tries_in_every_order(
    tmp_path: Path, files: tuple[OutputFile, OutputFile]
) -> None:
    seen = set()
    for number, order in enumerate(orders()):
        three = Three(tmp_path / str(number))
        steps = Steps(three, *files)
        queues = {1: iter(steps.of_first()), 2: iter(steps.of_second())}
        for who in order:
            next(queues[who])()
        stored = three.records()
        assert stored == ([1] if steps.found else [2]), order
        assert steps.refused_at is None if steps.found else steps.refused_at is not None, order
        assert json.loads(three.paths.sources.read_bytes().splitlines()[-1])["try"] == stored[0], order
        parts = (three.paths.parts / "0-0.parts.jsonl").read_bytes()
        assert part(str(stored[0])) in parts, order
        seen.add(steps.refused_at)
        three.close()
    assert seen == {None, "source", "parts", "record"}


def test_exactly_one_record_comes_of_two_tries_that_race(three: Three) -> None:
    winners = []
    for number in range(ROUNDS):
        rollout_id, ready = f"{number}-0", threading.Barrier(2)
        refused: list[str] = []

        def first(rollout_id: str = rollout_id, number: int = number, ready: threading.Barrier = ready) -> None:
            ready.wait()
            for _ in range(number % 30):
                three.first.find("nobody", three.first.mark())  # some start a little later
            try:
                three.first.append("main", record(1, number), of_try=JoinTry(rollout_id, 1))
            except StorageError as error:
                refused.append(str(error))  # noqa: B023 - the thread ends with its round

        thread = threading.Thread(target=first)
        thread.start()
        mark = three.collector.mark()
        ready.wait()
        three.collector.revoke(JoinTry(rollout_id, 1))
        found = three.second.find(rollout_id, mark)
        if found is None:
            three.second.append("main", record(2, number), of_try=JoinTry(rollout_id, 2))
        thread.join(30)
        assert not thread.is_alive()
        assert bool(refused) == (found is None), number
        winners.append(1 if found else 2)
    assert three.records() == winners
    assert len(set(winners)) == 2, "the race was none"


def test_calling_back_one_attempt_is_nothing_to_others_and_to_later_tries(three: Three) -> None:
    three.collector.revoke(JoinTry("0-0", 2))
    for number in (1, 2):
        with pytest.raises(StorageError, match=f"0-0: try {number} of its join was called back"):
            three.first.append("main", record(number), of_try=JoinTry("0-0", number))
    three.first.append("main", record(3), of_try=JoinTry("0-0", 3))
    three.first.append("main", record(1, 1), of_try=JoinTry("1-0", 1))
    assert three.records() == [3, 1]


def test_an_earlier_try_that_is_called_back_again_frees_no_later_one(three: Three) -> None:
    for number in (2, 1):
        three.collector.revoke(JoinTry("0-0", number))
    with pytest.raises(StorageError, match="called back"):
        three.first.append("main", record(2), of_try=JoinTry("0-0", 2))


class Counting(FileCalls):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.opened.append(path)
        return super().open(path, flags, mode)


def test_what_was_called_back_is_read_once_and_without_it_nothing_is_read(three: Three) -> None:
    calls = Counting()
    with RunOutputs(three.paths, calls=calls) as outputs:
        calls.opened.clear()
        for number in range(3):
            outputs.append("main", record(1, number), of_try=JoinTry(f"{number}-0", 1))
        assert calls.opened == []
        three.collector.revoke(JoinTry("9-0", 1))
        for number in range(3):
            outputs.append("main", record(1, number), of_try=JoinTry(f"{number}-0", 1))
        (revoked,) = three.paths.revoked.iterdir()
        assert calls.opened == [str(revoked)]


def revoked_file(three: Three) -> Path:
    (found,) = three.paths.revoked.iterdir()
    return found


def test_a_line_that_was_cut_off_is_not_in_force_and_is_written_over(three: Three) -> None:
    three.collector.revoke(JoinTry("1-0", 1))
    path, whole = revoked_file(three), b'{"rollout_id":"0-0","number":1}\n'
    counted = path.stat().st_size
    for cut in range(len(whole) + 1):  # the collector died before the line counted
        path.write_bytes(path.read_bytes()[:counted] + whole[:cut])
        three.first.append("main", record(cut), of_try=JoinTry("0-0", 1))
    three.collector.revoke(JoinTry("0-0", 1))
    assert path.read_bytes() == b'{"rollout_id":"1-0","number":1}\n' + whole
    with pytest.raises(StorageError, match="called back"):
        three.second.append("main", record(0), of_try=JoinTry("0-0", 1))


def spoil_nothing_there(path: Path) -> None:
    path.unlink()


def spoil_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def spoil_line(path: Path) -> None:
    path.write_bytes(b"#" * (path.stat().st_size - 1) + b"\n")


@pytest.mark.parametrize("spoil", [spoil_nothing_there, spoil_cut, spoil_line])
def test_what_counts_and_cannot_be_read_keeps_everybody_out(three: Three, spoil: Callable[[Path], None]) -> None:
    three.collector.revoke(JoinTry("0-0", 1))
    spoil(revoked_file(three))
    for write in (
        lambda: three.first.append("main", record(2), of_try=JoinTry("0-0", 2)),
        lambda: three.first.append_source(b"{}", of_try=JoinTry("0-0", 2)),
        lambda: three.first.find("0-0", START),
    ):
        with pytest.raises(StorageError, match="which tries of joins were called back cannot be read"):
            write()
    assert three.records() == []


@pytest.mark.parametrize("stranger", [b"deadbeef0000000000000000", b"x"], ids=["another term", "damage"])
def test_a_count_of_somebody_else_keeps_everybody_out(three: Three, stranger: bytes) -> None:
    with three.paths.lock.open("r+b") as file:
        file.seek(232)
        file.write(stranger)
    with pytest.raises(StorageError, match="does not say which tries of joins were called back"):
        three.first.append("main", record(1), of_try=JoinTry("0-0", 1))
    with pytest.raises(StorageError, match="does not say"):
        three.collector.revoke(JoinTry("0-0", 1))


class Full(FileCalls):
    """A disk that takes ``room`` bytes more of what is called back."""

    room = 0

    def write_at(self, fd: int, data: bytes, offset: int) -> int:
        if self.room < len(data):
            super().write_at(fd, data[: self.room], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_at(fd, data, offset)


def test_what_cannot_be_called_back_is_said_and_changes_nothing(three: Three) -> None:
    calls = Full()
    with RunOutputs(three.paths, calls=calls) as collector:
        for calls.room in (0, 7, 28):
            with pytest.raises(StorageError, match=r"a join of 0-0 cannot be called back: .*No space left"):
                collector.revoke(JoinTry("0-0", 1))
        three.first.append("main", record(1), of_try=JoinTry("0-0", 1))
        calls.room = 1000
        collector.revoke(JoinTry("0-0", 1))
    with pytest.raises(StorageError, match="called back"):
        three.first.append("main", record(1), of_try=JoinTry("0-0", 1))


def test_without_a_lock_nothing_can_be_called_back(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    for path in (paths.output, paths.failures):
        path.touch()
    with RunOutputs(paths) as outputs, pytest.raises(StorageError, match="cannot be called back"):
        outputs.revoke(JoinTry("0-0", 1))


COLLECTOR = """
import sys, time
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths
paths = RunPaths.of(sys.argv[1])
with RunLock(paths), RunOutputs(paths) as outputs:
    print("begun", flush=True)
    sys.stdin.readline()
    outputs.revoke(JoinTry("0-0", 1))
    print("revoked", flush=True)
    time.sleep(600)
"""


def test_a_collector_killed_between_calling_back_and_asking_again_leaves_a_run_that_goes_on(three: Three) -> None:
    three.lock.close()
    command = [sys.executable, "-c", COLLECTOR, str(three.paths.output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as collector:
        try:
            assert collector.stdin is not None
            assert collector.stdout is not None
            assert collector.stdout.readline() == b"begun\n"
            zombie = RunOutputs(three.paths)
            collector.stdin.write(b"\n")
            collector.stdin.flush()
            assert collector.stdout.readline() == b"revoked\n"
        finally:
            collector.kill()
    with zombie, pytest.raises(StorageError, match="try 1 of its join was called back"):
        zombie.append("main", record(1), of_try=JoinTry("0-0", 1))
    with RunLock(three.paths) as lock:
        assert list(resume_run(lock).state.done) == [0, 0]
        with RunOutputs(three.paths) as own:  # names of tries count from one again, those of attempts do not
            own.append("main", record(1), of_try=JoinTry("0-0", 1))
            own.revoke(JoinTry("1-0", 1))
            with pytest.raises(StorageError, match="called back"):
                own.append("main", record(1, 1), of_try=JoinTry("1-0", 1))
    with RunLock(three.paths) as lock:
        assert list(resume_run(lock).state.done) == [1, 0]


def test_a_fresh_run_of_the_same_output_knows_nothing_of_it(three: Three) -> None:
    three.collector.revoke(JoinTry("0-0", 1))
    three.lock.close()
    with RunLock(three.paths) as lock:
        begin_run(lock, three.source, RowOptions())
        assert not three.paths.revoked.exists()
        with RunOutputs(three.paths) as outputs:
            outputs.append("main", record(1), of_try=JoinTry("0-0", 1))
