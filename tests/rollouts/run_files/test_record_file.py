from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.record_file import RecordFile
from gym_ray.storage.calls import FileCalls


def make(path: Path, data: bytes = b"", calls: FileCalls | None = None) -> RecordFile:
    path.write_bytes(data)
    return RecordFile(path, calls or FileCalls())


class Failing(FileCalls):
    """Fails the writes and syncs it is told to, after taking a part of the bytes."""

    def __init__(self) -> None:
        self.take: int | None = None
        self.fail_sync = False
        self.fail_truncate = False
        self.log: list[str] = []

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.log.append("write")
        if self.take is None:
            return super().write(fd, data)
        if self.take == 0:
            raise OSError(28, "No space left on device")
        taken, self.take = super().write(fd, bytes(data)[: self.take]), 0
        return taken

    def sync_data(self, fd: int) -> None:
        self.log.append("sync")
        if self.fail_sync:
            self.fail_sync = False
            raise OSError(5, "Input/output error")
        super().sync_data(fd)

    def truncate(self, fd: int, size: int) -> None:
        if self.fail_truncate:
            raise OSError(5, "Input/output error")
        super().truncate(fd, size)


def test_a_record_is_written_then_synced_then_acknowledged(tmp_path: Path) -> None:
    calls = Failing()
    file = make(tmp_path / "f", calls=calls)
    assert file.append(b'{"a":1}') == (0, 8)
    assert file.append(b'{"b":2}') == (8, 8)
    assert calls.log == ["write", "sync", "write", "sync"]
    assert (tmp_path / "f").read_bytes() == b'{"a":1}\n{"b":2}\n'
    file.close()
    file.close()


def test_a_line_feed_inside_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    with pytest.raises(ValueError, match="line feed"):
        file.append(b"{}\n")
    file.close()


# D50: what a file with a torn tail becomes before the next record is appended.
@pytest.mark.parametrize(
    ("before", "repaired"),
    [
        (b"", b""),
        (b'{"a": 1}', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b"', b'{"a": 1}\n'),
        (b'{"b"', b""),
        (b'{"a": 1}\n12', b'{"a": 1}\n'),
        (b'{"a": 1}\n' + b"x" * 200_000, b'{"a": 1}\n'),
        (b'{"a": "' + b"x" * 200_000 + b'"}', b'{"a": "' + b"x" * 200_000 + b'"}\n'),
    ],
)
def test_a_torn_tail_is_completed_or_cut(tmp_path: Path, before: bytes, repaired: bytes) -> None:
    file = make(tmp_path / "f", before)
    assert file.append(b"{}") == (len(repaired), 3)
    assert (tmp_path / "f").read_bytes() == repaired + b"{}\n"
    file.close()


def test_every_truncation_leaves_exactly_the_records_that_were_whole(tmp_path: Path) -> None:
    records = [json.dumps({"n": n, "text": "ä\n\u2028" * n}).encode() for n in range(3)]
    whole = b"".join(record + b"\n" for record in records)
    ends = [sum(len(r) + 1 for r in records[: n + 1]) for n in range(3)]
    for cut in range(len(whole) + 1):
        file = make(tmp_path / "f", whole[:cut])
        file.append(b'{"new": true}')
        file.close()
        lines = [json.loads(line) for line in (tmp_path / "f").read_bytes().splitlines()]
        kept = sum(cut >= end - 1 for end in ends)  # a record that lacks only its line feed is whole
        assert [line.get("n") for line in lines] == [*range(kept), None]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    calls = Failing()
    file = make(tmp_path / "f", b"{}\n", calls)
    calls.take = 3
    with pytest.raises(StorageError, match="No space left"):
        file.append(b'{"a": "long enough"}')
    assert (tmp_path / "f").read_bytes() == b"{}\n"
    calls.take = None
    assert file.append(b'{"b":1}') == (3, 8)
    file.close()


def test_a_failed_sync_takes_the_record_back(tmp_path: Path) -> None:
    calls = Failing()
    file = make(tmp_path / "f", calls=calls)
    calls.fail_sync = True
    with pytest.raises(StorageError, match="Input/output"):
        file.append(b"{}")
    assert (tmp_path / "f").read_bytes() == b""
    file.close()


def test_bytes_that_cannot_be_taken_back_are_named(tmp_path: Path) -> None:
    calls = Failing()
    file = make(tmp_path / "f", b"{}\n", calls)
    calls.fail_sync = calls.fail_truncate = True
    with pytest.raises(StorageError, match="from 3 on are void"):
        file.append(b"{}")
    file.close()


def test_a_file_that_was_moved_away_is_not_written(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    (tmp_path / "f").rename(tmp_path / "old")
    with pytest.raises(StorageError, match="moved or replaced"):
        file.append(b"{}")
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match="moved or replaced"):
        file.append(b"{}")
    assert (tmp_path / "old").read_bytes() == b""
    file.close()


def test_find_looks_only_behind_the_mark_and_across_chunks(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    file.append(b'{"id": 1}')
    since = file.size()
    big = file.append(json.dumps({"id": 2, "pad": "x" * 3_000_000}).encode())
    last = file.append(b'{"id": 3}')
    assert file.find(lambda line: b'"id": 1' in line, since) is None
    assert file.find(lambda line: b'"id": 2' in line, since) == big
    assert file.find(lambda line: b'"id": 3' in line, since) == last
    assert file.find(lambda line: b'"id": 1' in line, 0) == (0, 10)
    assert file.find(lambda line: True, 10**9) is None
    file.close()


def test_threads_append_whole_lines(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    places: list[tuple[int, int, bytes]] = []

    def work(name: int) -> None:
        for n in range(30):
            line = json.dumps({"name": name, "n": n, "pad": "x" * (n * 37)}).encode()
            places.append((*file.append(line), line))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = (tmp_path / "f").read_bytes()
    assert len(places) == 120
    assert all(data[offset : offset + length] == line + b"\n" for offset, length, line in places)
    file.close()


WRITER = """
import json, sys
from pathlib import Path
from gym_ray.rollouts.run_files.record_file import RecordFile
from gym_ray.storage.calls import FileCalls

class Slow(FileCalls):
    def write(self, fd, data):  # a byte range at a time, so that a kill hits the middle of a record
        return super().write(fd, bytes(data)[:4096])

file = RecordFile(Path(sys.argv[1]), Slow())
for n in range(10**9):
    file.append(json.dumps({"writer": sys.argv[2], "n": n, "pad": "x" * 200_000}).encode())
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


def start(path: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE)


def test_kill_9_of_one_of_two_processes_tears_nothing_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    told: dict[str, list[int]] = {}
    for round_number in range(4):
        names = [f"{round_number}a", f"{round_number}b"]
        processes = [start(path, name) for name in names]
        for name, process in zip(names, processes, strict=True):
            assert process.stdout is not None
            told[name] = [int(process.stdout.readline())]
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].wait()
        assert processes[1].stdout is not None
        told[names[1]].append(int(processes[1].stdout.readline()))  # the survivor goes on behind what was torn
        os.kill(processes[1].pid, signal.SIGKILL)
        for name, process in zip(names, processes, strict=True):
            assert process.stdout is not None
            told[name] += [int(line) for line in process.stdout.read().splitlines() if line.isdigit()]
            process.wait()
            process.stdout.close()
    file = RecordFile(path, FileCalls())
    file.append(b'{"writer": "end", "n": 0}')
    file.close()
    stored: dict[str, list[int]] = {}
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        stored.setdefault(record["writer"], []).append(record["n"])
    for name, numbers in told.items():
        assert stored[name] == list(range(len(stored[name]))), "no line twice, none out of order"
        assert set(numbers) <= set(stored[name])


def test_a_file_that_somebody_cut_gets_nothing_more(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    file.append(b'{"a":1}')
    file.append(b'{"b":2}')
    os.truncate(tmp_path / "f", 8)
    for attempt in (lambda: file.append(b'{"c":3}'), lambda: file.find(lambda _: False, 0)):
        with pytest.raises(StorageError, match="cut to 8 bytes, though this run had stored 16"):
            attempt()
    assert (tmp_path / "f").read_bytes() == b'{"a":1}\n'
    file.close()


def test_a_torn_line_behind_the_last_record_is_no_cut(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    file.append(b'{"a":1}')
    with (tmp_path / "f").open("ab") as other:
        other.write(b'{"torn')
    assert file.append(b'{"b":2}') == (8, 8)
    file.close()
