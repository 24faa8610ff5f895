from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import (
    OWNER_ONLY,
    OWNER_ONLY_DIRECTORY,
    PosixStore,
    make_directory,
    replace_file,
    sync_directory,
)
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls, RecordingCalls


def test_publish_replaces_and_reads_back(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "a" / "b")
    store.publish("x/y.json", b"one")
    store.publish("x/y.json", b"two")
    assert store.read("x/y.json") == b"two"
    assert store.list() == ["x/y.json"]
    assert os.listdir(tmp_path / "a" / "b" / "x") == ["y.json"]


def test_exactly_one_create_wins(tmp_path: Path) -> None:
    store, barrier = PosixStore(tmp_path), threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        try:
            store.create("name", b"%d" % number)
        except StorageExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert store.read("name") == b"%d" % won.index(True)
    assert os.listdir(tmp_path) == ["name"]


def test_missing_names(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "absent")
    assert store.list() == []
    with pytest.raises(StorageMissingError, match="x"):
        store.read("x")
    store.delete("x")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", ".hidden", "a/.b"])
def test_names_that_leave_the_store_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be a name"):
        PosixStore(tmp_path).publish(name, b"")


def test_list_by_prefix(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    for name in ("p/1", "p/2", "q/1"):
        store.publish(name, b"")
    assert store.list("p/") == ["p/1", "p/2"]
    assert store.list("q") == ["q/1"]
    store.delete("p/1")
    assert store.list("p/") == ["p/2"]


def test_a_place_that_is_no_directory_is_no_empty_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        for prefix in ("", "p/"):
            with pytest.raises(StorageError, match="cannot list"):
                PosixStore(root).list(prefix)


def test_a_system_that_gives_less_than_it_was_asked_for_is_asked_again(tmp_path: Path) -> None:
    class Sparing(FileCalls):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            return super().pread(fd, min(size, 3), offset)

    store = PosixStore(tmp_path, calls=Sparing())
    store.publish("x", b"0123456789")
    assert store.read_range("x", 1, 8) == b"12345678"
    assert store.read_range("x", 5, 99) == b"56789"
    assert store.read_tail("x", 7) == (b"3456789", 10)


def test_the_entry_of_every_new_directory_is_made_durable(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(FileCalls):
        def sync(self, fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            super().sync(fd)

    make_directory(Noting(), tmp_path / "a" / "b" / "c")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)


def test_mode(tmp_path: Path) -> None:
    PosixStore(tmp_path, mode=0o600).publish("secret", b"")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_failed_publish_leaves_the_old_value_and_no_litter(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: True)
    store = PosixStore(tmp_path, calls=calls)
    store.publish("x", b"old")
    calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "full"), 2
    with pytest.raises(StorageError, match="full"):
        store.publish("x", b"newer")
    assert store.read("x") == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_published_and_created_values_outlive_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    store = PosixStore(tmp_path, calls=calls)
    store.publish("x", b"1")
    store.create("y", b"2")
    store.delete("x")
    assert calls.after_power_cut(tmp_path) == {"y": b"2"}


def test_a_name_as_long_as_the_system_allows_can_be_published(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.publish("n" * 255, b"1")
    store.publish("n" * 255, b"2")
    assert store.read("n" * 255) == b"2"


def test_a_replaced_file_outlives_a_power_cut_and_keeps_its_mode(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    replace_file(calls, tmp_path / ".state", b"old", 0o600)
    replace_file(calls, tmp_path / ".state", b"new", 0o600)
    assert calls.after_power_cut(tmp_path) == {".state": b"new"}
    assert stat.S_IMODE((tmp_path / ".state").stat().st_mode) == 0o600


def test_a_replacement_whose_name_is_not_synced_leaves_the_old_file_or_the_whole_new_one(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    replace_file(calls, tmp_path / "state", b"old", 0o600)
    replace_file(calls, tmp_path / "state", b"new", 0o600, sync_name=False)
    assert calls.after_power_cut(tmp_path) == {"state": b"old"}
    sync_directory(calls, str(tmp_path))
    assert calls.after_power_cut(tmp_path) == {"state": b"new"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_directories_of_an_owner_are_his_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = PosixStore(tmp_path / "above" / "root", mode=OWNER_ONLY)
        assert store.exclusive
        store.publish("p/w/1", b"1")
        store.create("q/2", b"2")
        with store.stream("p/v/u/3") as value:
            value.write(b"3")
            value.publish()
    finally:
        os.umask(before)
    for place in (store.root, *store.root.rglob("*")):
        assert stat.S_IMODE(place.stat().st_mode) == (OWNER_ONLY_DIRECTORY if place.is_dir() else OWNER_ONLY), place


def test_directories_that_another_process_has_just_made_outlive_a_power_cut(tmp_path: Path) -> None:
    (tmp_path / "root" / "p" / "w").mkdir(parents=True)  # and nothing of it synced
    calls = RecordingCalls()
    store = PosixStore(tmp_path / "root", calls=calls)
    store.publish("p/w/1", b"1")
    above = {tmp_path.name, "root", "p"}
    assert above <= {name for what, name in calls.log if what == "sync"}
    calls.log.clear()
    store.publish("p/w/2", b"2")
    assert not above & {name for _, name in calls.log}
