from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.probe import check_directory
from gym_ray.testing.storage_faults import FaultyCalls, LocklessCalls


class HollowLocks(FileCalls):
    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        return True


def test_a_directory_is_created_and_left_empty(tmp_path: Path) -> None:
    check_directory(tmp_path / "a" / "b", FileCalls())
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize(
    ("calls", "message"),
    [(LocklessCalls(), "cannot be locked here: .*no locks"), (HollowLocks(), "does not keep a second writer out")],
)
def test_a_directory_without_locks_is_refused(tmp_path: Path, calls: FileCalls, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        check_directory(tmp_path, calls)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absolute"):
        check_directory(Path("relative"), FileCalls())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/x: the directory cannot be written"):
        check_directory(tmp_path / "file" / "x", FileCalls())
    calls = FaultyCalls(only=lambda path: True)
    calls.write_error = OSError(errno.ENOSPC, "full")
    with pytest.raises(StorageError, match=r"cannot be written: .*full"):
        check_directory(tmp_path, calls)
