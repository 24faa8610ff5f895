from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import LineFiles, WouldWaitError
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls, RecordingCalls


def faulty() -> FaultyCalls:
    return FaultyCalls(only=lambda path: path.endswith("/f"))


def test_appends_give_offsets(tmp_path: Path) -> None:
    files = LineFiles(tmp_path)
    assert files.append("f", b"one\n") == 0
    assert files.append("f", b"two\nthree\n") == 4
    assert (tmp_path / "f").read_bytes() == b"one\ntwo\nthree\n"
    files.close()


def test_written_and_synced_under_the_lock(tmp_path: Path) -> None:
    calls = RecordingCalls()
    files = LineFiles(tmp_path, calls=calls)
    files.append("f", b"one\n")
    directory = tmp_path.name
    steps = [(what, name) for what, name in calls.log if name in ("f", directory)]
    assert steps == [("lock", "f"), ("write", "f"), ("sync_data", "f"), ("sync", directory), ("unlock", "f")]
    calls.log.clear()
    files.append("f", b"two\n")
    assert calls.log == [("lock", "f"), ("write", "f"), ("sync_data", "f"), ("unlock", "f")]
    files.close()


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"whole\ntorn")
    files = LineFiles(tmp_path)
    assert files.append("f", b"next\n") == 11
    assert (tmp_path / "f").read_bytes() == b"whole\ntorn\nnext\n"
    files.close()


def test_half_a_write_is_cut_back(tmp_path: Path) -> None:
    calls = faulty()
    files = LineFiles(tmp_path, calls=calls)
    files.append("f", b"one\n")
    calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "full"), 3
    with pytest.raises(OSError, match="full"):
        files.append("f", b"two\n")
    assert (tmp_path / "f").read_bytes() == b"one\n"
    calls.write_error = None
    assert files.append("f", b"three\n") == 4
    files.close()


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class ShortCalls(RecordingCalls):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return super().write(fd, data[:3])

    files = LineFiles(tmp_path, calls=ShortCalls())
    files.append("f", b"0123456789\n")
    assert (tmp_path / "f").read_bytes() == b"0123456789\n"
    files.close()


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_left_its_name_is_found_again(tmp_path: Path, replace: bool) -> None:
    files = LineFiles(tmp_path)
    files.append("f", b"old\n")
    (tmp_path / "f").rename(tmp_path / "elsewhere")
    if replace:
        (tmp_path / "f").write_bytes(b"new\n")
    files.append("f", b"line\n")
    assert (tmp_path / "f").read_bytes() == (b"new\nline\n" if replace else b"line\n")
    assert (tmp_path / "elsewhere").read_bytes() == b"old\n"
    files.close()


def test_a_truncated_file_starts_over(tmp_path: Path) -> None:
    files = LineFiles(tmp_path)
    files.append("f", b"old\n")
    os.truncate(tmp_path / "f", 0)
    assert files.append("f", b"new\n") == 0
    files.close()


def test_a_locked_file_is_said_not_waited_for(tmp_path: Path) -> None:
    files = LineFiles(tmp_path)
    files.append("f", b"one\n")
    with (tmp_path / "f").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(WouldWaitError):
            files.append("f", b"two\n", wait=False)
    files.append("f", b"three\n", wait=False)
    assert (tmp_path / "f").read_bytes() == b"one\nthree\n"
    files.close()


def test_kept_handles_are_bounded_and_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = LineFiles(tmp_path, max_handles=4)
    for number in range(20):
        files.append(f"f{number % 10}", b"x\n")
        assert len(os.listdir("/proc/self/fd")) <= before + 4
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failing_append_leaks_no_handle_and_no_lock(tmp_path: Path) -> None:
    calls = faulty()
    files = LineFiles(tmp_path, calls=calls)
    before = len(os.listdir("/proc/self/fd"))
    calls.write_error = OSError(errno.EIO, "broken")
    for _ in range(3):
        with pytest.raises(OSError, match="broken"):
            files.append("f", b"x\n")
    assert len(os.listdir("/proc/self/fd")) == before
    with (tmp_path / "f").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_everything_appended_outlives_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    files = LineFiles(tmp_path, calls=calls, max_handles=2)
    expected: dict[str, bytes] = {}
    for number in range(30):
        name, line = f"f{number % 5}", b"%d\n" % number
        files.append(name, line)
        expected[name] = expected.get(name, b"") + line
        assert calls.after_power_cut(tmp_path) == expected
    files.close()


def test_one_sync_of_the_directory_serves_all_names_that_were_made_before_it(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    directory_syncs: list[int] = []
    sync = calls.sync
    calls.sync = lambda fd: (directory_syncs.append(fd), sync(fd))[1]  # type: ignore[method-assign]
    files = LineFiles(tmp_path, calls=calls)
    staged = [files.stage(f"f{number}", lambda: b"line\n", wait=False) for number in range(10)]
    files.sync_all(staged, lambda outcomes: [files.settle(staged[index], error) for index, error in outcomes])
    assert len(directory_syncs) == 1
    assert calls.after_power_cut(tmp_path) == {f"f{number}": b"line\n" for number in range(10)}
    files.append("late", b"line\n")
    assert len(directory_syncs) == 2
    assert "late" in calls.after_power_cut(tmp_path)
    files.close()


def test_a_failed_sync_is_raised_and_gives_up_lock_and_handle(tmp_path: Path) -> None:
    files = LineFiles(tmp_path)
    staged = files.stage("f", lambda: b"line\n", wait=False)
    with pytest.raises(OSError, match="broken"):
        files.settle(staged, OSError(errno.EIO, "broken"))
    with (tmp_path / "f").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(staged.handle.fd)
    files.close()


class FailingSyncs(FileCalls):
    """Syncs fail on request."""

    failing = False

    def sync_data(self, fd: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, "broken")
        super().sync_data(fd)


def test_what_follows_a_failed_sync_does_not_depend_on_the_line_feed_that_may_be_lost(tmp_path: Path) -> None:
    calls = FailingSyncs()
    files = LineFiles(tmp_path, calls=calls)
    assert files.append("f", b"1\n") == 0
    calls.failing = True
    with pytest.raises(OSError, match="broken"):
        files.append("f", b"2\n")
    calls.failing = False
    assert files.append("f", b"3\n") == 5
    assert files.append("f", b"4\n") == 7
    assert (tmp_path / "f").read_bytes() == b"1\n2\n\n3\n4\n"
    files.close()


def test_another_writers_unsynced_name_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"by a writer that died before it synced the directory\n")
    calls = ForgetfulCalls()
    files = LineFiles(tmp_path, calls=calls)
    files.append("f", b"ours\n")
    assert b"ours\n" in calls.after_power_cut(tmp_path)["f"]
    files.close()


def test_two_threads_on_one_name(tmp_path: Path) -> None:
    files = LineFiles(tmp_path)

    def append(letter: bytes) -> None:
        for _ in range(50):
            files.append("f", letter * 100 + b"\n")

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "f").read_bytes().splitlines()
    assert sorted(lines) == sorted([letter * 100 for letter in (b"a", b"b", b"c")] * 50)
    files.close()


def test_the_end_of_a_file_can_be_put_in_order_before_an_append(tmp_path: Path) -> None:
    seen = []

    def cut_torn_line(name: str, fd: int, size: int) -> int:
        seen.append((name, os.pread(fd, size, 0)))
        end = os.pread(fd, size, 0).rfind(b"\n") + 1
        os.ftruncate(fd, end)
        return end

    (tmp_path / "f").write_bytes(b"whole\ntorn")
    files = LineFiles(tmp_path, before_append=cut_torn_line)
    assert files.append("f", b"next\n") == 6
    assert files.append("f", b"last\n") == 11
    assert (tmp_path / "f").read_bytes() == b"whole\nnext\nlast\n"
    assert seen == [("f", b"whole\ntorn"), ("f", b"whole\nnext\n")]
    files.close()


def test_what_fails_before_an_append_fails_the_append_and_gives_up_the_lock(tmp_path: Path) -> None:
    broken = True

    def look(name: str, fd: int, size: int) -> int:
        if broken:
            raise OSError(errno.EIO, "unreadable")
        return size

    files = LineFiles(tmp_path, before_append=look)
    with pytest.raises(OSError, match="unreadable"):
        files.append("f", b"one\n")
    broken = False
    assert files.append("f", b"two\n", wait=False) == 0
    files.close()
