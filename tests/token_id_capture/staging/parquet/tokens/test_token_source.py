"""A snapshot holds all that was acknowledged, reads little, and says what it lacks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import CaptureError, RolloutFrozenError, RolloutIdError, StorageError
from gym_ray.storage.opening import open_store
from gym_ray.testing.token_source import call_entry
from gym_ray.testing.watched_store import StoreRequest, WatchedStore
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink, ParquetTokenSource

ROLLOUT = "3-1"
MANY = 10_000
TOKENS_EACH = 300


class Backend:
    """A store in memory, and the clients that a test opened over it."""

    def __init__(self) -> None:
        self.url = f"memory://{secrets.token_hex(6)}"
        self.opened: list[Any] = []

    def store(self) -> WatchedStore:
        return WatchedStore(open_store(self.url))

    def sink(self, store: WatchedStore | None = None, **options: Any) -> ParquetTokenSink:
        self.opened.append(ParquetTokenSink(self.url, store=store or self.store(), **options))
        return self.opened[-1]

    def source(self, store: WatchedStore | None = None, **options: Any) -> ParquetTokenSource:
        self.opened.append(ParquetTokenSource(self.url, store=store or self.store(), **options))
        return self.opened[-1]


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    made = Backend()
    yield made
    for client in made.opened:
        await client.close()


def calls(entries: Sequence[Any]) -> list[str]:
    return sorted(entry.model_call_id for entry in entries)


def many_records() -> list[PackedEntry]:
    numbers = np.random.default_rng(1).integers(0, 150_000, (MANY, TOKENS_EACH), dtype=np.uint32)
    log_probs = np.linspace(-9, -0.1, TOKENS_EACH // 3, dtype=np.float32)
    return [
        PackedEntry(
            ids[log_probs.size :],
            ids[: log_probs.size],
            log_probs,
            {"rollout_id": f"rollout-{number}-1", "model_call_id": f"call-{number}"},
        )
        for number, ids in enumerate(numbers)
    ]


async def test_freezing_one_of_ten_thousand_rollouts_reads_little_and_only_its_row_groups(backend: Backend) -> None:
    """One row group is read of all there are, and a second rollout costs nothing but its own."""
    sink, plain, records = backend.sink(), open_store(backend.url), many_records()
    order = np.random.default_rng(2).permutation(MANY)
    await asyncio.gather(*[sink.put(records[number]) for number in order])
    await sink.close()
    segments = [name for name in plain.list() if name.endswith(".tokens.parquet")]
    whole = sum(plain.size(name) for name in segments)

    store = backend.store()
    source = backend.source(store)
    snapshot = await source.freeze("rollout-77-1")
    assert [one.prompt_token_ids.tolist() for one in snapshot.packed] == [records[77].prompt_token_ids.tolist()]
    footers, columns = split(store)
    assert sorted({request.name for request in footers}) == segments
    assert sum(request.nbytes for request in footers) <= 12288 * len(segments) < whole / 3
    assert [request.nbytes < 32 * TOKENS_EACH * 8 for request in columns] == [True]

    store.requests.clear()
    assert calls((await source.freeze("rollout-4242-1")).entries) == ["call-4242"]
    footers, columns = split(store)
    assert footers == []
    assert [request.nbytes < 32 * TOKENS_EACH * 8 for request in columns] == [True]


def split(store: WatchedStore) -> tuple[list[StoreRequest], list[StoreRequest]]:
    """Return what was read of the ends of record segments, and of their columns."""
    requests = [request for request in store.requests if request.name.endswith(".tokens.parquet")]
    footers = [request for request in requests if request.method == "read_tail"]
    return footers, [request for request in requests if request.method == "read_range"]


async def test_everything_acknowledged_is_found_though_no_listing_shows_it(backend: Backend) -> None:
    blind = backend.store()
    blind.hides = lambda name: not name.startswith("frozen")
    source, sinks = backend.source(blind), [backend.sink(), backend.sink()]
    put = []
    for number in range(12):
        call_id = f"c{number:02}"
        await sinks[number % 2].begin_call(ROLLOUT, call_id)
        await sinks[number % 2].put(call_entry(call_id, [1], [2]))
        put.append(call_id)
        if number == 5:
            await sinks.pop(0).close()
            sinks.append(backend.sink())
    await sinks[0].end_call(ROLLOUT, "lost", "untrainable", "usage_missing")
    snapshot = await source.freeze(ROLLOUT)
    assert calls(snapshot.entries) == put
    assert [problem.reason for problem in snapshot.problems] == ["usage_missing"]
    trusting = await backend.source(blind, trust_listings=True).freeze(ROLLOUT)
    assert trusting.entries == ()


async def test_segments_behind_failed_commits_are_found_though_no_listing_shows_them(backend: Backend) -> None:
    store, blind = backend.store(), backend.store()
    blind.hides = lambda _: True
    source, sink = backend.source(blind), backend.sink(store)

    def fail(_: str) -> None:
        raise StorageError("out of order")

    await sink.put(call_entry("c0", [1], [2]))
    for last in ("c1", "c2"):
        store.before["stream"] = fail
        for _ in range(3):
            with pytest.raises(CaptureError):
                await sink.put(call_entry("failed", [1], [2]))
        store.before.clear()
        await sink.put(call_entry(last, [1], [2]))
    assert calls((await source.freeze(ROLLOUT)).entries) == ["c0", "c1", "c2"]


async def test_a_listing_that_shows_the_newest_names_last_loses_nothing(backend: Backend) -> None:
    late = backend.store()
    source, sink = backend.source(late), backend.sink()
    for number in range(9):
        await sink.put(call_entry(f"c{number}", [1], [2]))
        shown = set(open_store(backend.url).list())
        newest = max(name for name in shown if name.endswith(".tokens.parquet"))
        late.hides = lambda name, newest=newest: name == newest  # type: ignore[misc]
        await source.freeze("other")  # as a reader that looks all the time
    assert len((await source.freeze(ROLLOUT)).entries) == 9


async def test_a_damaged_segment_is_named_and_hides_nothing_else(backend: Backend) -> None:
    store, sink = open_store(backend.url), backend.sink()
    await sink.put(call_entry("c0", [1], [2]))
    await sink.put(call_entry("c1", [1], [2]))
    await sink.close()
    name = [name for name in store.list() if name.endswith(".tokens.parquet")][1]
    store.publish(name, store.read(name)[:-20])
    snapshot = await backend.source().freeze(ROLLOUT)
    assert calls(snapshot.entries) == ["c0"]
    assert [problem.reason for problem in snapshot.problems] == ["damaged_line"]
    assert name in snapshot.problems[0].detail
    assert (await backend.source().freeze("some-other")).incomplete  # its rows may have been in there


async def test_damaged_pages_of_a_rollout_are_named_to_it_alone(backend: Backend) -> None:
    store, sink = open_store(backend.url), backend.sink()
    await sink.put(call_entry("c0", [1], [2]))
    await sink.put(call_entry("d0", [1], [2], rollout_id="4-1"))
    name = min(name for name in store.list() if name.endswith(".tokens.parquet"))
    data = store.read(name)
    store.publish(name, data[:4] + bytes(80) + data[84:])
    source = backend.source()
    damaged, whole = await source.freeze(ROLLOUT), await source.freeze("4-1")
    assert damaged.incomplete
    assert damaged.entries == ()
    assert name in damaged.problems[0].detail
    assert not whole.incomplete
    assert calls(whole.entries) == ["d0"]


async def test_foreign_files_do_not_matter(backend: Backend) -> None:
    store = open_store(backend.url)
    await backend.sink().put(call_entry("c0", [1], [2]))
    for name in ("default/readme.txt", "default/0123456789abcdef0123/x.parquet", "default/writers/notes.json"):
        store.publish(name, b"hello")
    snapshot = await backend.source().freeze(ROLLOUT)
    assert calls(snapshot.entries) == ["c0"]
    assert not snapshot.incomplete


async def test_partitions_are_apart(backend: Backend) -> None:
    await backend.sink(partition="one").put(call_entry("c0", [1], [2]))
    assert (await backend.source(partition="two").freeze("else")).entries == ()
    assert calls((await backend.source(partition="one").freeze(ROLLOUT)).entries) == ["c0"]


async def test_a_deleted_rollout_begins_anew_for_everybody(backend: Backend) -> None:
    sink, source = backend.sink(), backend.source()
    first, second = call_entry("c0", [1], [2]), call_entry("c0", [1], [3])
    await sink.begin_call(ROLLOUT, "lost")
    await sink.put(first)
    snapshot = await source.freeze(ROLLOUT)
    with pytest.raises(RolloutFrozenError):
        await sink.put(call_entry("late", [1], [2]))
    await asyncio.to_thread(source.delete, ROLLOUT)
    await asyncio.to_thread(source.delete, ROLLOUT)
    await asyncio.to_thread(source.delete, "never-seen")
    assert not await sink.has_evidence(ROLLOUT)
    await sink.put(second)
    await sink.put(call_entry("late", [1], [2]))
    again = await source.freeze(ROLLOUT)
    assert again.snapshot_id != snapshot.snapshot_id
    assert not again.incomplete
    assert [entry.generation_token_ids for entry in again.entries] == [[3], [2]]
    assert not await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert await source.drop(ROLLOUT, snapshot_id=again.snapshot_id, version=again.version)
    await asyncio.to_thread(source.delete, ROLLOUT)
    await sink.put(first)
    assert [entry.generation_token_ids for entry in (await source.freeze(ROLLOUT)).entries] == [[2]]


async def test_a_store_without_exclusive_names_takes_records_and_freezes_nothing(backend: Backend) -> None:
    store = WithoutExclusiveNames(open_store(backend.url))
    sink = backend.sink(store)
    await sink.begin_call(ROLLOUT, "c0")
    await sink.put(call_entry("c0", [1], [2]))
    assert await sink.has_evidence(ROLLOUT)
    with pytest.raises(CaptureError, match=r"3-1 cannot be frozen: .* only if it is absent"):
        await backend.source(store).freeze(ROLLOUT)


class WithoutExclusiveNames(WatchedStore):
    """A store that would replace what a name has."""

    @property
    def exclusive(self) -> bool:
        return False


async def test_a_drop_that_died_behind_its_fence_can_be_done_again(backend: Backend) -> None:
    sink, store = backend.sink(), backend.store()
    await sink.put(call_entry("c0", [1], [2]))
    source = backend.source(store)
    snapshot = await source.freeze(ROLLOUT)

    def die(_: str) -> None:
        raise StorageError("the process ended here")

    store.before["publish"] = die
    with pytest.raises(CaptureError, match="ended here"):
        await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    again = backend.source()
    assert (await again.freeze(ROLLOUT)) == snapshot
    assert await again.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_a_marker_that_is_none_is_named(backend: Backend) -> None:
    open_store(backend.url).publish(f"frozen/{ROLLOUT}.json", b"{}")
    with pytest.raises(CaptureError, match=r"frozen/3-1.json is no marker"):
        await backend.source().freeze(ROLLOUT)


async def test_a_rollout_nobody_knows_is_empty_and_complete(backend: Backend) -> None:
    snapshot = await backend.source().freeze(ROLLOUT)
    assert (snapshot.entries, snapshot.incomplete, snapshot.version) == ((), False, 1)
    with pytest.raises(RolloutIdError):
        await backend.source().freeze("")


async def test_looks_of_one_moment_share_a_listing(backend: Backend) -> None:
    store = backend.store()
    sink, source = backend.sink(), backend.source(store)
    await asyncio.gather(*[sink.put(call_entry("c0", [1], [2], rollout_id=f"r{number}")) for number in range(16)])
    snapshots = await asyncio.gather(*[source.freeze(f"r{number}") for number in range(16)])
    assert all(len(snapshot.entries) == 1 for snapshot in snapshots)
    assert len([request for request in store.requests if request.method == "list"]) < 16


async def test_a_directory_that_cannot_be_read_is_an_error_and_no_empty_snapshot(tmp_path: Path) -> None:
    sink, source = ParquetTokenSink(tmp_path), ParquetTokenSource(tmp_path)
    await sink.put(call_entry("c0", [1], [2]))
    await sink.close()
    store = WatchedStore(open_store(tmp_path))

    def fail(_: str) -> None:
        raise StorageError("cannot list")

    store.before["list"] = fail
    broken = ParquetTokenSource(tmp_path, store=store)
    with pytest.raises(CaptureError, match="3-1: cannot list"):
        await broken.freeze(ROLLOUT)
    assert calls((await source.freeze(ROLLOUT)).entries) == ["c0"]
    await source.close()
    await broken.close()


async def test_nobody_but_the_owner_can_read_tokens(tmp_path: Path) -> None:
    root = tmp_path / "tokens"
    sink, source = ParquetTokenSink(root), ParquetTokenSource(root)
    await sink.put(call_entry("c0", [1], [2]))
    await source.freeze(ROLLOUT)
    await sink.close()
    await source.close()
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    assert root.stat().st_mode & 0o077 == 0
