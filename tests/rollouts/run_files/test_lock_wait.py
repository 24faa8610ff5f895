from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.rollouts.capture_owner import CaptureOwner
from gym_ray.rollouts.run_files import lock_wait
from gym_ray.rollouts.run_files.judge_requeue import requeue_invalid_judge
from gym_ray.rollouts.run_files.lock_wait import LOCK_TIMEOUT_S, lock_in_time
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.written_runs import story


def test_a_free_lock_is_taken_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as mine, path.open("rb") as other:
        lock_in_time(path, mine.fileno(), FileCalls(), timeout_s=0.0)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_wait_ends_and_names_file_and_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, elsewhere = tmp_path / "f", tmp_path / "locks"
    with path.open("wb") as holder, path.open("rb") as mine:
        fcntl.flock(holder, fcntl.LOCK_SH)
        with pytest.raises(
            StorageError,
            match=rf"f: (process {os.getpid()}|another process,.*) has held the lock .* for more than 0\.02 s",
        ):
            lock_in_time(path, mine.fileno(), FileCalls(), timeout_s=0.02)
        status = os.fstat(mine.fileno())
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for known, told in (
            (None, "another process"),
            ("?\n", "another process"),
            (f"1: FLOCK  ADVISORY  WRITE 7 {device}:{status.st_ino + 1} 0 EOF\n", "another process"),
            (f"1: FLOCK  ADVISORY  WRITE 7 fe:ff:{status.st_ino} 0 EOF\n", "another process"),
            (f"1: POSIX  ADVISORY  WRITE 7 {device}:{status.st_ino} 0 EOF\n", "another process"),
            (f"1: -> FLOCK  ADVISORY  WRITE 7 {device}:{status.st_ino} 0 EOF\n", "another process"),
            (f"1: FLOCK  ADVISORY  WRITE 0 {device}:{status.st_ino} 0 EOF\n", "another process"),
            (f"?\n1: FLOCK  ADVISORY  READ 77 {device}:{status.st_ino} 0 EOF\n", "process 77"),
        ):
            if known is not None:
                elsewhere.write_text(known)
            monkeypatch.setattr(lock_wait, "_LOCKS", elsewhere)
            with pytest.raises(StorageError, match=rf"f: {told}.* has held the lock"):
                lock_in_time(path, mine.fileno(), FileCalls(), timeout_s=0.0)


def test_a_file_that_cannot_be_locked_is_no_held_lock(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock_in_time(tmp_path, descriptor, FileCalls())


def test_holders_have_half_a_minute() -> None:
    assert LOCK_TIMEOUT_S == 30.0


def test_a_run_does_not_wait_for_a_stopped_one_that_claims_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_ray.rollouts.capture_owner.lock_in_time", partial(lock_in_time, timeout_s=0.02))
    CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], tmp_path / "out").close()
    (lock,) = tmp_path.rglob("lock")
    with lock.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=f"{lock}: (process {os.getpid()}|another process,.*) has held"):
            CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], tmp_path / "out")
    CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], tmp_path / "out").close()


@pytest.mark.parametrize("name", ["output", "failures"])
def test_invalid_verdicts_do_not_wait_for_a_stopped_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("gym_ray.rollouts.run_files.judge_requeue.LOCK_TIMEOUT_S", 0.02)
    paths = story(tmp_path)
    path: Path = getattr(paths, name)
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=f"{path}: (process {os.getpid()}|another process,.*) has held"):
            requeue_invalid_judge(paths)
