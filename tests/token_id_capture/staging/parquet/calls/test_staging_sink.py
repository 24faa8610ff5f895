from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import SettingsError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.numbered_calls import media_of_call, numbered_call
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.staging import StagedCallRecord, StageResult
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.keys import parse_key
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionRules, compact

WAIT_S = 20.0
SOON_S = 0.4
"""A deadline that passes in a test, long enough for a busy machine to have begun the write before."""


def key_of(result: StageResult) -> str:
    assert result.ok, result.error
    assert result.staging_key is not None
    return result.staging_key


def error_of(result: StageResult) -> str:
    assert not result.ok
    assert result.staging_key is None
    assert result.error
    return result.error


class Gate:
    """Holds the sink before it begins a segment."""

    def __init__(self, store: WatchedStore) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        store.before["stream"] = self

    def __call__(self, name: str) -> None:
        self.reached.set()
        assert self.open.wait(WAIT_S)


def staging(store: PosixStore | WatchedStore, **options: Any) -> ParquetStagingSink:
    return ParquetStagingSink(store.place, store=store, **options)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def temporary_files(root: Path) -> list[str]:
    return [str(path) for path in root.rglob(".*") if path.is_file()]


def test_a_key_says_where_the_call_is(tmp_path: Path) -> None:
    record = numbered_call(1)
    with ParquetStagingSink(tmp_path, partition="run-7") as sink:
        key = parse_key(key_of(sink.stage(record)))
    assert (key.store_id, key.partition, key.digest8) == (sink.store_id, "run-7", record.digest[:8])
    assert PosixStore(tmp_path).list() == [str(key.segment), "store.json"]


def test_sixty_four_threads_share_segments(tmp_path: Path) -> None:
    records = [numbered_call(number, 50) for number in range(64 * 12)]
    with ParquetStagingSink(tmp_path) as sink, ParquetStagingSource(tmp_path) as source:
        line = threading.Barrier(64)

        def stage_some(thread: int) -> list[str]:
            line.wait(WAIT_S)
            return [key_of(sink.stage(record)) for record in records[thread::64]]

        with ThreadPoolExecutor(64) as pool:
            keys = [key for some in pool.map(stage_some, range(64)) for key in some]
        order = [record for thread in range(64) for record in records[thread::64]]
        assert [found.digest for found in source.fetch(keys)] == [record.digest for record in order]
        stats = sink.stats()
        assert (stats.staged, stats.refused, stats.failed, stats.repeated) == (len(records), 0, 0, 0)
        assert stats.commits.mean_batch >= 16


def test_a_record_and_all_its_media_are_one_file(tmp_path: Path) -> None:
    with ParquetStagingSink(tmp_path) as sink, ParquetStagingSource(tmp_path) as source:
        key = key_of(sink.stage(numbered_call(1), attachments=media_of_call(1)))
        assert len(PosixStore(tmp_path).list("default/")) == 1
        for name, wanted in media_of_call(1).items():
            view = source.fetch_attachments(key)[name]
            assert not isinstance(view, list)
            assert np.array_equal(view.read(), wanted)


def test_the_same_call_again_has_the_same_key_and_is_written_once(tmp_path: Path) -> None:
    with ParquetStagingSink(tmp_path) as sink:
        key = key_of(sink.stage(numbered_call(1), attachments=media_of_call(1)))
        assert key_of(sink.stage(numbered_call(1), attachments=media_of_call(1))) == key
        assert (sink.stats().commits.items, sink.stats().repeated) == (1, 1)


@pytest.mark.parametrize(
    ("again", "media", "what"),
    [
        (numbered_call(1, extras={}), None, "another record"),
        (numbered_call(1), {"x": b"1"}, "other attachments"),
    ],
)
def test_other_content_under_the_same_ids_is_refused(
    tmp_path: Path, again: StagedCallRecord, media: dict[str, Any] | None, what: str
) -> None:
    with ParquetStagingSink(tmp_path) as sink:
        key_of(sink.stage(numbered_call(1)))
        assert f"r1/c1 was staged with {what} before" in error_of(sink.stage(again, attachments=media))
        assert (sink.stats().commits.items, sink.stats().refused) == (1, 1)


def test_a_call_on_its_way_is_waited_for_or_refused(tmp_path: Path) -> None:
    store = WatchedStore(PosixStore(tmp_path))
    gate = Gate(store)
    with staging(store) as sink, ThreadPoolExecutor(9) as pool:
        first = pool.submit(sink.stage, numbered_call(1))
        assert gate.reached.wait(WAIT_S)
        same = [pool.submit(sink.stage, numbered_call(1)) for _ in range(8)]
        assert "another record" in error_of(sink.stage(numbered_call(1, extras={})))
        gate.open.set()
        assert {key_of(one.result(WAIT_S)) for one in same} == {key_of(first.result(WAIT_S))}
        assert sink.stats().commits.items == 1


def test_two_sinks_keep_a_row_each(tmp_path: Path) -> None:
    with ParquetStagingSink(tmp_path) as one, ParquetStagingSink(tmp_path) as other:
        keys = [key_of(sink.stage(numbered_call(1))) for sink in (one, other)]
    assert len(set(keys)) == 2
    with ParquetStagingSource(tmp_path) as source:
        assert [found.model_call_id for found in source.fetch(keys)] == ["c1", "c1"]


def test_only_so_many_calls_are_remembered(tmp_path: Path) -> None:
    with ParquetStagingSink(tmp_path, max_remembered=2) as sink:
        keys = [key_of(sink.stage(numbered_call(number))) for number in (1, 2, 3)]
        assert key_of(sink.stage(numbered_call(2))) == keys[1]
        assert key_of(sink.stage(numbered_call(1))) != keys[0]


@pytest.mark.parametrize("attachments", [{"x": object()}, {1: b""}, {"x": None}, {"ok": b"1", "x": {"a": 1}}])
def test_attachments_that_cannot_be_kept_are_refused_and_nothing_is_written(
    tmp_path: Path, attachments: dict[Any, Any]
) -> None:
    with ParquetStagingSink(tmp_path) as sink:
        assert "attachment" in error_of(sink.stage(numbered_call(1), attachments=attachments))
        assert PosixStore(tmp_path).list() == ["store.json"]
        key_of(sink.stage(numbered_call(1)))


def test_a_mask_with_a_signed_zero_is_refused(tmp_path: Path) -> None:
    record = numbered_call(1, 2).model_copy(update={"token_mask_delta": Column(np.array([-0.0, 1], np.float32))})
    with ParquetStagingSink(tmp_path) as sink:
        assert "-0.0" in error_of(sink.stage(record))


def segment_faults() -> FaultyCalls:
    return FaultyCalls(only=lambda path: path.endswith(".calls.parquet"))


def test_a_full_disk_fails_its_callers_and_leaves_no_file(tmp_path: Path) -> None:
    calls = segment_faults()
    with staging(PosixStore(tmp_path, calls=calls)) as sink:
        before = key_of(sink.stage(numbered_call(1)))
        calls.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        calls.bytes_before_error = 1000
        problem = error_of(sink.stage(numbered_call(2, 5000), attachments=media_of_call(2, 1 << 20)))
        assert "No space left on device" in problem
        assert "00000001.calls.parquet" in problem
        assert temporary_files(tmp_path) == []
        calls.write_error = None
        after = key_of(sink.stage(numbered_call(2, 5000), attachments=media_of_call(2, 1 << 20)))
        stats = sink.stats()
        assert (stats.staged, stats.failed, stats.commits.failed_items) == (2, 1, 1)
    with ParquetStagingSource(tmp_path) as source:
        assert [found.model_call_id for found in source.fetch([before, after])] == ["c1", "c2"]


def test_a_failed_segment_fails_exactly_its_own_callers(tmp_path: Path) -> None:
    calls = segment_faults()
    store = WatchedStore(PosixStore(tmp_path, calls=calls))
    gate = Gate(store)

    def fail_the_second(name: str) -> None:
        gate(name)
        is_second = name.endswith("00000001.calls.parquet")
        calls.write_error = OSError(errno.EIO, "broken") if is_second else None

    store.before["stream"] = fail_the_second
    with staging(store) as sink, ThreadPoolExecutor(16) as pool:
        first = pool.submit(sink.stage, numbered_call(0))
        assert gate.reached.wait(WAIT_S)
        second = [pool.submit(sink.stage, numbered_call(number)) for number in range(1, 9)]
        wait_until(lambda: sink.stats().commits.pending_bytes >= 9 * 1024)
        gate.open.set()
        kept = [key_of(first.result(WAIT_S))]
        assert all("broken" in error_of(one.result(WAIT_S)) for one in second)
        kept += [key_of(pool.submit(sink.stage, numbered_call(number)).result(WAIT_S)) for number in range(1, 9)]
    with ParquetStagingSource(tmp_path) as source:
        assert len(source.fetch(kept)) == 9
    assert temporary_files(tmp_path) == []


def test_after_the_deadline_the_call_may_still_become_durable_and_is_found_again(tmp_path: Path) -> None:
    store = WatchedStore(PosixStore(tmp_path))
    gate = Gate(store)
    with staging(store, timeout_s=SOON_S) as sink:
        assert "not durable at" in error_of(sink.stage(numbered_call(1)))
        assert gate.reached.wait(WAIT_S)
        gate.open.set()
        wait_until(lambda: sink.stats().commits.items > 0)
        assert (sink.stats().commits.orphans, sink.stats().failed) == (1, 1)
        key = key_of(sink.stage(numbered_call(1)))
        assert sink.stats().commits.items == 1
    with ParquetStagingSource(tmp_path) as source:
        assert source.fetch([key])[0].digest == numbered_call(1).digest


def test_a_call_whose_late_write_failed_can_be_staged_at_once(tmp_path: Path) -> None:
    calls = segment_faults()
    store = WatchedStore(PosixStore(tmp_path, calls=calls))
    gate = Gate(store)
    with staging(store, timeout_s=SOON_S) as sink:
        calls.write_error = OSError(errno.EIO, "broken")
        error_of(sink.stage(numbered_call(1)))
        gate.open.set()
        wait_until(lambda: sink.stats().commits.failed_items > 0)
        calls.write_error, sink._timeout_s = None, WAIT_S
        key_of(sink.stage(numbered_call(1, extras={})))  # what was never written binds nobody
        assert sink.stats().commits.orphans == 0


def test_what_was_not_begun_before_the_deadline_is_never_written(tmp_path: Path) -> None:
    store = WatchedStore(PosixStore(tmp_path))
    gate = Gate(store)
    with staging(store, timeout_s=SOON_S) as sink:
        for number in (1, 2):
            assert error_of(sink.stage(numbered_call(number))) == f"not durable at {tmp_path} within {SOON_S:g} s"
        gate.open.set()
        assert sink.close(WAIT_S)
        assert (sink.stats().commits.items, sink.stats().commits.orphans) == (1, 1)


def test_callers_wait_for_room_until_the_deadline(tmp_path: Path) -> None:
    store = WatchedStore(PosixStore(tmp_path))
    gate = Gate(store)
    with staging(store, timeout_s=SOON_S, max_pending_bytes=3000) as sink:
        error_of(sink.stage(numbered_call(1, 500)))
        waited = error_of(sink.stage(numbered_call(2, 500)))
        assert f"still waited to be written after {SOON_S:g} s; max_pending_bytes is 3000" in waited
        gate.open.set()


def test_a_closed_sink_says_so(tmp_path: Path) -> None:
    sink = ParquetStagingSink(tmp_path)
    assert sink.close()
    assert "closed" in error_of(sink.stage(numbered_call(1)))


def test_what_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        ParquetStagingSink("relative/path")
    with pytest.raises(ValueError, match="partition"):
        ParquetStagingSink(tmp_path, partition="a/b")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="is a file, not a directory"):
        ParquetStagingSink(tmp_path / "file" / "staging")


def test_extras_of_every_kind_come_back(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(250):
        deep = {"in": deep}
    everything = [None, {}, {"a": None}, {"é\u0000\n": [2**63 - 1, -(2**63), 1e308, -0.0, True]}, deep]
    with ParquetStagingSink(tmp_path) as sink, ParquetStagingSource(tmp_path) as source:
        keys = [key_of(sink.stage(numbered_call(at, extras=extras))) for at, extras in enumerate(everything)]
        assert source.fetch_extras(keys) == everything


@pytest.mark.parametrize("strided", [False, True])
def test_an_array_that_is_changed_meanwhile_is_no_success(tmp_path: Path, strided: bool) -> None:
    store = WatchedStore(PosixStore(tmp_path))
    image = np.zeros((600, 1200), np.uint8)
    given = image[:, ::2] if strided else image
    with staging(store) as sink, ThreadPoolExecutor(1) as pool:
        gate = Gate(store)
        result = pool.submit(sink.stage, numbered_call(1), attachments={"image": given})
        assert gate.reached.wait(WAIT_S)
        image[400, 2] = 1
        gate.open.set()
        assert "attachment 'image' was changed while it was being staged" in error_of(result.result(WAIT_S))
        assert store.list() == ["store.json"]
        key = key_of(sink.stage(numbered_call(1), attachments={"image": given}))
    with ParquetStagingSource(tmp_path) as source:
        assert (source.open_attachment(key, "image").read() == given).all()


def test_whatever_a_sink_compaction_and_retirement_leave_is_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = tmp_path / "deep" / "store"
        keys = []
        for at in range(2):
            with ParquetStagingSink(root) as sink:
                keys.append(key_of(sink.stage(numbered_call(at), attachments={"a": b"x"})))
        with ParquetStagingSource(root) as source:
            source.delete(keys[:1])
        compact(open_staging_store(root), rules=CompactionRules(delay_s=0.0))
    finally:
        os.umask(before)
    places = [root, *root.rglob("*")]
    assert {place.name.split(".")[-1] for place in places if place.is_file()} == {"parquet", "json"}
    for place in places:
        assert place.stat().st_mode & 0o777 == (0o700 if place.is_dir() else 0o600), place
