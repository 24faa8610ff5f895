from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls, SyncOutcome
from gym_ray.storage.local_calls import LocalFileCalls, file_calls_for
from gym_ray.storage.parallel_syncs import ParallelSyncs

CLOSED = 999_999
"""No descriptor of this process."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    fds = [os.open(tmp_path / f"f{number}", os.O_RDWR | os.O_CREAT | os.O_APPEND) for number in range(40)]
    yield fds
    for fd in fds:
        os.close(fd)


def test_every_file_is_told_once(files: list[int]) -> None:
    syncs = ParallelSyncs()
    for count in (0, 1, 2, len(files)):
        told: list[SyncOutcome] = []
        for fd in files:
            os.write(fd, b"line\n")
        syncs.sync_all(files[:count], told.extend)
        assert sorted(told) == [(index, None) for index in range(count)]


def test_a_sync_that_fails_is_told_and_the_others_succeed(files: list[int]) -> None:
    reading, writing = os.pipe()  # a pipe cannot be synced
    try:
        told: list[SyncOutcome] = []
        ParallelSyncs().sync_all([files[0], writing, CLOSED, files[1]], told.extend)
    finally:
        os.close(reading)
        os.close(writing)
    errors = dict(told)
    assert len(told) == 4
    assert errors[0] is None
    assert errors[3] is None
    assert "Invalid argument" in str(errors[1])
    assert "Bad file descriptor" in str(errors[2])


def test_a_refused_request_is_done_on_the_spot(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = ParallelSyncs()
    monkeypatch.setattr(syncs, "_start", lambda *_: -1)  # as when the library has no memory left
    told: list[SyncOutcome] = []
    syncs.sync_all([files[0], CLOSED], told.extend)
    assert told[0] == (0, None)
    assert (told[1][0], str(told[1][1])) == (1, "[Errno 9] Bad file descriptor")


def test_many_threads_sync_at_the_same_time(files: list[int]) -> None:
    syncs, told = ParallelSyncs(), [0] * 8

    def work(number: int) -> None:
        mine = files[number * 5 : number * 5 + 5]
        for _ in range(20):
            for fd in mine:
                os.write(fd, b"x\n")
            outcomes: list[SyncOutcome] = []
            syncs.sync_all(mine, outcomes.extend)
            told[number] += sum(error is None for _, error in outcomes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert told == [100] * 8


def test_nothing_is_let_go_of_before_its_sync_has_ended(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = ParallelSyncs()
    still_running, wait_for_some = [0], syncs._wait_for_some

    def watched(running: dict[int, int]) -> list[SyncOutcome]:
        ended = wait_for_some(running)
        still_running[0] = len(running)
        return ended

    monkeypatch.setattr(syncs, "_wait_for_some", watched)

    def tell(_: list[SyncOutcome]) -> None:
        raise ValueError("listener")

    with pytest.raises(ValueError, match="listener"):
        syncs.sync_all(files, tell)
    assert still_running == [0]


FORKED = """
import os, sys
from gym_ray.storage import parallel_syncs
from gym_ray.storage.local_calls import LocalFileCalls, file_calls_for
from pathlib import Path

fds = [os.open(f"{sys.argv[1]}/f{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
parents = LocalFileCalls()
parents.sync_all(fds, lambda outcomes: None)
if os.fork() == 0:
    told, parallel_syncs._TRIAL_PATIENCE_S = [], 0.2
    parents.sync_all([*fds, 999_999], told.extend)
    file_calls_for(Path(sys.argv[1])).sync_all([*fds, 999_999], told.extend)
    print([(index, None if error is None else error.errno) for index, error in told])
else:
    _, status = os.wait()
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_syncs_without_the_threads_that_it_does_not_have(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    expected = [(0, None), (1, None), (2, None), (3, None), (4, 9)]
    assert child.stdout == f"{[*expected, *expected]}\n"


def test_a_library_that_calls_everything_a_success_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelSyncs, "_ended", lambda _, running: [(index, None) for index in running])
    with pytest.raises(OSError, match="does not work here"):
        ParallelSyncs()
    assert type(file_calls_for(tmp_path)) is FileCalls


@pytest.mark.parametrize("count", [1, 3])
def test_local_calls_sync_one_file_or_many(files: list[int], count: int) -> None:
    told: list[SyncOutcome] = []
    LocalFileCalls().sync_all(files[:count], told.extend)
    assert sorted(told) == [(index, None) for index in range(count)]


def test_another_system_is_refused_because_its_structures_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ray.storage.parallel_syncs.ctypes.sizeof", lambda _: 4)
    with pytest.raises(OSError, match="64-bit Linux only"):
        ParallelSyncs()
