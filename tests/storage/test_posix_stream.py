from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path

import pytest

from gym_ray.errors import StorageError, StorageExistsError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import PosixStore
from gym_ray.storage.streams import StreamedValue
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls


def put(value: StreamedValue, data: bytes) -> None:
    value.write(data)
    value.publish()


def test_nothing_is_under_the_name_before_publish_and_nothing_else_after(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with store.stream("p/x") as value:
        value.write(b"a" * 1_000_000)
        value.write(b"b")
        assert store.list() == []
        assert [name[0] for name in os.listdir(tmp_path / "p")] == ["."]
        value.publish()
    assert os.listdir(tmp_path / "p") == ["x"]
    assert store.read("p/x") == b"a" * 1_000_000 + b"b"


def test_a_dropped_value_leaves_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    value = store.stream("x")
    value.write(b"half")
    del value
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_a_published_value_outlives_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    with PosixStore(tmp_path, calls=calls).stream("x") as value:
        value.write(b"1" * 300_000)
        value.write(b"2")
        value.publish()
    assert calls.after_power_cut(tmp_path) == {"x": b"1" * 300_000 + b"2"}


@pytest.mark.parametrize("size", [3, 600_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, size: int) -> None:
    calls = FaultyCalls(only=lambda path: True)
    calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "full"), 2
    store = PosixStore(tmp_path, calls=calls)
    value = store.stream("x")
    with pytest.raises(StorageError, match="full"):
        put(value, b"x" * size)
    assert value.closed
    assert os.listdir(tmp_path) == []


class _FailingSyncs(FileCalls):
    broken = False

    def __init__(self, *, directories: bool) -> None:
        self._directories = directories

    def sync(self, fd: int) -> None:
        if self.broken and os.path.isdir(f"/proc/self/fd/{fd}") == self._directories:
            raise OSError(errno.EIO, "broken")
        super().sync(fd)


@pytest.mark.parametrize("directories", [False, True])
def test_a_failed_sync_leaves_nothing(tmp_path: Path, directories: bool) -> None:
    calls = _FailingSyncs(directories=directories)
    value = PosixStore(tmp_path, calls=calls).stream("x")
    calls.broken = True
    with pytest.raises(StorageError, match=r"cannot publish .*broken"):
        put(value, b"x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_an_equal_value_of_a_writer_that_died_outlives_a_power_cut_once_it_counts_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    (tmp_path / "x").write_bytes(b"same")  # and nothing of it synced
    calls = ForgetfulCalls()
    if not has_links:
        monkeypatch.setattr(calls, "link", _NoLinks().link)
    put(PosixStore(tmp_path, calls=calls).stream("x"), b"same")
    assert calls.after_power_cut(tmp_path)["x"] == b"same"
    assert os.listdir(tmp_path) == ["x"]


class _LostAnswer(FileCalls):
    """Links and unlinks, and then does it again: what a network file system does when an answer is lost."""

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        super().link(source, target)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        super().unlink(path)


def test_a_link_whose_answer_was_lost_is_a_success(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, calls=_LostAnswer())
    with store.stream("x") as value:
        value.write(b"x")
        value.publish()
    store.create("y", b"y")
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


class _NoLinks(FileCalls):
    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links")


def test_without_hard_links_values_are_renamed_and_nothing_can_be_created(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, calls=_NoLinks())
    assert store.exclusive is False
    for again in (b"one", b"one"):
        put(store.stream("x"), again)
    with pytest.raises(StorageExistsError, match="x exists"):
        put(store.stream("x"), b"two")
    with pytest.raises(StorageError, match="no links"):
        store.create("y", b"")
    assert os.listdir(tmp_path) == ["x"]


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    assert PosixStore(tmp_path).exclusive is True
    assert os.listdir(tmp_path) == []


def test_only_old_leftovers_of_writers_are_swept(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.publish("a/x", b"1")
    (tmp_path / "a" / ".state").write_bytes(b"")
    (tmp_path / "a" / (".0123456789abcdef" + ".dir")).mkdir()
    old = tmp_path / "a" / ".0123456789abcdef.x"
    old.write_bytes(b"half")
    for path in (tmp_path / "a").iterdir():
        os.utime(path, (1, 1))
    with store.stream("a/y") as young:
        assert store.sweep_temporary(3600) == [str(old)]
        young.publish()
    assert sorted(os.listdir(tmp_path / "a")) == [".0123456789abcdef.dir", ".state", "x", "y"]


WRITER = """
import sys
from pathlib import Path
from gym_ray.storage.posix import PosixStore
store = PosixStore(Path(sys.argv[1]))
for number in range(1_000_000):
    with store.stream(f"p/{number}") as value:
        for _ in range(1 + number % 3):
            value.write(b"%d" % (number % 10) * 1_000_000)
        value.publish()
    print(number, flush=True)
"""


def test_killed_writers_leave_what_they_acknowledged_and_hidden_files_for_a_sweep(tmp_path: Path) -> None:
    for after in range(1, 20, 4):
        store = PosixStore(tmp_path / str(after))
        told = lines_until_killed([sys.executable, "-c", WRITER, str(store.root)], after)
        names = store.list()
        assert {f"p/{line.decode().strip()}" for line in told} <= set(names)
        for name in names:
            number = int(name.removeprefix("p/"))
            assert store.read(name) == b"%d" % (number % 10) * 1_000_000 * (1 + number % 3)
        store.sweep_temporary(-60.0)
        assert sorted(os.listdir(store.root / "p")) == sorted(name.removeprefix("p/") for name in names)
