from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import CaptureError, RolloutFrozenError, RolloutRetiredError
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.storage_faults import FaultyCalls, RecordingCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.reasons import INDEXED_RECORD_MISSING
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry

RECORDS, STATE, INTENTS = "r0.tokens.jsonl", "r0.tokens.state.json", "r0.tokens.intents"


def entry(call_id: str, *, rollout_id: str = "r0", **members: Any) -> TokenEntry:
    return call_entry(call_id, [1, 2], [3], rollout_id=rollout_id, **members)


class SyncFaults(FileCalls):
    """Syncs of record and intent files fail, and, if told so, cutting them does too."""

    def __init__(self) -> None:
        self.sync_error: OSError | None = None
        self.cut_error: OSError | None = None

    def sync_data(self, fd: int) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        super().sync_data(fd)

    def truncate(self, fd: int, size: int) -> None:
        if self.cut_error is not None:
            raise self.cut_error
        super().truncate(fd, size)


@pytest.fixture
def stores() -> Iterator[list[TokenCaptureStore]]:
    """Stores that are to be shut down."""
    made: list[TokenCaptureStore] = []
    yield made
    for store in made:
        store.shut_down()


def store_on(stores: list[TokenCaptureStore], root: Path, calls: FileCalls | None = None) -> TokenCaptureStore:
    stores.append(TokenCaptureStore(root, calls=calls or FileCalls()))
    return stores[-1]


def call_ids(store: TokenCaptureStore) -> list[str]:
    return [one.model_call_id for one in store.read_entries("r0")]


def test_a_record_is_written_and_synced_before_anybody_gets_the_lock(tmp_path: Path, stores: Any) -> None:
    calls = RecordingCalls()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    calls.log.clear()
    store.append(entry("c1"))
    steps = [(what, name) for what, name in calls.log if name.startswith("r0")]
    assert steps == [
        ("lock", "r0.tokens.lock"),
        ("lock", RECORDS),
        ("write", RECORDS),
        ("sync_data", RECORDS),
        ("unlock", RECORDS),
    ]


def test_the_state_precedes_the_first_record_and_is_not_written_with_the_next(tmp_path: Path, stores: Any) -> None:
    calls = RecordingCalls()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    written = [name for what, name in calls.log if what == "write"]
    assert [name.endswith("r0.tokens.state.json") for name in written] == [True, False]
    before = os.stat(tmp_path / STATE)
    for number in range(1, 5):
        store.append(entry(f"c{number}"))
    after = os.stat(tmp_path / STATE)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_record_that_could_not_be_synced_is_taken_back_and_can_be_put_again(tmp_path: Path, stores: Any) -> None:
    calls = SyncFaults()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    calls.sync_error = OSError(errno.EIO, "bad block")
    with pytest.raises(CaptureError, match=r"call 'c1' could not be kept: .*bad block"):
        store.append(entry("c1"))
    assert call_ids(store) == ["c0"]
    with pytest.raises(CaptureError, match="bad block"):
        store.append(entry("c1"))
    calls.sync_error = None
    store.append(entry("c1"))
    assert call_ids(store) == ["c0", "c1"]


def test_what_cannot_even_be_taken_back_is_cut_off_before_the_next_append(tmp_path: Path, stores: Any) -> None:
    calls = SyncFaults()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    calls.sync_error, calls.cut_error = OSError(errno.EIO, "bad block"), OSError(errno.EIO, "worse")
    with pytest.raises(CaptureError, match="bad block"):
        store.append(entry("c1"))
    calls.sync_error = None
    with pytest.raises(CaptureError, match="worse"):
        store.append(entry("c1"))  # it looks as if it were there, but nobody knows
    calls.cut_error = None
    store.append(entry("c2"))
    assert call_ids(store) == ["c0", "c2"]


def test_records_that_others_added_behind_an_unsynced_one_are_not_cut(tmp_path: Path, stores: Any) -> None:
    calls = SyncFaults()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    calls.sync_error, calls.cut_error = OSError(errno.EIO, "bad block"), OSError(errno.EIO, "worse")
    with pytest.raises(CaptureError, match="bad block"):
        store.append(entry("c1"))
    store_on(stores, tmp_path).append(entry("c2"))
    calls.sync_error = calls.cut_error = None
    store.append(entry("c3"))
    assert call_ids(store) == ["c0", "c1", "c2", "c3"]


async def test_a_begun_call_that_could_not_be_synced_is_taken_back(tmp_path: Path, stores: Any) -> None:
    calls = SyncFaults()
    store = store_on(stores, tmp_path, calls)
    await store.begin_call("r0", "c0")
    calls.sync_error = OSError(errno.EIO, "bad block")
    with pytest.raises(CaptureError, match="call 'c1' could not be kept"):
        await store.begin_call("r0", "c1")
    assert (tmp_path / INTENTS).read_bytes() == b"c0\n"


def test_a_record_of_another_writer_is_synced_before_it_counts_as_ours(tmp_path: Path, stores: Any) -> None:
    store_on(stores, tmp_path).append(entry("c0"))
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(encode_entry(entry("c1")))  # by a writer that died before its sync
    calls = RecordingCalls()
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c1"))
    assert ("write", RECORDS) not in calls.log
    assert calls.log.index(("sync_data", RECORDS)) < calls.log.index(("sync", tmp_path.name))
    calls.log.clear()
    store.append(entry("c1"))
    assert ("sync_data", RECORDS) not in calls.log
    calls = SyncFaults()  # type: ignore[assignment]
    failing = store_on(stores, tmp_path, calls)
    calls.sync_error = OSError(errno.EIO, "bad block")  # type: ignore[attr-defined]
    with pytest.raises(CaptureError, match="bad block"):
        failing.append(entry("c1"))


def test_a_full_disk_leaves_no_part_of_a_record(tmp_path: Path, stores: Any) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".jsonl"))
    store = store_on(stores, tmp_path, calls)
    store.append(entry("c0"))
    whole = (tmp_path / RECORDS).read_bytes()
    for written in (0, 1, 100):
        calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "no space left"), written
        with pytest.raises(CaptureError, match="no space left"):
            store.append(entry("c1"))
        assert (tmp_path / RECORDS).read_bytes() == whole
    calls.write_error = None
    store.append(entry("c1"))
    assert call_ids(store) == ["c0", "c1"]


def test_a_full_disk_at_the_first_record_leaves_nothing_unreadable(tmp_path: Path, stores: Any) -> None:
    calls = FaultyCalls(only=lambda path: "tokens.state" in path)
    store = store_on(stores, tmp_path, calls)
    calls.write_error = OSError(errno.ENOSPC, "no space left")
    with pytest.raises(CaptureError, match="no space left"):
        store.append(entry("c0"))
    assert call_ids(store) == []
    calls.write_error = None
    store.append(entry("c0"))
    assert call_ids(store) == ["c0"]


class CountingCalls(FileCalls):
    """Counts the bytes that are read and written."""

    def __init__(self) -> None:
        self.read = self.written = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read += len(data)
        return data

    def write(self, fd: int, data: bytes | memoryview) -> int:
        written = super().write(fd, data)
        self.written += written
        return written


async def test_one_more_record_reads_and_writes_nothing_that_grows(tmp_path: Path, stores: Any) -> None:
    calls = CountingCalls()
    store = store_on(stores, tmp_path, calls)
    costs = []
    for number in range(120):
        read, written = calls.read, calls.written
        await store.begin_call("r0", f"c{number:04}")
        await store.put(entry(f"c{number:04}"))
        costs.append((calls.read - read, calls.written - written))
    assert costs[10] == costs[119]
    length = len(encode_entry(entry("c0000"))) + len("c0000\n")
    assert costs[119][1] == length
    assert costs[119][0] < 600


async def test_a_refused_call_makes_no_file(tmp_path: Path, stores: Any) -> None:
    store = store_on(stores, tmp_path)
    snapshot = await store.freeze("r0")
    for refused in (store.put(entry("c0")), store.begin_call("r0", "c0")):
        with pytest.raises(RolloutFrozenError):
            await refused
    assert await store.drop("r0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    for refused in (store.put(entry("c0")), store.begin_call("r0", "c0")):
        with pytest.raises(RolloutRetiredError):
            await refused
    assert sorted(os.listdir(tmp_path)) == ["r0.tokens.lock", STATE]


async def test_a_torn_intent_is_cut_off_and_not_glued_to_the_next(tmp_path: Path, stores: Any) -> None:
    store = store_on(stores, tmp_path)
    for torn in (b"c", b"c0\nc", b"c0\n" + b"x" * 5000):
        (tmp_path / INTENTS).write_bytes(torn)
        await store.begin_call("r0", "c1")
        whole = torn[: torn.rfind(b"\n") + 1]
        assert (tmp_path / INTENTS).read_bytes() == whole + b"c1\n"


@pytest.mark.parametrize("ending", ["jsonl", "state.json", "intents", "incomplete", "lock", "jsonl.tokens.intents"])
async def test_an_id_that_looks_like_a_file_is_a_rollout_of_its_own(tmp_path: Path, stores: Any, ending: str) -> None:
    store, rollout_id = store_on(stores, tmp_path), f"r0.tokens.{ending}"
    await store.put(entry("c9"))
    snapshots = [await store.freeze("r0")]
    await store.begin_call(rollout_id, "c0")
    await store.put(entry("c0", rollout_id=rollout_id))
    snapshots.append(await store.freeze(rollout_id))
    assert [len(snapshot.entries) for snapshot in snapshots] == [1, 1]
    for work in (store.put(entry("c1", rollout_id=rollout_id)), store.begin_call(rollout_id, "c1")):
        with pytest.raises(RolloutFrozenError):
            await work
    for found in snapshots:
        assert await store.drop(found.rollout_id, snapshot_id=found.snapshot_id, version=found.version)
    with pytest.raises(RolloutRetiredError):
        await store.put(entry("c1", rollout_id=rollout_id))


def indexed(root: Path, entries: list[TokenEntry], **members: Any) -> None:
    """Write a rollout as a writer does that keeps its index in the state."""
    lines = [encode_entry(one) for one in entries]
    (root / RECORDS).write_bytes(b"".join(lines))
    state = {
        "entry_digests": {
            one.model_call_id: hashlib.sha256(line.rstrip(b"\n")).hexdigest()
            for one, line in zip(entries, lines, strict=True)
        },
        "frozen": False,
        "incomplete": False,
        "indexed_size": sum(map(len, lines)),
        "retired": False,
        "snapshot_id": "",
        "version": len(entries),
    }
    (root / STATE).write_text(json.dumps({**state, **members}))


async def test_an_index_of_another_writer_is_not_carried_on(tmp_path: Path, stores: Any) -> None:
    indexed(tmp_path, [entry("c0"), entry("c1")], version=5)
    store = store_on(stores, tmp_path)
    store.append(entry("c1"))
    store.append(entry("c2"))
    state = json.loads((tmp_path / STATE).read_bytes())
    assert (state["entry_digests"], state["indexed_size"], state["version"]) == ({}, 0, 3)
    snapshot = await store.freeze("r0")
    assert (snapshot.version, snapshot.incomplete) == (5 + 1 + 1, False)


async def test_a_record_that_the_index_has_and_the_file_has_not_is_missed(tmp_path: Path, stores: Any) -> None:
    indexed(tmp_path, [entry("c0"), entry("c1")])
    os.truncate(tmp_path / RECORDS, len(encode_entry(entry("c0"))))
    store = store_on(stores, tmp_path)
    _, problems = store.read_packed("r0")
    assert [(problem.reason, problem.model_call_id) for problem in problems] == [(INDEXED_RECORD_MISSING, "c1")]
    store.append(entry("c2"))
    assert store.is_incomplete("r0")
    snapshot = await store.freeze("r0")
    assert [one.model_call_id for one in snapshot.entries] == ["c0", "c2"]
    assert [(problem.reason, problem.model_call_id) for problem in snapshot.problems] == [
        (INDEXED_RECORD_MISSING, "c1")
    ]


async def test_an_index_that_covers_more_than_the_file_is_missed_bytes(tmp_path: Path, stores: Any) -> None:
    for size in (-1, 10**6):
        indexed(tmp_path, [entry("c0")], indexed_size=size)
        _, problems = store_on(stores, tmp_path).read_packed("r0")
        assert [problem.reason for problem in problems] == [INDEXED_RECORD_MISSING]
        assert f"covers {size} bytes" in problems[0].detail
