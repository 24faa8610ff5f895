from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.own_directory import own_directory


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_missing_one_is_made_for_its_owner_only_and_used_again(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        assert own_directory(tmp_path / "own") == tmp_path / "own"
    finally:
        os.umask(umask)
    assert mode(tmp_path / "own") == 0o700
    (tmp_path / "own" / "kept").touch()
    own_directory(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["kept"]


def test_one_that_others_may_only_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o755)
    own_directory(tmp_path / "own")
    assert mode(tmp_path / "own") == 0o700


@pytest.mark.parametrize("bits", [0o777, 0o720, 0o702])
def test_one_that_others_could_write_to_is_refused_as_it_is(tmp_path: Path, bits: int) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(bits)
    with pytest.raises(
        StorageError, match=rf"own: others can write to it \(mode {bits:04o}\); remove it, or set TMPDIR"
    ):
        own_directory(tmp_path / "own")
    assert mode(tmp_path / "own") == bits


def test_one_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir(0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(StorageError, match=f"own: belongs to user {owner}, not to {owner + 1}; remove it"):
        own_directory(tmp_path / "own")


@pytest.mark.parametrize("there", [True, False], ids=["to a directory", "to nothing"])
def test_a_link_is_never_followed(tmp_path: Path, there: bool) -> None:
    target = tmp_path / "theirs"
    if there:
        target.mkdir(0o755)
    (tmp_path / "own").symlink_to(target)
    before = mode(target) if there else None
    with pytest.raises(StorageError, match="own: is a link, which somebody may have put there; remove it"):
        own_directory(tmp_path / "own")
    assert (mode(target) if there else None) == before
    assert target.exists() == there


def test_a_file_in_its_place_and_a_missing_parent_are_named(tmp_path: Path) -> None:
    (tmp_path / "own").touch()
    for path in (tmp_path / "own", tmp_path / "none" / "own"):
        with pytest.raises(
            StorageError, match=f"{path}: cannot be used as a directory of this user's own: .*remove it"
        ):
            own_directory(path)
