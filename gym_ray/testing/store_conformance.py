"""What every store must do, as tests for pytest: give a subclass of :class:`SegmentStoreSuite` a ``store`` fixture."""

# ruff: noqa: D102 - the name of each test says what must hold

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore

__all__ = ["SegmentStoreSuite", "put"]

_LARGE = 20_000_000
"""Larger than two parts of an upload."""
_TWO_PARTS = 9_000_000


def put(store: SegmentStore, name: str, *pieces: bytes) -> None:
    """Stream a value of some pieces into a store, and publish it."""
    with store.stream(name) as value:
        for piece in pieces:
            value.write(piece)
        value.publish()


class SegmentStoreSuite:
    """The contract of :class:`gym_ray.storage.store.SegmentStore`.

    A subclass has a fixture ``store`` that gives a new, empty store for each test.
    """

    def test_a_new_store_is_empty_and_exclusive_and_the_probe_leaves_nothing(self, store: SegmentStore) -> None:
        assert store.exclusive is True
        assert store.list() == []
        assert list(store.sweep_temporary(-60.0)) == []

    def test_publish_replaces(self, store: SegmentStore) -> None:
        store.publish("x/y.json", b"one")
        store.publish("x/y.json", b"two")
        assert store.read("x/y.json") == b"two"
        assert store.list() == ["x/y.json"]

    def test_an_empty_value(self, store: SegmentStore) -> None:
        store.create("created", b"")
        put(store, "streamed")
        for name in ("created", "streamed"):
            assert (store.read(name), store.size(name), store.exists(name)) == (b"", 0, True)
            assert store.read_tail(name, 8) == (b"", 0)
            assert store.read_range(name, 0, 8) == b""

    def test_exactly_one_create_wins_although_all_have_the_same_bytes(self, store: SegmentStore) -> None:
        barrier = threading.Barrier(8)

        def create(_: int) -> bool:
            barrier.wait()
            try:
                store.create("marker", b"same")
            except StorageExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(create, range(8))).count(True) == 1
        assert store.read("marker") == b"same"

    def test_exactly_one_stream_wins(self, store: SegmentStore) -> None:
        barrier = threading.Barrier(4)

        def stream(number: int) -> bool:
            barrier.wait()
            try:
                put(store, "name", b"%d" % number)
            except StorageExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(stream, range(4)))
        assert won.count(True) == 1
        assert store.read("name") == b"%d" % won.index(True)

    def test_list_by_prefix(self, store: SegmentStore) -> None:
        for name in ("p/1", "p/2", "p/q/3", "pp/1", "q"):
            store.publish(name, b"")
        assert store.list() == ["p/1", "p/2", "p/q/3", "pp/1", "q"]
        assert store.list("p/") == ["p/1", "p/2", "p/q/3"]
        assert store.list("p") == ["p/1", "p/2", "p/q/3", "pp/1"]
        assert store.list("p/q/3") == ["p/q/3"]
        assert store.list("nothing/") == []
        for prefix in ("/", "/etc/", "../", "p/../", "p//", ".", "p/./", "p/1/", "pp/2"):
            assert store.list(prefix) == []

    def test_what_another_client_writes_and_removes_is_seen_at_once(self, store: SegmentStore) -> None:
        other: SegmentStore = pickle.loads(pickle.dumps(store))  # noqa: S301 - just pickled
        try:
            assert not other.exists("d/x")
            assert other.list("d/") == []
            store.create("d/x", b"1")
            assert other.exists("d/x")
            assert other.list("d/") == ["d/x"]
            store.delete("d/x")
            assert not other.exists("d/x")
            assert other.list("d/") == []
        finally:
            other.close()

    def test_missing_names(self, store: SegmentStore) -> None:
        store.publish("d/x", b"")
        for name in ("absent", "d"):
            with pytest.raises(StorageMissingError, match=name):
                store.read(name)
            with pytest.raises(StorageMissingError, match=name):
                store.size(name)
            with pytest.raises(StorageMissingError, match=name):
                store.read_range(name, 0, 1)
            with pytest.raises(StorageMissingError, match=name):
                store.read_tail(name, 1)
            assert store.exists(name) is False
        store.delete("absent")

    @pytest.mark.parametrize("name", ["", "/etc/x", "../x", ".hidden", "a/.b", "a\0b"])
    def test_names_that_cannot_be(self, store: SegmentStore, name: str) -> None:
        for refused in (store.stream, store.read, store.size, store.delete):
            with pytest.raises(StorageError, match="cannot be a name"):
                refused(name)
        with pytest.raises(StorageError, match="cannot be a name"):
            store.create(name, b"")

    def test_parts_of_a_value(self, store: SegmentStore) -> None:
        store.publish("x", b"0123456789")
        assert store.size("x") == 10
        assert store.read_range("x", 2, 3) == b"234"
        assert store.read_range("x", 8, 5) == b"89"
        assert store.read_range("x", 10, 5) == b""
        assert store.read_range("x", 99, 5) == b""
        assert store.read_range("x", 3, 0) == b""
        assert store.read_tail("x", 3) == (b"789", 10)
        assert store.read_tail("x", 99) == (b"0123456789", 10)
        assert store.read_tail("x", 0) == (b"", 10)
        with pytest.raises(StorageError, match="-1"):
            store.read_range("x", -1, 3)
        with pytest.raises(StorageError, match="-1"):
            store.read_tail("x", -1)

    def test_a_large_value_is_there_whole_once_it_is_published(self, store: SegmentStore) -> None:
        pieces = [bytes([number]) * 999_999 for number in range(_LARGE // 999_999)] + [b"end"]
        whole = b"".join(pieces)
        with store.stream("p/large") as value:
            for piece in pieces:
                assert value.write(piece) == len(piece)
            assert value.tell() == len(whole)
            assert store.list() == []
            assert not store.exists("p/large")
            value.publish()
        assert store.list() == ["p/large"]
        assert hashlib.sha256(store.read("p/large")).digest() == hashlib.sha256(whole).digest()
        assert store.read_tail("p/large", 4) == (whole[-4:], len(whole))
        assert store.read_range("p/large", 999_998, 3) == whole[999_998:1_000_001]

    @pytest.mark.parametrize("size", [5, _TWO_PARTS])
    def test_a_value_that_is_not_published_leaves_nothing(self, store: SegmentStore, size: int) -> None:
        def die() -> None:
            with store.stream("raised") as value:
                value.write(b"x" * size)
                raise RuntimeError("encoder died")

        with pytest.raises(RuntimeError, match="encoder died"):
            die()
        with store.stream("left") as value:
            value.write(b"x" * size)
        closed = store.stream("closed")
        closed.write(b"x" * size)
        closed.close()
        collected = store.stream("collected")
        collected.write(b"x" * size)
        del collected
        gc.collect()
        assert store.list() == []
        assert list(store.sweep_temporary(-60.0)) == []

    @pytest.mark.parametrize("size", [5, _TWO_PARTS])
    def test_a_name_that_is_taken_stays_as_it_is(self, store: SegmentStore, size: int) -> None:
        put(store, "x", b"a" * size)
        for other in (b"b" * size, b"a" * (size - 1)):
            with pytest.raises(StorageExistsError, match="x"):
                put(store, "x", other)
        put(store, "x", b"a" * size)
        assert store.read("x") == b"a" * size
        assert list(store.sweep_temporary(-60.0)) == []

    def test_an_ended_value_takes_nothing_more(self, store: SegmentStore) -> None:
        with store.stream("x") as value:
            value.publish()
        assert value.closed
        value.close()
        with pytest.raises(ValueError, match="published, discarded or closed"):
            value.write(b"x")
        with pytest.raises(ValueError, match="published, discarded or closed"):
            value.publish()

    def test_a_value_takes_any_buffer_and_keeps_none(self, store: SegmentStore) -> None:
        reused = bytearray(b"ab")
        with store.stream("x") as value:
            value.write(reused)
            reused[:] = b"cd"
            assert value.write(memoryview(reused)) == 2
            assert value.write(pa.py_buffer(b"ef")) == 2
            assert value.writable()
            assert not value.readable()
            value.publish()
        assert store.read("x") == b"abcdef"

    def test_parquet_is_written_to_a_value(self, store: SegmentStore) -> None:
        table = pa.table({"token_ids": pa.array([[1, 2], [3]], pa.list_(pa.int32()))})
        with store.stream("x.parquet") as value:
            pq.write_table(table, pa.PythonFile(value, mode="w"))
            assert not store.exists("x.parquet")
            value.publish()
        assert pq.read_table(pa.BufferReader(store.read("x.parquet"))).equals(table)

    def test_the_footer_of_an_encoder_that_died_is_not_published(self, store: SegmentStore) -> None:
        table = pa.table({"a": [1]})

        def die() -> None:
            with (
                store.stream("x.parquet") as value,
                pq.ParquetWriter(pa.PythonFile(value, mode="w"), table.schema) as writer,
            ):
                writer.write_table(table)
                raise RuntimeError("died")

        with pytest.raises(RuntimeError, match="died"):
            die()
        assert store.list() == []

    def test_many_threads_at_once(self, store: SegmentStore) -> None:
        def work(number: int) -> bytes:
            put(store, f"t/{number}", b"%d" % number)
            return store.read_tail(f"t/{number}", 9)[0]

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(work, range(32))) == [b"%d" % number for number in range(32)]
        assert len(store.list("t/")) == 32

    def test_a_fork_takes_nothing_from_a_value(self, store: SegmentStore) -> None:
        with store.stream("x") as value:
            value.write(b"1" * _TWO_PARTS)
            child = os.fork()
            if not child:
                try:
                    with pytest.raises(ValueError, match=f"by process {os.getppid()}"):
                        value.write(b"2")
                    value.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            value.write(b"3")
            value.publish()
        assert store.size("x") == _TWO_PARTS + 1
        assert store.read_tail("x", 2)[0] == b"13"

    def test_a_closed_store_can_be_used_again(self, store: SegmentStore) -> None:
        store.create("x", b"1")
        store.close()
        store.close()
        assert store.read("x") == b"1"
