from __future__ import annotations

import errno
import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.calls import SyncOutcome
from gym_ray.storage.group_commit import GroupCommit
from gym_ray.storage.line_files import LineFiles
from gym_ray.storage.local_calls import LocalFileCalls
from gym_ray.testing.storage_faults import FaultyCalls

WAIT_S = 20


class Item:
    def __init__(self, file_name: str, data: bytes | Exception) -> None:
        self.file_name, self.data = file_name, data
        self.offset, self.error = -1, None
        self.done = threading.Event()
        self.wanted_still = True
        self.takes_long = False

    def encode(self) -> bytes:
        if isinstance(self.data, Exception):
            raise self.data
        return self.data

    def wanted(self) -> bool:
        return self.wanted_still

    def committed(self, offset: int, length: int) -> None:
        self.offset, self.length = offset, length

    def failed(self, error: Exception) -> None:
        self.error = error


class SlowItem(Item):
    """Takes its time to be encoded."""

    def __init__(self, file_name: str, data: bytes) -> None:
        super().__init__(file_name, data)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self) -> bytes:
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        return super().encode()


def tell(items: Sequence[Item]) -> None:
    for item in items:
        item.done.set()


Commits = GroupCommit[Item]


@pytest.fixture
def calls() -> FaultyCalls:
    return FaultyCalls(only=lambda path: path.endswith("/slow"))


@pytest.fixture
def commits(tmp_path: Path, calls: FaultyCalls) -> Iterator[Commits]:
    files = LineFiles(tmp_path, calls=calls)
    group: Commits = GroupCommit(files, on_done=tell, threads=4)
    yield group
    if calls.sync_gate is not None:
        calls.sync_gate.set()
    assert group.close(WAIT_S)
    files.close()


def wait_for(item: Item) -> None:
    assert item.done.wait(WAIT_S)


def test_every_item_is_in_its_file_where_it_was_said_to_be(tmp_path: Path, commits: Commits) -> None:
    items = [Item(f"f{number % 7}", b"line %d\n" % number) for number in range(500)]
    for item in items:
        commits.submit(item)
    for item in items:
        wait_for(item)
        content = (tmp_path / item.file_name).read_bytes()
        assert content[item.offset : item.offset + item.length] == item.data
    for number in range(7):
        lines = (tmp_path / f"f{number}").read_bytes().splitlines(keepends=True)
        assert lines == [item.data for item in items if item.file_name == f"f{number}"]


def test_a_hung_file_holds_up_only_its_own_lines(tmp_path: Path, commits: Commits, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    hung = [Item("slow", b"1\n"), Item("slow", b"2\n")]
    commits.submit(hung[0])
    assert calls.syncs_waiting.wait(WAIT_S)
    commits.submit(hung[1])
    others = [Item(f"f{number}", b"x\n") for number in range(50)]
    for item in others:
        commits.submit(item)
    for item in others:
        wait_for(item)
    assert not hung[0].done.is_set()
    calls.sync_gate.set()
    for item in hung:
        wait_for(item)
    assert (tmp_path / "slow").read_bytes() == b"1\n2\n"


def test_files_locked_by_others_hold_up_nothing(tmp_path: Path, commits: Commits) -> None:
    readers = []
    for number in range(10):  # more than there are threads
        path = tmp_path / f"locked{number}"
        path.write_bytes(b"")
        readers.append(path.open("rb"))
        fcntl.flock(readers[-1], fcntl.LOCK_SH)
    waiting = [Item(f"locked{number}", b"w\n") for number in range(10)]
    free = Item("free", b"f\n")
    for item in [*waiting, free]:
        commits.submit(item)
    wait_for(free)
    assert not any(item.done.is_set() for item in waiting)
    for reader in readers:
        reader.close()
    for item in waiting:
        wait_for(item)
        assert (tmp_path / item.file_name).read_bytes() == b"w\n"


def test_an_item_that_cannot_be_encoded_fails_alone(tmp_path: Path, commits: Commits, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    first = Item("slow", b"first\n")
    commits.submit(first)
    assert calls.syncs_waiting.wait(WAIT_S)
    bad, good = Item("slow", ValueError("no form")), Item("slow", b"good\n")
    commits.submit(bad)
    commits.submit(good)
    calls.sync_gate.set()
    wait_for(bad)
    wait_for(good)
    assert isinstance(bad.error, ValueError)
    assert good.error is None
    assert (tmp_path / "slow").read_bytes() == b"first\ngood\n"


def test_a_write_error_reaches_every_item_and_nobody_else(tmp_path: Path, commits: Commits, calls: FaultyCalls) -> None:
    calls.write_error = OSError(errno.ENOSPC, "full")
    bad, good = Item("slow", b"1\n"), Item("other", b"2\n")
    commits.submit(bad)
    commits.submit(good)
    wait_for(bad)
    wait_for(good)
    assert isinstance(bad.error, OSError)
    assert good.error is None
    calls.write_error = None
    again = Item("slow", b"3\n")
    commits.submit(again)
    wait_for(again)
    assert (tmp_path / "slow").read_bytes() == b"3\n"


class OddCalls(FaultyCalls):
    """Raises what no operating system does."""

    odd: Exception | None = None

    def sync_data(self, fd: int) -> None:
        if self.odd is not None:
            raise self.odd
        super().sync_data(fd)


class TogetherCalls(FaultyCalls):
    """Syncs what it is given together, as the calls on a local disk do: a gated file is told last."""

    syncs_at_once = 8

    def __init__(self, gated: str = "/slow") -> None:
        super().__init__(only=lambda path: gated in path)
        self.gated = gated
        self.together: list[int] = []
        self.refusal: Exception | None = None

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        self.together.append(len(fds))
        if self.refusal is not None:
            raise self.refusal
        order = sorted(range(len(fds)), key=lambda index: self.gated in self.path_of(fds[index]))
        for index in order:
            super().sync_all([fds[index]], lambda outcomes, index=index: tell([(index, outcomes[0][1])]))


def test_files_that_are_ready_together_are_synced_together(tmp_path: Path) -> None:
    calls = TogetherCalls()
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=2)
    calls.sync_gate = threading.Event()
    blocked = [Item("slow", b"1\n"), Item("slow", b"2\n")]
    for item in blocked:
        commits.submit(item)
    assert calls.syncs_waiting.wait(WAIT_S)
    items = [Item(f"f{number % 20}", b"%d\n" % number) for number in range(100)]
    for item in items:
        commits.submit(item)
    for item in items:
        wait_for(item)
        assert item.error is None
        content = (tmp_path / item.file_name).read_bytes()
        assert content[item.offset : item.offset + item.length] == item.data
    assert max(calls.together) > 1
    assert not any(item.done.is_set() for item in blocked[1:])
    calls.sync_gate.set()
    for item in blocked:
        wait_for(item)
    assert commits.close(WAIT_S)


def test_a_hung_file_holds_up_no_file_that_is_synced_with_it(tmp_path: Path) -> None:
    calls = TogetherCalls()
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=1)
    calls.sync_gate = threading.Event()
    hung, others = Item("slow", b"1\n"), [Item(f"f{number}", b"x\n") for number in range(5)]
    first = SlowItem("first", b"0\n")
    commits.submit(first)
    assert first.begun.wait(WAIT_S)
    for item in (hung, *others):  # they get ready while the only thread is busy
        commits.submit(item)
    first.go_on.set()
    for item in (first, *others):
        wait_for(item)
        assert item.error is None
    assert calls.syncs_waiting.wait(WAIT_S)
    assert not hung.done.is_set()
    calls.sync_gate.set()
    wait_for(hung)
    assert max(calls.together) == 6
    assert commits.close(WAIT_S)


@pytest.mark.parametrize("together", [True, False])
def test_more_hung_files_than_threads_hold_up_no_other_file(tmp_path: Path, together: bool) -> None:
    calls = TogetherCalls("/hung") if together else FaultyCalls(only=lambda path: "/hung" in path)
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=2, patience_s=0.02)
    calls.sync_gate = threading.Event()
    hung = [Item(f"hung{number}", b"h\n") for number in range(7)]
    for number, item in enumerate(hung):
        calls.syncs_waiting.clear()
        commits.submit(item)
        assert calls.syncs_waiting.wait(WAIT_S)
        others = [Item(f"f{other}", b"%d\n" % number) for other in range(20)]
        for other in others:
            commits.submit(other)
        for other in others:
            wait_for(other)
            assert other.error is None
    assert not any(item.done.is_set() for item in hung)
    more = [Item(item.file_name, b"again\n") for item in hung]
    for item in more:
        commits.submit(item)
    calls.sync_gate.set()
    for item in [*hung, *more]:
        wait_for(item)
        assert item.error is None
    assert (tmp_path / "hung3").read_bytes() == b"h\nagain\n"
    assert commits.close(WAIT_S)


def test_threads_that_were_started_for_hung_files_end_when_those_go_on(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: "/hung" in path)
    commits: Commits = GroupCommit(
        LineFiles(tmp_path, calls=calls), on_done=tell, threads=1, name="few", patience_s=0.02
    )

    def at_work() -> int:
        return sum(thread.name.startswith("few-") and "watch" not in thread.name for thread in threading.enumerate())

    calls.sync_gate = threading.Event()
    hung = [Item(f"hung{number}", b"h\n") for number in range(4)]
    for item in hung:
        commits.submit(item)
    other = Item("other", b"x\n")
    commits.submit(other)
    wait_for(other)
    assert at_work() == 5
    calls.sync_gate.set()
    for item in hung:
        wait_for(item)
    deadline = time.monotonic() + WAIT_S
    while at_work() > 1 and time.monotonic() < deadline:
        again = Item("other", b"x\n")
        commits.submit(again)
        wait_for(again)
    assert at_work() == 1
    assert commits.close(WAIT_S)


def test_an_item_that_takes_long_to_encode_holds_up_no_other_file(tmp_path: Path) -> None:
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=LocalFileCalls()), on_done=tell, threads=1)
    large = [SlowItem(f"large{number}", b"large\n") for number in range(3)]
    for item in large:
        item.takes_long = True
        commits.submit(item)
    others = [Item(f"f{number}", b"x\n") for number in range(5)]
    for item in others:
        commits.submit(item)
    for item in others:
        wait_for(item)
    assert not any(item.done.is_set() for item in large)
    for item in large:
        item.go_on.set()
        wait_for(item)
        assert (tmp_path / item.file_name).read_bytes() == b"large\n"
    assert commits.close(WAIT_S)


def test_a_sync_of_many_that_cannot_begin_fails_them_all(tmp_path: Path) -> None:
    calls = TogetherCalls()
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=1)
    calls.refusal = MemoryError()
    bad = Item("f", b"1\n")
    commits.submit(bad)
    wait_for(bad)
    assert bad.error is calls.refusal
    with (tmp_path / "f").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the failed append holds no lock
    calls.refusal = None
    good = Item("f", b"2\n")
    commits.submit(good)
    wait_for(good)
    assert good.error is None
    assert commits.close(WAIT_S)


@pytest.mark.parametrize("odd", [MemoryError(), ValueError("odd")])
def test_every_item_gets_an_outcome_whatever_goes_wrong(tmp_path: Path, odd: Exception) -> None:
    calls = OddCalls(only=lambda path: False)
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=1)
    calls.odd = odd
    bad = Item("f", b"1\n")
    commits.submit(bad)
    wait_for(bad)
    assert bad.error is odd
    with (tmp_path / "f").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the failed append holds no lock
    calls.odd = None
    good = Item("f", b"2\n")
    commits.submit(good)
    wait_for(good)
    assert good.error is None
    assert commits.close(WAIT_S)


def test_a_file_that_cannot_be_waited_for_fails_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: Commits = GroupCommit(LineFiles(tmp_path), on_done=tell, threads=1)
    (tmp_path / "locked").write_bytes(b"")
    with (tmp_path / "locked").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def no_thread(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", no_thread)
        item = Item("locked", b"x\n")
        commits.submit(item)
        wait_for(item)
    assert isinstance(item.error, RuntimeError)
    assert commits.close(WAIT_S)


def test_what_is_not_wanted_any_more_is_neither_written_nor_failed(tmp_path: Path) -> None:
    commits: Commits = GroupCommit(LineFiles(tmp_path), on_done=tell, threads=1)
    (tmp_path / "f").write_bytes(b"")
    unwanted, wanted = Item("f", b"old\n"), Item("f", b"new\n")
    with (tmp_path / "f").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        commits.submit(unwanted)
        commits.submit(wanted)
        unwanted.wanted_still = False  # decided while its append waits for the lock
    wait_for(unwanted)
    wait_for(wanted)
    assert (unwanted.offset, unwanted.error) == (-1, None)
    assert (wanted.offset, wanted.error) == (0, None)
    assert (tmp_path / "f").read_bytes() == b"new\n"
    assert commits.close(WAIT_S)


def test_closed_means_closed(tmp_path: Path) -> None:
    commits: Commits = GroupCommit(LineFiles(tmp_path), on_done=tell, threads=2)
    item = Item("f", b"x\n")
    commits.submit(item)
    assert commits.close(WAIT_S)
    assert item.done.is_set()
    with pytest.raises(StorageError, match="closed"):
        commits.submit(Item("f", b"y\n"))


def test_close_says_when_something_is_left(tmp_path: Path, calls: FaultyCalls) -> None:
    calls.sync_gate = threading.Event()
    commits: Commits = GroupCommit(LineFiles(tmp_path, calls=calls), on_done=tell, threads=2)
    item = Item("slow", b"x\n")
    commits.submit(item)
    assert calls.syncs_waiting.wait(WAIT_S)
    assert not commits.close(0.01)
    calls.sync_gate.set()
    wait_for(item)


def test_a_listener_that_raises_costs_no_later_file(tmp_path: Path) -> None:
    def on_done(items: Sequence[Item]) -> None:
        tell(items)
        raise RuntimeError("listener")

    commits: Commits = GroupCommit(LineFiles(tmp_path), on_done=on_done, threads=1)
    make: Callable[[], Item] = lambda: Item("f", b"x\n")  # noqa: E731
    for item in (make(), make(), make()):
        commits.submit(item)
        wait_for(item)
    assert commits.close(WAIT_S)
