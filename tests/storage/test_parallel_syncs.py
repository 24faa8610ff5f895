from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.storage.calls import SyncOutcome
from gym_ray.storage.local_calls import LocalFileCalls
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


@pytest.mark.parametrize("count", [1, 3])
def test_local_calls_sync_one_file_or_many(files: list[int], count: int) -> None:
    told: list[SyncOutcome] = []
    LocalFileCalls().sync_all(files[:count], told.extend)
    assert sorted(told) == [(index, None) for index in range(count)]


def test_another_system_is_refused_because_its_structures_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ray.storage.parallel_syncs.ctypes.sizeof", lambda _: 4)
    with pytest.raises(OSError, match="64-bit Linux only"):
        ParallelSyncs()
