"""Captures of an object store as readers see them: merged, cleared, of the living, the dead, and the returned."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from gym_ray.model_call_capture.lines import parse_lines
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.reading_clock import ReadingClock
from gym_ray.model_call_capture.registry import dead_name, own_place
from gym_ray.model_call_capture.segments.layout import cleared_name
from gym_ray.model_call_capture.segments.reading import SegmentCaptures
from gym_ray.model_call_capture.segments.reading_index import SegmentIndexes
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore
from gym_ray.testing.lagging_store import LaggingStore
from gym_ray.testing.s3_server import S3Server, s3_server
from gym_ray.testing.segment_writers import WriterWorld
from gym_ray.testing.watched_store import WatchedStore


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Place:
    """A place with writers and readers, and clocks that a test sets."""

    def __init__(self, store: SegmentStore, own: SegmentStore) -> None:
        self.world = WriterWorld(store, own)
        self.now = 1000.0
        self.clock = ReadingClock(lambda: self.now, lambda: self.now)

    def reader(self, store: SegmentStore | None = None, own: SegmentStore | None = None) -> SegmentCaptures:
        return SegmentCaptures(store or self.world.store, own or self.world.own, self.clock)

    async def asked(self, captures: SegmentCaptures, rollout_id: str = "0-0", **options: Any) -> WrittenCalls:
        async with self.world.client() as client:
            return (await captures.written_calls([rollout_id], client=client, timeout_s=0.0, **options))[rollout_id]

    async def cleared(self, captures: SegmentCaptures, rollout_id: str = "0-0") -> tuple[str, ...]:
        async with self.world.client() as client:
            untold = await captures.forget([rollout_id], client=client)
        captures.clear(rollout_id)
        return untold

    async def read(self, captures: SegmentCaptures, rollout_id: str = "0-0", **options: Any) -> tuple[list[str], bool]:
        """Return the calls that a join reads, in order, and whether something of the rollout is missing."""
        calls = await self.asked(captures, rollout_id, **options)
        snapshot = captures.snapshot(rollout_id, calls)
        assert snapshot.error is None
        exchanges, damaged = parse_lines(snapshot.data or b"")
        incomplete = snapshot.incomplete or not calls.complete or bool(damaged)
        return [exchange["model_call_id"] for _, exchange in exchanges], incomplete


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, s3: S3Server) -> Place:
    where, options = f"memory://captures-{secrets.token_hex(6)}", None
    if request.param == "s3":
        where, options = s3.new_url(), s3.options()
    return Place(open_store(where, storage_options=options), open_store(own_place(where), storage_options=options))


@pytest.fixture
def here() -> Place:
    """A place that needs no server."""
    where = f"memory://captures-{secrets.token_hex(6)}"
    return Place(open_store(where), open_store(own_place(where)))


def exchange(call: int, started_at: float = 0.0) -> dict[str, Any]:
    return {"model_call_id": f"{call:032x}", "started_at": started_at or float(call)}


def ids(*calls: int) -> list[str]:
    return [f"{call:032x}" for call in calls]


async def test_calls_of_living_writers_are_merged_in_the_order_they_began(place: Place) -> None:
    one, two = place.world.writer("one"), place.world.writer("two")
    one.record(("0-0", exchange(3)), ("1-0", exchange(9)), ("0-0", exchange(1)))
    two.record(("0-0", exchange(2)))
    captures = place.reader()
    assert await place.read(captures) == (ids(1, 2, 3), False)
    assert await place.read(captures, "1-0") == (ids(9), False)
    assert await place.read(captures, "2-0") == ([], False)
    assert sorted(captures.rollout_ids()) == ["0-0", "1-0"]
    captures.close()


async def test_a_record_that_was_published_twice_counts_once(place: Place) -> None:
    writer = place.world.writer("one")
    writer.record(("0-0", exchange(1)))
    writer.record(("0-0", exchange(1)), ("0-0", exchange(2)))
    assert await place.read(place.reader()) == (ids(1, 2), False)
    writer.sign_off()
    assert await place.read(place.reader()) == (ids(1, 2), False)


async def test_marks_stay_until_the_rollout_is_cleared(place: Place) -> None:
    writer = place.world.writer("one")
    writer.mark("0-0")
    captures = place.reader()
    assert await place.read(captures) == ([], True)
    assert captures.is_incomplete("0-0")
    assert list(captures.rollout_ids()) == ["0-0"]
    await place.cleared(place.reader())
    assert await place.read(captures) == ([], False)


async def test_what_a_writer_that_signed_off_wrote_is_found(place: Place) -> None:
    writer, captures = place.world.writer("one"), place.reader()
    assert await place.read(captures) == ([], False)
    writer.record(("0-0", exchange(1)))
    writer.sign_off()
    place.now += 1
    assert await place.read(captures) == (ids(1), False)


async def test_a_writer_that_came_and_went_unseen_is_found(place: Place) -> None:
    captures = place.reader()
    assert await place.read(captures) == ([], False)
    writer = place.world.writer("one")
    writer.record(("0-0", exchange(1)))
    writer.sign_off()
    place.now += 11
    assert await place.read(captures) == (ids(1), False)


async def test_a_silent_writer_is_a_gap_until_it_cannot_matter(place: Place) -> None:
    writer, captures = place.world.writer("one"), place.reader()
    writer.record(("0-0", exchange(1, 2000.0)))
    writer.answers = False
    assert await place.read(captures) == (ids(1), True)
    assert not place.world.own.exists(dead_name(writer.writer_id))
    place.now += 15
    declared_at = place.now
    assert await place.read(captures, begun_at=declared_at - 5) == (ids(1), True)
    assert place.world.own.exists(dead_name(writer.writer_id))
    assert await place.read(captures, begun_at=declared_at + 59) == (ids(1), True)
    assert await place.read(captures, begun_at=declared_at + 60) == (ids(1), False)
    assert await place.read(captures) == (ids(1), True)  # nobody says when it began
    asked = len(place.world.asked)
    place.now += 29
    await place.asked(captures)
    assert len(place.world.asked) == asked
    # Another process knows it from the store, and asks for itself.
    other = place.reader()
    assert await place.read(other, begun_at=declared_at + 60) == (ids(1), False)


async def test_a_zombie_that_answers_again_lives_again(place: Place) -> None:
    writer, captures = place.world.writer("one"), place.reader()
    writer.answers = False
    await place.asked(captures)
    place.now += 20
    await place.asked(captures)
    assert place.world.own.exists(dead_name(writer.writer_id))
    writer.answers = True
    writer.record(("0-0", exchange(1, 2000.0)))
    place.now += 31
    calls = await place.asked(captures, begun_at=place.now)
    assert calls.answered_writers == (writer.writer_id,)
    assert await place.read(captures) == (ids(1), False)
    assert not place.world.own.exists(dead_name(writer.writer_id))


async def test_an_open_call_is_a_gap(place: Place) -> None:
    writer = place.world.writer("one")
    writer.open["0-0"] = ids(7)
    assert (await place.asked(place.reader())).open_call_ids == tuple(ids(7))


async def test_clearing_drops_what_was_there_and_nothing_after_it(place: Place) -> None:
    gone, stays = place.world.writer("gone"), place.world.writer("stays")
    gone.record(("0-0", exchange(1)), ("1-0", exchange(8)))
    stays.record(("0-0", exchange(2)))
    gone.sign_off()
    captures = place.reader()
    assert await place.cleared(captures) == ()
    assert await place.read(captures) == ([], False)
    stays.record(("0-0", exchange(3)))
    new = place.world.writer("new", started_at=place.now + 1)
    new.record(("0-0", exchange(4)))
    for reader in (captures, place.reader()):
        assert await place.read(reader) == (ids(3, 4), False)
        assert await place.read(reader, "1-0") == (ids(8), False)


async def test_clearing_an_id_that_nobody_used_writes_nothing(place: Place) -> None:
    writer = place.world.writer("one")
    writer.record(("0-0", exchange(1)))
    store, own = WatchedStore(place.world.store), WatchedStore(place.world.own)
    captures = place.reader(store, own)
    for attempt in ("1-0", "1-0-a1", "2-0"):
        await place.cleared(captures, attempt)
    methods = {request.method for request in (*store.requests, *own.requests)}
    assert methods.isdisjoint({"publish", "create", "stream", "delete"})
    await place.cleared(captures, "0-0")
    await place.cleared(captures, "1-0")  # used before, by this very run
    assert [request.name for request in own.requests if request.method == "publish"] == [
        cleared_name("0-0"),
        cleared_name("1-0"),
    ]


async def test_what_a_silent_writer_writes_after_a_clear_is_left_out_and_said(place: Place) -> None:
    writer, captures = place.world.writer("one"), place.reader()
    writer.answers = False
    assert await place.cleared(captures) == (writer.writer_id,)
    writer.record(("0-0", exchange(1)))  # of the attempt before, perhaps
    writer.answers = True
    place.now += 31
    assert await place.read(captures) == ([], True)


async def test_a_writer_that_a_clear_did_not_see_is_doubtful_if_it_was_there_before(place: Place) -> None:
    place.world.writer("one").record(("0-0", exchange(1)))
    await place.cleared(place.reader())
    hidden = place.world.writer("hidden", started_at=place.now - 1)
    hidden.record(("0-0", exchange(2)))
    assert await place.read(place.reader()) == ([], True)


async def test_records_older_than_the_attempt_are_not_its_own(place: Place) -> None:
    writer = place.world.writer("one")
    writer.record(("0-0", exchange(1, 800.0)), ("0-0", exchange(2, 1000.0)))
    captures = place.reader()
    assert await place.read(captures, begun_at=1000.0) == (ids(2), True)
    assert await place.read(captures, begun_at=810.0) == (ids(1, 2), False)


async def test_what_was_withdrawn_may_still_come_and_is_dropped(place: Place) -> None:
    writer, captures = place.world.writer("one"), place.reader()
    writer.more = {"last_segment": 1, "withdrawn": ["0-0"]}
    await place.cleared(captures)
    writer.record(("0-0", exchange(1)))
    writer.record(("0-0", exchange(2)))
    assert await place.read(captures) == (ids(2), False)


async def test_late_listings_hide_no_acknowledged_call(here: Place) -> None:
    one = here.world.writer("one")
    one.record(("0-0", exchange(1)))
    one.record(("0-0", exchange(2)))
    two = here.world.writer("two")
    store = LaggingStore(here.world.store, 0)
    captures = here.reader(store)
    assert await here.read(captures) == (ids(1, 2), False)
    store.lag = 3
    one.record(("0-0", exchange(3)))
    two.record(("0-0", exchange(4)))
    assert await here.read(captures) == (ids(1, 2, 3, 4), False)
    one.sign_off()
    two.sign_off()
    assert await here.read(captures) == (ids(1, 2, 3, 4), False)
    await here.cleared(captures)
    assert await here.read(captures) == ([], False)


async def test_a_registration_that_a_listing_leaves_out_later_is_still_asked(here: Place) -> None:
    own = LaggingStore(here.world.own, 0)
    writer, captures = here.world.writer("one"), here.reader(own=own)
    writer.record(("0-0", exchange(1)))
    assert await here.read(captures) == (ids(1), False)
    own.lag = 1
    writer.record(("0-0", exchange(2)))
    assert await here.read(captures) == (ids(1, 2), False)


async def test_one_rollout_is_read_without_the_records_of_others(here: Place) -> None:
    dead, living = here.world.writer("dead"), here.world.writer("living")
    big = {**exchange(1), "request_raw": "x" * 100_000}
    for number in range(4):
        dead.record((f"{number}-9", {**big, "model_call_id": f"{90 + number:032x}"}), ("0-0", exchange(10 + number)))
    living.record(("7-7", {**big, "model_call_id": f"{77:032x}"}), ("0-0", exchange(20)))
    dead.sign_off()
    store = WatchedStore(here.world.store)
    captures = here.reader(store)
    assert await here.read(captures) == (ids(10, 11, 12, 13, 20), False)
    ranges = [request for request in store.requests if request.method == "read_range"]
    assert len(ranges) == 5
    store.requests.clear()
    assert await here.read(captures) == (ids(10, 11, 12, 13, 20), False)
    assert {request.method for request in store.requests} == {"read_range", "exists"}  # the rest is known


async def test_damage_costs_one_record_and_is_said(here: Place) -> None:
    writer, captures = here.world.writer("one"), here.reader()
    name = writer.record(("0-0", exchange(1)), ("0-0", exchange(2)))
    writer.sign_off()
    data = here.world.store.read(name)
    here.world.store.publish(name, b"#" + data[1:])
    assert await here.read(captures) == (ids(2), True)
    here.world.store.publish(name, data[:-1])
    assert await here.read(here.reader()) == ([], True)


async def test_a_named_segment_that_is_gone_is_no_error_and_its_call_is_missed(here: Place) -> None:
    writer, captures = here.world.writer("one"), here.reader()
    name = writer.record(("0-0", exchange(1)))
    here.world.store.delete(name)
    calls = await here.asked(captures)
    snapshot = captures.snapshot("0-0", calls)
    assert (snapshot.data, snapshot.error) == (None, None)
    assert [call.call_id for call in calls.recorded] == ids(1)  # so that the join misses it


async def test_few_indexes_are_held_and_the_others_are_read_again(here: Place) -> None:
    writers = [here.world.writer(f"w{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        writer.record(*((f"{number}-{call}", exchange(10 * number + call + 1)) for call in range(4)))
    store = WatchedStore(here.world.store)
    indexes = SegmentIndexes(store, most_records=5)
    for _ in range(2):
        for number, writer in enumerate(writers):
            records, damaged = indexes.records(writer.writer_id, f"{number}-1", may_write=False)
            assert [found.record.call_id for found in records] == ids(10 * number + 2)
            assert damaged == []
    assert sum(request.method == "read_tail" for request in store.requests) == 6
