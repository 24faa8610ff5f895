"""A segment is read by ranges, and a damaged one is an error, never the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from gym_ray.errors import StorageError, StorageMissingError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import write_calls_segment
from gym_ray.token_id_capture.staging.parquet.segments.committer import SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.segments.segment_cache import SegmentCache
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import read_footer
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

NAME = SegmentName("default", "0123456789abcdef0123", 0, "calls")


def write(root: Path, calls: int, name: SegmentName = NAME) -> PosixStore:
    """Write a segment of roots of rollouts r000, r001, …."""
    store = PosixStore(root)
    items = [CallItem(StagedRollout(f"r{at:03}").add("c", [1, 2], [9]), None) for at in range(calls)]
    with store.stream(str(name)) as value:
        write_calls_segment(SegmentStream(name, value, lambda: None), items, "0" * 16)
        value.publish()
    return store


def test_row_groups_and_their_rollouts(tmp_path: Path) -> None:
    reader = SegmentReader(write(tmp_path, 40), str(NAME))
    assert [reader.rows(group) for group in range(reader.row_groups)] == [16, 16, 8]
    assert [reader.locate(row) for row in (0, 15, 16, 39)] == [(0, 0), (0, 15), (1, 0), (2, 7)]
    assert (reader.facts.kind, reader.facts.store_id, reader.facts.name) == ("calls", "0" * 16, str(NAME))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    store = write(tmp_path, 3)
    reader = SegmentReader(store, str(NAME))
    with pytest.raises(ValueError, match="has no row 3"):
        reader.locate(3)
    with pytest.raises(ValueError, match="has no row group 1"):
        reader.read(1, ["rollout_id"], CALLS_SCHEMA)
    with pytest.raises(ValueError, match="row group 0 has no column no_such"):
        reader.read(0, ["rollout_id", "no_such"], CALLS_SCHEMA.append(pa.field("no_such", pa.string())))
    with pytest.raises(StorageMissingError):
        SegmentReader(store, str(SegmentName("default", NAME.writer, 1, "calls")))
    with pytest.raises(ValueError, match="holds rows of kind calls, not tokens"):
        SegmentReader(store, str(NAME), kind="tokens")


def test_a_failure_of_the_store_is_not_taken_for_damage(tmp_path: Path) -> None:
    write(tmp_path, 1000)

    class Failing(PosixStore):
        def read_range(self, name: str, start: int, length: int) -> bytes:
            raise StorageError(f"{name}: {length} bytes from {start} did not come")

    reader = SegmentReader(Failing(tmp_path), str(NAME))
    with pytest.raises(StorageError, match="did not come"):
        reader.read(0, ["rollout_id"], CALLS_SCHEMA)


def test_a_footer_longer_than_the_first_read(tmp_path: Path) -> None:
    store = write(tmp_path, 1600)
    reader = SegmentReader(store, str(NAME))
    assert reader.row_groups == 100
    assert reader.weight > 160 * 1024
    assert reader.read(99, ["rollout_id"], CALLS_SCHEMA)["rollout_id"].to_pylist()[-1] == "r1599"


def test_a_footer_is_found_wherever_the_first_read_begins(tmp_path: Path) -> None:
    store = write(tmp_path, 3)
    data = store.read(str(NAME))
    end = int.from_bytes(data[-8:-4], "little") + 20
    for tail_bytes in (8, 9, 100, *range(end - 14, end + 3), len(data), len(data) + 1):
        footer = read_footer(store, str(NAME), tail_bytes)
        assert footer.metadata.num_rows == 3
        assert footer.size == len(data)
        assert data.endswith(footer.tail)


def test_a_flipped_bit_of_any_byte_of_a_footer_is_said_and_never_ends_the_process(tmp_path: Path) -> None:
    path = write(tmp_path, 3).root / str(NAME)
    program = """
import sys
from pathlib import Path
from gym_ray.storage.posix import PosixStore
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

root, name = Path(sys.argv[1]), sys.argv[2]
path = root / name
data = bytearray(path.read_bytes())


class Flipped(PosixStore):
    def read_tail(self, name, length):
        return bytes(data[-length:]), len(data)


store = Flipped(root)
seal = len(data) - 8 - int.from_bytes(data[-8:-4], "little") - 12
for at in range(seal, len(data)):
    flip = 1 << at % 8
    data[at] ^= flip
    try:
        SegmentReader(store, name).read(0, ["rollout_id", "token_ids"], CALLS_SCHEMA)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        print("unsaid", at - seal)
    data[at] ^= flip
print(len(data) - seal)
"""
    arguments = [sys.executable, "-c", program, str(tmp_path), str(NAME)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    footer_bytes = int.from_bytes(path.read_bytes()[-8:-4], "little")
    assert done.stdout.splitlines() == [str(footer_bytes + 20)]


@pytest.mark.parametrize("kept", [0, 3, 8, 11, 12, 30, 500])
def test_a_file_of_which_only_the_end_is_left_is_no_segment(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, 3).root / str(NAME)
    path.write_bytes(path.read_bytes()[-kept:] if kept else b"")
    with pytest.raises(ValueError, match=f"^{path}"):
        SegmentReader(PosixStore(tmp_path), str(NAME))


def test_a_cache_keeps_within_its_bound(tmp_path: Path) -> None:
    names = [SegmentName("default", NAME.writer, seq, "calls") for seq in range(4)]
    for name in names:
        store = write(tmp_path, 20, name=name)
    opened: list[str] = []

    class Counting(PosixStore):
        def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
            opened.append(name)
            return super().read_tail(name, length)

    weight = SegmentReader(store, str(names[0])).weight
    cache = SegmentCache(Counting(tmp_path), max_bytes=2 * weight + weight // 2)
    for name in (0, 1, 0, 2, 0, 1, 3, 3):
        cache.open(str(names[name]))
    assert opened == [str(names[name]) for name in (0, 1, 2, 1, 3)]
    cache.forget(str(names[3]))
    cache.forget("never seen")
    cache.open(str(names[3]))
    assert opened[-1] == str(names[3])
    small = SegmentCache(Counting(tmp_path), max_bytes=1)
    assert small.open(str(names[0])) is small.open(str(names[0]))


def test_who_waits_for_a_footer_is_told_that_it_failed(tmp_path: Path) -> None:
    write(tmp_path, 3)
    waiting = threading.Barrier(2, timeout=20)
    reads = [0]

    class Slow(PosixStore):
        def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
            reads[0] += 1
            if reads[0] == 1:
                waiting.wait()
                raise StorageError("the disk is gone")
            return super().read_tail(name, length)

    cache = SegmentCache(Slow(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.open, str(NAME))
        waiting.wait()
        with pytest.raises(StorageError, match="the disk is gone"):
            first.result()
    assert cache.open(str(NAME)).row_groups == 1
    assert reads[0] == 2
