"""A capture writer over an object store, judged by what is in the store and by what waiters were told."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gym_ray.errors import CaptureError, StorageError, StorageExistsError
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.lines import parse_lines
from gym_ray.model_call_capture.local_adoption import local_logs
from gym_ray.model_call_capture.open_log import OpenLog, list_logs
from gym_ray.model_call_capture.quiesce import QUIESCE_PATH, quiesce_endpoint
from gym_ray.model_call_capture.registry import own_place, parse_writer
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.segments.layout import decode_segment, mark_name, segment_name, segments_of
from gym_ray.model_call_capture.segments.reading import SegmentCaptures
from gym_ray.model_call_capture.segments.reading_cleared import Cleared, write_cleared
from gym_ray.model_call_capture.segments.writing import publish_once
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.opening import open_store
from gym_ray.testing.begun_calls import begun_call, leave_as_killed
from gym_ray.testing.lagging_store import LaggingStore
from gym_ray.testing.s3_server import s3_server
from gym_ray.testing.waiting import until
from gym_ray.testing.watched_store import WatchedStore


class Place:
    """An object store, in memory unless told otherwise, and the writers to it of one machine."""

    def __init__(self, local_dir: Path, where: str | None = None, options: dict[str, Any] | None = None) -> None:
        where = where or f"memory://{secrets.token_hex(8)}/captures"
        self.store = WatchedStore(open_store(where, storage_options=options))
        self.own = WatchedStore(open_store(own_place(where), storage_options=options))
        self.local_dir = local_dir

    def start(self, name: str = "policy", store: WatchedStore | None = None, **options: Any) -> CaptureWriter:
        backend = SegmentBackend(store or self.store, self.own, local_dir=self.local_dir)
        writer = CaptureWriter(backend, server_name=name, url=f"http://{name}:1", run_token="token", **options)
        writer.start()
        return writer

    def recorded(self) -> dict[str, str]:
        """Return call id to rollout id, of all records there are."""
        found = {}
        for name in self.store.list("segments/"):
            index, lines = decode_segment(self.store.read(name), name=name)
            assert None not in lines
            found.update({record.call_id: record.rollout_id for record in index.records})
        return found

    def marked(self, rollout_id: str = "0-0") -> bool:
        return self.store.exists(mark_name(rollout_id))

    def puts(self) -> list[str]:
        return [r.name for r in (*self.store.requests, *self.own.requests) if r.method in ("create", "publish")]

    @property
    def logs(self) -> list[Path]:
        return list_logs(local_logs(self.local_dir, self.store.place))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=["memory", "s3"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Place(tmp_path)
        return
    with s3_server() as server:
        yield Place(tmp_path, server.new_url(), server.options())


async def as_if_not_ended(log: OpenLog, before: bytes, *exchanges: Exchange) -> None:
    """Leave the log as it was before the ends of calls were noted, as a kill right after their records would."""
    ids = {exchange.call_id for exchange in exchanges}
    await until(lambda: not ids & set(log._open))
    with log._lock:
        log._calls.write_at(log._fd, before, 0)


def refuse_creates(place: Place, error: Exception | None = None) -> None:
    def refuse(name: str) -> None:
        raise error or StorageError(f"{name}: the store is down")

    place.store.before["create"] = refuse


async def test_a_record_is_in_a_segment_when_its_answer_leaves(place: Place) -> None:
    writer = place.start()
    exchange = begun_call(writer)
    await writer.commit(exchange)
    assert place.recorded() == {exchange.call_id: "0-0"}
    answer = await writer.quiesce(["0-0", "0-1"], 0)
    entry = answer["rollouts"]["0-0"]
    name = segment_name(writer.writer_id, 1)
    ((call_id, file, offset, length),) = entry["recorded"]
    assert (call_id, file, entry["open"], entry["incomplete"]) == (exchange.call_id, name, [], False)
    assert place.store.read_range(file, offset, length).endswith(b"}\n")
    assert exchange.call_id.encode() in place.store.read_range(file, offset, length)
    assert answer["last_segment"] == 1
    assert answer["rollouts"]["0-1"]["recorded"] == []
    await asyncio.to_thread(writer.close)


async def test_a_writer_is_registered_without_a_log_while_it_lives(place: Place) -> None:
    writer = place.start()
    (name,) = place.own.list("writers/")
    entry = parse_writer(place.own.read(name))
    assert (entry.writer_id, entry.open_log, entry.url) == (writer.writer_id, None, "http://policy:1")
    assert entry.started_at > 0
    assert len(place.logs) == 1
    await asyncio.to_thread(writer.close)
    assert place.own.list("writers/") == []
    assert place.logs == []


async def test_many_calls_share_few_puts(place: Place) -> None:
    writer = place.start()
    answered = 0

    async def client(number: int) -> None:
        nonlocal answered
        for _ in range(8):
            await writer.commit(begun_call(writer, f"{number}-0"))
            answered += 1

    gate = threading.Semaphore(0)
    place.store.before["create"] = lambda _: gate.acquire(timeout=30)
    clients = asyncio.gather(*(client(number) for number in range(64)))
    before = len(place.puts())
    while answered < 512:  # the store ends one put only when nothing else can happen
        waiting = len(writer._running.backend.commits._waiting)  # type: ignore[union-attr, attr-defined]
        await asyncio.sleep(0.002)
        if waiting == len(writer._running.backend.commits._waiting):  # type: ignore[union-attr, attr-defined]
            gate.release()
    await clients
    await asyncio.to_thread(writer.close)
    assert len(place.recorded()) == 512
    assert len(place.puts()) - before <= 512 / 8


async def test_close_publishes_what_waits(place: Place) -> None:
    writer = place.start()
    futures = [writer.submit(begun_call(writer, f"{number}-0")) for number in range(20)]
    await asyncio.to_thread(writer.close)
    await asyncio.gather(*futures)
    assert len(place.recorded()) == 20


async def test_a_failing_store_marks_and_the_mark_is_kept_until_it_can_be_written(place: Place) -> None:
    writer = place.start()
    refuse_creates(place)
    place.store.before["publish"] = place.store.before["create"]
    exchange = begun_call(writer)
    await writer.commit(exchange)
    answer = await writer.quiesce(["0-0"], 0)
    assert answer["rollouts"]["0-0"] == {"open": [], "recorded": [], "incomplete": True}
    assert not place.marked()
    place.store.before.clear()
    await until(place.marked)
    assert writer.counts.failed == 1
    await asyncio.to_thread(writer.close)
    assert place.logs == []


async def test_a_writer_that_could_not_mark_stays_registered_for_its_successor(place: Place) -> None:
    writer = place.start()
    refuse_creates(place)
    place.store.before["publish"] = place.store.before["create"]
    await writer.commit(begun_call(writer))
    await asyncio.to_thread(writer.close, 2.0)
    assert len(place.own.list("writers/")) == len(place.logs) == 1
    place.store.before.clear()
    successor = place.start()
    assert place.marked()
    assert place.own.list("writers/") == [f"writers/{successor.writer_id}.json"]
    await asyncio.to_thread(successor.close)


async def test_a_failure_that_passes_loses_nothing(place: Place) -> None:
    writer = place.start()
    failures = iter([StorageError("once")])

    def fail_once(_: str) -> None:
        for error in failures:
            raise error

    place.store.before["create"] = fail_once
    exchange = begun_call(writer)
    await writer.commit(exchange)
    assert set(place.recorded()) == {exchange.call_id}
    assert not place.marked()
    await asyncio.to_thread(writer.close)


async def test_a_lost_reply_is_success(place: Place) -> None:
    writer = place.start()
    replies = iter([StorageError("the answer was lost")])

    def lose_once(_: str) -> None:
        for error in replies:
            raise error

    place.store.after["create"] = lose_once
    exchange = begun_call(writer)
    await writer.commit(exchange)
    answer = await writer.quiesce(["0-0"], 0)
    assert len(answer["rollouts"]["0-0"]["recorded"]) == 1
    assert not answer["rollouts"]["0-0"]["incomplete"]
    assert set(place.recorded()) == {exchange.call_id}
    await asyncio.to_thread(writer.close)


def test_a_strangers_bytes_under_our_name_are_no_success(place: Place) -> None:
    place.store.create("segments/w/00000001.jsonl", b"theirs")
    with pytest.raises(StorageExistsError):
        publish_once(place.store, "segments/w/00000001.jsonl", b"ours")
    publish_once(place.store, "segments/w/00000001.jsonl", b"theirs")


def test_a_store_without_exclusive_names_is_written_to_all_the_same(place: Place) -> None:
    class Plain(WatchedStore):
        exclusive = False  # type: ignore[assignment]

        def create(self, name: str, data: bytes) -> None:
            raise AssertionError(name, data)

    publish_once(Plain(place.store), "segments/w/00000001.jsonl", b"ours")
    assert place.store.read("segments/w/00000001.jsonl") == b"ours"


async def test_a_store_that_hangs_releases_the_answer_and_marks(place: Place) -> None:
    writer = place.start(capture_timeout_s=0.05)
    gate = threading.Event()
    place.store.before["create"] = lambda _: gate.wait(30)
    exchange = begun_call(writer)
    await writer.commit(exchange)
    assert writer.counts.timed_out == 1
    assert place.recorded() == {}
    await until(place.marked)
    gate.set()
    await asyncio.to_thread(writer.close)
    assert set(place.recorded()) == {exchange.call_id}


async def test_what_is_withdrawn_is_in_no_segment_after_the_last_that_is_told(place: Place) -> None:
    writer = place.start()
    entered, gate = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        entered.set()
        gate.wait(30)

    place.store.before["create"] = hold
    sent, waits, other = begun_call(writer), begun_call(writer), begun_call(writer, "1-0")
    futures = [writer.submit(sent)]
    await asyncio.to_thread(entered.wait, 30)
    futures += [writer.submit(waits), writer.submit(other)]
    answer = await writer.quiesce([], 0, ["0-0"])
    assert (answer["last_segment"], answer["withdrawn"]) == (1, ["0-0"])
    gate.set()
    await asyncio.gather(*futures)
    late = begun_call(writer)
    await writer.commit(late)
    await asyncio.to_thread(writer.close)
    by_segment = {}
    for name in place.store.list(segments_of(writer.writer_id)):
        index, _ = decode_segment(place.store.read(name), name=name)
        by_segment[index.seq] = {record.call_id for record in index.records}
    assert by_segment[1] == {sent.call_id}  # it was on its way; whoever clears drops it by its number
    assert {other.call_id, late.call_id} == set().union(*(ids for seq, ids in by_segment.items() if seq > 1))
    assert writer.counts.withdrawn == 1


async def test_a_call_on_its_way_when_its_rollout_begins_anew_is_no_call_of_the_new_attempt(any_place: Place) -> None:
    place = any_place
    writer, captures = place.start(), SegmentCaptures(place.store, place.own)
    route = Route(QUIESCE_PATH, quiesce_endpoint(writer, "token"), methods=["POST"])
    client = httpx.AsyncClient(transport=httpx.ASGITransport(Starlette(routes=[route])))
    await asyncio.to_thread(captures.clear, "9-9")  # the reader knows now which rollouts have records
    entered, gate = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        entered.set()
        gate.wait(30)

    place.store.before["create"] = hold
    sent = writer.submit(begun_call(writer))
    await asyncio.to_thread(entered.wait, 30)
    assert await captures.forget(["0-0"], client=client) == ()
    await asyncio.to_thread(captures.clear, "0-0")
    gate.set()
    await sent
    new = begun_call(writer)
    await writer.commit(new)
    for reader in (captures, SegmentCaptures(place.store, place.own)):
        asked = (await reader.written_calls(["0-0"], client=client, timeout_s=0.0))["0-0"]
        for calls in (asked, None):
            found, unreadable = parse_lines(reader.snapshot("0-0", calls).data or b"")
            assert ([exchange["model_call_id"] for _, exchange in found], unreadable) == ([new.call_id], 0)
    await client.aclose()
    await asyncio.to_thread(writer.close)


async def test_the_next_server_marks_exactly_what_its_predecessor_lost(place: Place) -> None:
    writer = place.start()
    kept, lost = begun_call(writer, "0-0"), begun_call(writer, "1-0")
    log = writer._running.backend.open_log  # type: ignore[union-attr]
    before = log.path.read_bytes()
    await writer.commit(kept)
    await as_if_not_ended(log, before, kept)
    leave_as_killed(writer)
    stranger = place.start("other")
    assert not place.marked("1-0")
    await asyncio.to_thread(stranger.close)
    successor = place.start()
    assert place.marked("1-0")
    assert not place.marked("0-0")
    assert place.own.list("writers/") == [f"writers/{successor.writer_id}.json"]
    assert [path.stem for path in place.logs] == [successor.writer_id]
    assert lost.call_id not in place.recorded()
    await asyncio.to_thread(successor.close)


async def test_late_listings_lose_no_call_of_a_predecessor(place: Place) -> None:
    writer = place.start()
    log = writer._running.backend.open_log  # type: ignore[union-attr]
    exchanges = [begun_call(writer, f"{number}-0") for number in range(4)]
    before = log.path.read_bytes()
    for exchange in exchanges:
        await writer.commit(exchange)
    await as_if_not_ended(log, before, *exchanges)
    leave_as_killed(writer)
    lagging = LaggingStore(place.store, lag=100)
    assert lagging.list("segments/") == []
    successor = place.start(store=lagging)
    assert not any(place.marked(f"{number}-0") for number in range(4))
    await asyncio.to_thread(successor.close)


async def test_a_damaged_segment_of_a_predecessor_counts_as_lost(place: Place) -> None:
    writer = place.start()
    log = writer._running.backend.open_log  # type: ignore[union-attr]
    exchange = begun_call(writer)
    before = log.path.read_bytes()
    await writer.commit(exchange)
    await as_if_not_ended(log, before, exchange)
    leave_as_killed(writer)
    name = segment_name(writer.writer_id, 1)
    place.store.publish(name, place.store.read(name)[:-1])
    successor = place.start()
    assert place.marked()
    await asyncio.to_thread(successor.close)


async def test_what_a_predecessor_owed_to_an_attempt_that_is_over_marks_nothing(place: Place) -> None:
    writer = place.start()
    for rollout_id in ("0-0", "1-0", "2-0"):
        begun_call(writer, rollout_id)
    leave_as_killed(writer)
    write_cleared(place.own, "0-0", Cleared({writer.writer_id: None}, 1.0))
    write_cleared(place.own, "1-0", Cleared({writer.writer_id: 7}, 1.0))  # it may have begun after that
    successor = place.start()
    assert [place.marked(rollout_id) for rollout_id in ("0-0", "1-0", "2-0")] == [False, True, True]
    await asyncio.to_thread(successor.close)


async def test_a_living_server_of_the_same_name_is_left_alone(place: Place) -> None:
    first = place.start()
    exchange = begun_call(first)
    second = place.start()
    assert not place.marked()
    assert len(place.own.list("writers/")) == 2
    await first.commit(exchange)
    for writer in (first, second):
        await asyncio.to_thread(writer.close)


def test_a_store_that_cannot_be_written_is_refused_at_the_start(place: Place) -> None:
    def refuse(name: str) -> None:
        raise StorageError(f"{name}: no")

    place.own.before["publish"] = refuse
    with pytest.raises(CaptureError, match=r"memory://.*/captures: the writer cannot be registered"):
        place.start()
    assert place.logs == []


async def test_a_name_that_begins_with_a_dot_is_no_hidden_name(place: Place) -> None:
    writer = place.start(".policy")
    await writer.commit(begun_call(writer))
    assert len(place.recorded()) == 1
    await asyncio.to_thread(writer.close)


async def test_records_of_any_size_are_kept(place: Place) -> None:
    writer = place.start()
    exchanges = [begun_call(writer, f"{number}-0") for number in range(3)]
    for exchange in exchanges:
        exchange.request = [b'{"text":"' + b"x" * 5_000_000 + b'"}']
    futures = [writer.submit(exchange) for exchange in exchanges]
    await asyncio.gather(*futures)
    await asyncio.to_thread(writer.close)
    assert set(place.recorded()) == {exchange.call_id for exchange in exchanges}
    for name in place.store.list("segments/"):
        assert place.store.size(name) < 9 * 1024**2
