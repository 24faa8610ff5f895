from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.replacing import replacing


class WatchedCalls(FileCalls):
    """Notes what is made durable and what takes its name, and may fail at a rename."""

    def __init__(self, fails_at: int = -1) -> None:
        self.done: list[str] = []
        self._fails_at = fails_at

    def sync(self, fd: int) -> None:
        self.done.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        super().sync(fd)

    def rename(self, source: str, target: str) -> None:
        if self.done.count("rename") == self._fails_at:
            raise OSError(5, "no rename")
        self.done.append("rename")
        super().rename(source, target)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "run").mkdir()
    found = [tmp_path / "run" / "report", tmp_path / "report"]
    for path in found:
        path.write_bytes(b"old")
    return found


def contents(paths: list[Path]) -> list[bytes]:
    held = sorted(str(path) for directory in paths for path in directory.parent.iterdir() if path.is_file())
    assert held == sorted(map(str, paths)), "something is left beside them"
    return [path.read_bytes() for path in paths]


def test_every_path_has_the_new_content_and_its_name_is_durable(paths: list[Path]) -> None:
    calls = WatchedCalls()
    with replacing(calls, paths) as out:
        out.write(b"new" * 1_000_000)
        assert [path.read_bytes() for path in paths] == [b"old", b"old"]
    assert contents(paths) == [b"new" * 1_000_000] * 2
    assert calls.done == ["file", "file", "rename", "rename", "directory", "directory"]


def test_a_directory_with_several_of_them_is_synced_once(tmp_path: Path) -> None:
    calls = WatchedCalls()
    with replacing(calls, [tmp_path / "a", tmp_path / "b"]) as out:
        out.write(b"x")
    assert calls.done.count("directory") == 1


def test_a_block_that_fails_changes_nothing(paths: list[Path]) -> None:
    with pytest.raises(TypeError), replacing(FileCalls(), paths) as out:
        out.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert contents(paths) == [b"old", b"old"]


@pytest.mark.parametrize(("fails_at", "left"), [(0, [b"old", b"old"]), (1, [b"new", b"old"])])
def test_a_rename_that_fails_leaves_whole_files(paths: list[Path], fails_at: int, left: list[bytes]) -> None:
    with pytest.raises(OSError, match="no rename"), replacing(WatchedCalls(fails_at), paths) as out:
        out.write(b"new")
    assert contents(paths) == left
