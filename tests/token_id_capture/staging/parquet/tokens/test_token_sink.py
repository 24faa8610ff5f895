"""What a sink promises when ``put`` returns, when it raises, and when a freeze or a drop happens in between."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gym_ray.errors import (
    CaptureError,
    RecordConflictError,
    RefusedRecordError,
    RolloutFrozenError,
    RolloutRetiredError,
    StorageError,
)
from gym_ray.storage.opening import open_store
from gym_ray.testing.token_source import call_entry
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink, ParquetTokenSource

ROLLOUT = "3-1"
ENTRY = call_entry("c0", [1, 2], [3])
OTHER = call_entry("c0", [1, 2], [4])


def new_url() -> str:
    return f"memory://{secrets.token_hex(6)}"


@dataclass
class Clients:
    """Clients of one store, each behind a watched store of its own."""

    url: str
    opened: list[ParquetTokenSink | ParquetTokenSource]

    def elsewhere(self) -> Clients:
        """Return clients of an empty store, closed with these."""
        return Clients(new_url(), self.opened)

    def watched(self) -> WatchedStore:
        return WatchedStore(open_store(self.url))

    def sink(self, store: WatchedStore | None = None, **options: Any) -> ParquetTokenSink:
        sink = ParquetTokenSink(self.url, store=store or self.watched(), **options)
        self.opened.append(sink)
        return sink

    def source(self, store: WatchedStore | None = None, **options: Any) -> ParquetTokenSource:
        source = ParquetTokenSource(self.url, store=store or self.watched(), **options)
        self.opened.append(source)
        return source


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    opened = Clients(new_url(), [])
    yield opened
    for client in opened.opened:
        await client.close()


async def told(call: Awaitable[None]) -> Exception | None:
    try:
        await call
    except CaptureError as error:
        return error
    return None


class Intruder:
    """Does something once, right before the request of a client that has a number."""

    def __init__(self, number: int, act: Callable[[], Awaitable[Any]]) -> None:
        self._number, self._act = number, act
        self._lock = threading.Lock()
        self.asked = 0
        self.acted = False
        self.outcome: Any = None

    def __call__(self, _: str) -> None:
        with self._lock:
            is_time = self.asked == self._number
            self.asked += 1
        if is_time:
            self.acted = True
            self.outcome = asyncio.run(self._act())  # type: ignore[arg-type]

    def watch(self, store: WatchedStore) -> None:
        for method in ("list", "read", "exists", "create", "publish", "delete", "read_tail", "read_range", "stream"):
            store.before[method] = self


async def test_put_returns_only_when_the_segment_is_published(clients: Clients) -> None:
    store, released = clients.watched(), threading.Event()
    store.before["stream"] = lambda _: released.wait(20)
    put = asyncio.create_task(clients.sink(store).put(ENTRY))
    reader = clients.watched()
    await asyncio.wait({put}, timeout=0.2)
    assert not put.done()
    assert [name for name in reader.list() if name.endswith(".parquet")] == []
    released.set()
    await put
    assert len([name for name in reader.list() if name.endswith(".tokens.parquet")]) == 1


async def test_calls_of_one_moment_share_segments(clients: Clients) -> None:
    sink = clients.sink()
    calls = [f"c{number}" for number in range(96)]
    await asyncio.gather(*[sink.begin_call(ROLLOUT, call_id) for call_id in calls])
    await asyncio.gather(*[sink.put(call_entry(call_id, [1], [2])) for call_id in calls])
    records, events = sink.stats()
    assert (records.items, events.items) == (96, 96)
    assert records.mean_batch >= 4
    assert events.mean_batch >= 4
    snapshot = await clients.source().freeze(ROLLOUT)
    assert sorted(entry.model_call_id for entry in snapshot.entries) == sorted(calls)
    assert not snapshot.incomplete


async def test_a_put_beside_a_freeze_is_in_the_snapshot_or_raises(clients: Clients) -> None:
    for number in range(100):
        here = clients.elsewhere()
        store, sink = here.watched(), here.sink()
        await sink.put(call_entry("c0", [1], [2], rollout_id=ROLLOUT))
        late = call_entry("late", [5], [6], rollout_id=ROLLOUT)
        intruder = Intruder(number, lambda sink=sink, late=late: told(sink.put(late)))
        source = here.source(store)
        intruder.watch(store)
        snapshot = await source.freeze(ROLLOUT)
        store.before.clear()
        if not intruder.acted:
            break
        holds = [entry.model_call_id for entry in snapshot.entries]
        assert "c0" in holds
        if intruder.outcome is None:
            assert "late" in holds, number
        else:
            assert isinstance(intruder.outcome, RolloutFrozenError)
        if "late" not in holds:
            assert not await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert number > 5


async def test_a_freeze_beside_a_put_holds_it_or_the_put_raises(clients: Clients) -> None:
    outcomes = set()
    for number in range(100):
        here = clients.elsewhere()
        store = here.watched()
        sink, snapshots = here.sink(store), []

        async def freeze(here: Clients = here, snapshots: list[Any] = snapshots) -> None:
            snapshots.append(await here.source().freeze(ROLLOUT))

        intruder = Intruder(number, freeze)
        intruder.watch(store)
        outcome = await told(sink.put(ENTRY))
        store.before.clear()
        if not intruder.acted:
            break
        assert outcome is None or isinstance(outcome, RolloutFrozenError)
        outcomes.add((len(snapshots[0].entries), type(outcome)))
    assert outcomes == {(0, RolloutFrozenError), (1, RolloutFrozenError)}


async def test_a_mark_beside_a_drop_keeps_the_evidence_or_raises(clients: Clients) -> None:
    outcomes = set()
    for number in range(100):
        here = clients.elsewhere()
        store, sink = here.watched(), here.sink()
        await sink.put(call_entry("c0", [1], [2], rollout_id=ROLLOUT))
        source = here.source(store)
        snapshot = await source.freeze(ROLLOUT)
        intruder = Intruder(number, lambda sink=sink: told(sink.mark_incomplete(ROLLOUT)))
        intruder.watch(store)
        dropped = await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        store.before.clear()
        if not intruder.acted:
            break
        if intruder.outcome is None:
            assert not dropped, number
        if not dropped:
            assert (await source.freeze(ROLLOUT)).incomplete
        outcomes.add((dropped, type(intruder.outcome)))
    assert outcomes >= {(False, type(None)), (True, RolloutRetiredError)}
    assert number > 5


async def test_a_begun_call_beside_a_freeze_is_in_the_snapshot_or_refused_without_a_trace(clients: Clients) -> None:
    outcomes = set()
    for number in range(100):
        here = clients.elsewhere()
        store, sink = here.watched(), here.sink()
        source = here.source(store)
        intruder = Intruder(number, lambda sink=sink: told(sink.begin_call(ROLLOUT, "c0")))
        intruder.watch(store)
        snapshot = await source.freeze(ROLLOUT)
        store.before.clear()
        if not intruder.acted:
            break
        again = await source.freeze(ROLLOUT)
        if intruder.outcome is None:
            assert snapshot.problems == (CaptureProblem("call_without_record", "c0"),)
            assert again.incomplete
        else:
            assert isinstance(intruder.outcome, RolloutFrozenError)
            assert not again.incomplete
        outcomes.add(type(intruder.outcome))
    assert outcomes == {type(None), RolloutFrozenError}


async def test_a_call_that_met_the_freeze_while_it_was_begun_is_taken_back(clients: Clients) -> None:
    store = clients.watched()
    sink, source = clients.sink(store), clients.source()

    def freeze(name: str) -> None:
        if name.endswith(".events.parquet"):
            store.before.clear()
            asyncio.run(source.freeze(ROLLOUT))

    store.before["stream"] = freeze
    with pytest.raises(RolloutFrozenError, match="3-1"):
        await sink.begin_call(ROLLOUT, "c0")
    assert not (await source.freeze(ROLLOUT)).incomplete


async def test_the_same_record_again_changes_nothing_also_behind_a_freeze(clients: Clients) -> None:
    sink, source = clients.sink(), clients.source()
    await sink.put(ENTRY)
    snapshot = await source.freeze(ROLLOUT)
    again = ENTRY.model_copy(update={"created_at": 99.0})
    await sink.put(ENTRY)
    await sink.put(again)
    await clients.sink().put(again)
    after = await source.freeze(ROLLOUT)
    assert (after.snapshot_id, after.version, len(after.entries)) == (snapshot.snapshot_id, snapshot.version, 1)
    assert not after.incomplete


async def test_a_late_record_is_refused_each_time(clients: Clients) -> None:
    sink, source = clients.sink(), clients.source()
    await source.freeze(ROLLOUT)
    for _ in range(2):
        with pytest.raises(RolloutFrozenError, match="3-1"):
            await sink.put(ENTRY)


async def test_another_record_of_a_call_is_refused_and_marked(clients: Clients) -> None:
    sink = clients.sink()
    await sink.put(ENTRY)
    with pytest.raises(RecordConflictError, match="'c0'"):
        await sink.put(OTHER)
    snapshot = await clients.source().freeze(ROLLOUT)
    assert [entry.generation_token_ids for entry in snapshot.entries] == [[3]]
    assert [problem.reason for problem in snapshot.problems] == ["conflicting_record"]


async def test_records_of_two_sinks_that_differ_show_in_the_snapshot(clients: Clients) -> None:
    await clients.sink().put(ENTRY.model_copy(update={"created_at": 2.0}))
    await clients.sink().put(OTHER.model_copy(update={"created_at": 1.0}))
    await clients.sink().put(ENTRY.model_copy(update={"created_at": 3.0}))
    snapshot = await clients.source().freeze(ROLLOUT)
    assert [entry.generation_token_ids for entry in snapshot.entries] == [[4]]
    assert {problem.reason for problem in snapshot.problems} == {"conflicting_record"}
    assert snapshot.version == 3
    assert ".tokens.parquet, row group 0, row 0" in snapshot.problems[0].detail


async def test_a_retired_rollout_refuses_everything(clients: Clients) -> None:
    sink, source = clients.sink(), clients.source()
    await sink.put(ENTRY)
    snapshot = await source.freeze(ROLLOUT)
    assert await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert not await source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version + 1)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: sink.put(ENTRY),
        lambda: sink.put(OTHER),
        lambda: sink.put(call_entry("c1", [1], [2])),
        lambda: sink.begin_call(ROLLOUT, "c2"),
        lambda: sink.mark_incomplete(ROLLOUT),
        lambda: sink.end_call(ROLLOUT, "c0", "withdrawn"),
        lambda: sink.end_call(ROLLOUT, "c0", "untrainable"),
        lambda: source.freeze(ROLLOUT),
        lambda: clients.source().freeze(ROLLOUT),
    ]
    for call in calls:
        with pytest.raises(RolloutRetiredError, match="3-1"):
            await call()
    assert await sink.has_evidence(ROLLOUT)


async def test_events_come_to_what_they_say(clients: Clients) -> None:
    sink = clients.sink()
    for call_id in ("recorded", "dangling", "withdrawn", "bad"):
        await sink.begin_call(ROLLOUT, call_id)
    await sink.put(call_entry("recorded", [1], [2]))
    await clients.sink().end_call(ROLLOUT, "withdrawn", "withdrawn")
    await sink.end_call(ROLLOUT, "bad", "untrainable", "usage_mismatch: 3 of 4 tokens")
    await sink.end_call(ROLLOUT, "other", "untrainable")
    await sink.mark_incomplete(ROLLOUT)
    snapshot = await clients.source().freeze(ROLLOUT)
    assert set(snapshot.problems) == {
        CaptureProblem("usage_mismatch", "bad", "3 of 4 tokens"),
        CaptureProblem("untrainable", "other", ""),
        CaptureProblem("marked_incomplete", "", ""),
        CaptureProblem("call_without_record", "dangling", ""),
    }
    with pytest.raises(RolloutFrozenError):
        await sink.end_call(ROLLOUT, "dangling", "withdrawn")
    with pytest.raises(ValueError, match="'gone' is no outcome"):
        await sink.end_call(ROLLOUT, "dangling", "gone")  # type: ignore[arg-type]
    with pytest.raises(RefusedRecordError, match="needs an id"):
        await sink.begin_call(ROLLOUT, "")


async def test_every_mark_moves_the_version(clients: Clients) -> None:
    sink, source = clients.sink(), clients.source()
    versions = []
    for _ in range(3):
        versions.append((await source.freeze(ROLLOUT)).version)
        await sink.mark_incomplete(ROLLOUT, "c0")
    assert versions == [1, 2, 3]
    assert len((await source.freeze(ROLLOUT)).problems) == 1


async def test_what_could_not_be_written_raises_and_can_be_put_again(clients: Clients) -> None:
    store = clients.watched()
    sink = clients.sink(store)

    def fail(_: str) -> None:
        raise StorageError("no space left")

    store.before["stream"] = fail
    with pytest.raises(CaptureError, match="no space left"):
        await sink.put(ENTRY)
    with pytest.raises(CaptureError, match="no space left"):
        await sink.begin_call(ROLLOUT, "c0")
    assert not await sink.has_evidence(ROLLOUT)
    store.before.clear()
    await sink.put(ENTRY)
    assert not (await clients.source().freeze(ROLLOUT)).incomplete


async def test_a_store_that_hangs_is_given_up(clients: Clients) -> None:
    store, released = clients.watched(), threading.Event()
    sink = clients.sink(store, timeout_s=0.1)
    store.before["stream"] = lambda _: released.wait(20)
    try:
        with pytest.raises(CaptureError, match="not durable"):
            await sink.put(ENTRY)
    finally:
        released.set()


async def test_a_closed_sink_says_so(clients: Clients) -> None:
    sink = clients.sink()
    await sink.put(ENTRY)
    await sink.close()
    await sink.close()
    with pytest.raises(CaptureError, match="closed"):
        await sink.put(ENTRY)


async def test_calls_that_are_forgotten_are_as_those_of_another_sink(clients: Clients) -> None:
    sink = clients.sink(max_remembered=1)
    await sink.put(ENTRY)
    await sink.put(call_entry("c1", [1], [2]))
    await sink.put(ENTRY)
    snapshot = await clients.source().freeze(ROLLOUT)
    assert sorted(entry.model_call_id for entry in snapshot.entries) == ["c0", "c1"]
    assert not snapshot.incomplete
