from __future__ import annotations

import os
import stat as modes
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.local_calls import LocalFileCalls, _file_system, file_calls_for


@pytest.fixture(params=[FileCalls, LocalFileCalls])
def calls(request: pytest.FixtureRequest) -> FileCalls:
    made: FileCalls = request.param()
    return made


def test_a_lock_excludes_other_openers_until_it_is_given_up(calls: FileCalls, tmp_path: Path) -> None:
    first, second = (calls.open(str(tmp_path / "f"), os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert calls.lock_exclusive(first, wait=False)
        assert not calls.lock_exclusive(second, wait=False)
        assert not calls.lock_shared(second, wait=False)
        calls.unlock(first)
        assert calls.lock_shared(second, wait=False)
        assert calls.lock_shared(first, wait=True)
        assert not calls.lock_exclusive(first, wait=False)
    finally:
        calls.close(first)
        calls.close(second)
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.lock_exclusive(first, wait=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.unlock(first)


@pytest.mark.parametrize("size", [0, 1, 5_000_000_000])
def test_a_name_is_described_as_the_system_describes_it(calls: FileCalls, tmp_path: Path, size: int) -> None:
    path = tmp_path / "é f"
    path.touch(mode=0o640)
    os.truncate(path, size)
    os.link(path, tmp_path / "second name")
    found, wanted = calls.stat(str(path)), path.stat()
    for field in ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size"):
        assert getattr(found, field) == getattr(wanted, field), field
    assert modes.S_ISDIR(calls.stat(str(tmp_path)).st_mode)


def test_a_missing_name_is_a_file_not_found_error(calls: FileCalls, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        calls.stat(str(tmp_path / "missing"))


def test_only_a_local_file_system_gets_the_local_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    line = "36 35 98:0 / {point} rw,noatime master:1 - {kind} server:/export rw"
    mounts.write_text(
        "\n".join(
            line.format(point=point, kind=kind)
            for point, kind in (
                ("/", "ext4"),
                ("/shared\\040disk", "nfs4"),
                ("/shared\\040disk/local", "xfs"),
                ("/é\\134日本\udcff", "fuse"),
            )
        ),
        "utf-8",
        "surrogateescape",
    )
    monkeypatch.setattr("gym_ray.storage.local_calls._MOUNTS", mounts)
    assert _file_system(Path("/data/run")) == "ext4"
    assert _file_system(Path("/shared disk/run")) == "nfs4"
    assert _file_system(Path("/shared disk/local/run")) == "xfs"
    assert _file_system(Path("/é\\日本\udcff/run")) == "fuse"
    assert type(file_calls_for(Path("/data/not/there/yet"))) is LocalFileCalls
    assert type(file_calls_for(Path("/shared disk/run"))) is FileCalls
    monkeypatch.setattr("gym_ray.storage.local_calls._MOUNTS", tmp_path / "missing")
    assert type(file_calls_for(Path("/data"))) is FileCalls


def test_a_system_that_forbids_a_call_gets_the_plain_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: LocalFileCalls, path: str) -> os.stat_result:
        raise PermissionError(path)

    assert type(file_calls_for(tmp_path)) is LocalFileCalls
    monkeypatch.setattr(LocalFileCalls, "stat", forbidden)
    assert type(file_calls_for(tmp_path)) is FileCalls
