from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import WouldWaitError
from gym_ray.token_id_capture.token_files.rollout_locks import RolloutLocks


def locks(root: Path, calls: FileCalls | None = None, timeout_s: float = 20.0) -> RolloutLocks:
    return RolloutLocks(str(root), calls or FileCalls(), timeout_s)


def test_a_writer_keeps_out_writers_and_readers_of_its_rollout_only(tmp_path: Path) -> None:
    one = locks(tmp_path)
    impatient = locks(tmp_path, timeout_s=0.01)
    with one.exclusive("r0"):
        with pytest.raises(WouldWaitError):
            one.take("r0", wait=False)
        with pytest.raises(OSError, match=r"another has held this lock for more than 0\.01 s"):
            impatient.take("r0")
        with pytest.raises(OSError, match=r"r0\.tokens\.lock"), impatient.shared("r0"):
            pytest.fail("a reader was let in")
        with one.exclusive("r1"):
            pass
    with one.exclusive("r0"):
        pass


def test_readers_share_and_create_nothing(tmp_path: Path) -> None:
    one = locks(tmp_path)
    with one.shared("r0"):
        assert os.listdir(tmp_path) == []
    with one.exclusive("r0"):
        pass
    with one.shared("r0"), one.shared("r0"), pytest.raises(WouldWaitError):
        one.take("r0", wait=False)
    assert os.listdir(tmp_path) == ["r0.tokens.lock"]


class RemovedWhileOpening(FileCalls):
    """The lock file loses its name between the first open and the look at it."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.opened += 1
        if self.opened == 1:
            Path(path).unlink()
        return fd


def test_the_lock_of_a_file_that_lost_its_name_does_not_count(tmp_path: Path) -> None:
    calls = RemovedWhileOpening()
    lock = locks(tmp_path, calls).take("r0")
    assert calls.opened == 2
    assert os.fstat(lock).st_ino == (tmp_path / "r0.tokens.lock").stat().st_ino
    with pytest.raises(WouldWaitError):
        locks(tmp_path).take("r0", wait=False)
    calls.close(lock)


def test_two_never_hold_a_lock_whose_file_is_removed_and_made_again(tmp_path: Path) -> None:
    holders, most = 0, 0

    def work() -> None:
        nonlocal holders, most
        one = locks(tmp_path)
        for _ in range(60):
            with one.exclusive("r0"):
                holders += 1
                most = max(most, holders)
                holders -= 1
                (tmp_path / "r0.tokens.lock").unlink()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    one = locks(tmp_path, timeout_s=0.005)
    with one.exclusive("r0"):
        for _ in range(3):
            with pytest.raises(OSError, match="held this lock"):
                one.take("r0")
    assert len(os.listdir("/proc/self/fd")) == before
