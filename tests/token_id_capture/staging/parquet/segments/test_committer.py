from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from gym_ray.errors import StorageError, StorageTimeoutError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.staging.parquet.segments.committer import (
    RowPlace,
    SegmentCommitter,
    SegmentStream,
    Ticket,
)

WAIT_S = 20.0


@dataclass(eq=False)
class Item:
    text: str
    nbytes: int = 10


def write_lines(stream: SegmentStream, items: list[Item]) -> list[RowPlace]:
    stream.encoding_begins()
    for item in items:
        if item.text == "bad":
            raise ValueError("bad item")
        stream.value.write(item.text.encode() + b"\n")
    return [stream.place(0, row) for row in range(len(items))]


class Gate:
    """Holds the committer before it begins a segment."""

    def __init__(self, store: WatchedStore) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        store.before["stream"] = self

    def __call__(self, name: str) -> None:
        self.reached.set()
        assert self.open.wait(WAIT_S)


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return WatchedStore(PosixStore(tmp_path))


@pytest.fixture
def make(store: WatchedStore) -> Iterator[Callable[..., SegmentCommitter[Item]]]:
    made: list[SegmentCommitter[Item]] = []

    def build(**options: object) -> SegmentCommitter[Item]:
        given = {"partition": "p", "kind": "calls", "write": write_lines, "timeout_s": WAIT_S, **options}
        made.append(SegmentCommitter(store, **given))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for committer in made:
        assert committer.close(WAIT_S)


Make = Callable[..., SegmentCommitter[Item]]


def lines(store: WatchedStore, place: RowPlace) -> list[str]:
    return store.read(place.segment).decode().splitlines()


def test_an_item_is_durable_where_its_place_says(store: WatchedStore, make: Make) -> None:
    committer = make()
    places = [committer.commit(Item(text)) for text in ("a", "b")]
    assert [place.seq for place in places] == [0, 1]
    assert [lines(store, place)[place.row] for place in places] == ["a", "b"]
    assert store.list() == sorted(place.segment for place in places)


def test_what_waits_is_one_segment(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    first = committer.submit(Item("first"))
    assert gate.reached.wait(WAIT_S)
    rest = [committer.submit(Item(str(number))) for number in range(100)]
    gate.open.set()
    assert first.wait(WAIT_S).seq == 0
    places = [ticket.wait(WAIT_S) for ticket in rest]
    assert {place.seq for place in places} == {1}
    assert lines(store, places[0]) == [str(number) for number in range(100)]
    stats = committer.stats()
    assert (stats.segments, stats.items, stats.mean_batch, stats.pending_bytes) == (2, 101, 50.5, 0)


def test_a_segment_takes_no_more_items_than_it_may(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make(max_calls=4)
    tickets = [committer.submit(Item(str(number))) for number in range(1)]
    assert gate.reached.wait(WAIT_S)
    tickets += [committer.submit(Item(str(number))) for number in range(9)]
    gate.open.set()
    assert [ticket.wait(WAIT_S).seq for ticket in tickets] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_a_segment_takes_no_more_bytes_than_it_should(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make(max_batch_bytes=20)
    tickets = [committer.submit(Item("first"))]
    assert gate.reached.wait(WAIT_S)
    tickets += [committer.submit(Item("x", size)) for size in (10, 10, 1, 30, 5, 16)]
    gate.open.set()
    assert [ticket.wait(WAIT_S).seq for ticket in tickets] == [0, 1, 1, 2, 3, 4, 5]


def test_a_failed_commit_fails_its_own_callers_and_leaves_no_file(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    before = committer.submit(Item("before"))
    assert gate.reached.wait(WAIT_S)
    own = [committer.submit(Item(text)) for text in ("x", "bad", "y")]
    gate.open.set()
    assert before.wait(WAIT_S).seq == 0
    for ticket in own:
        with pytest.raises(StorageError, match=r"00000001\.calls\.parquet: ValueError: bad item") as raised:
            ticket.wait(WAIT_S)
        assert not isinstance(raised.value, StorageTimeoutError)
    after = committer.commit(Item("after"))
    assert after.seq == 2
    assert store.list() == [f"p/{committer.writer}/00000000.calls.parquet", after.segment]
    folder = Path(store.place) / "p" / committer.writer
    assert sorted(os.listdir(folder)) == ["00000000.calls.parquet", "00000002.calls.parquet"]
    stats = committer.stats()
    assert (stats.segments, stats.items, stats.failed_segments, stats.failed_items) == (2, 2, 1, 3)


def test_places_that_do_not_fit_the_items_are_a_failed_commit(store: WatchedStore, make: Make) -> None:
    committer = make(write=lambda stream, items: [])
    with pytest.raises(StorageError, match="0 places were given for 1 items"):
        committer.commit(Item("x"))
    assert store.list() == []


def test_a_late_success_is_an_orphan(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    ticket = committer.submit(Item("late"))
    assert gate.reached.wait(WAIT_S)
    with pytest.raises(StorageTimeoutError, match=r"not durable at .* within 0.01 s"):
        ticket.wait(0.01)
    assert ticket.being_written
    gate.open.set()
    assert committer.commit(Item("next")).seq == 1
    assert committer.stats().orphans == 1
    assert lines(store, ticket.wait(0)) == ["late"]


def test_what_nobody_has_begun_to_write_is_withdrawn(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    first = committer.submit(Item("first"))
    assert gate.reached.wait(WAIT_S)
    withdrawn, kept = committer.submit(Item("withdrawn")), committer.submit(Item("kept"))
    with pytest.raises(StorageTimeoutError):
        withdrawn.wait(0)
    assert not withdrawn.being_written
    gate.open.set()
    first.wait(WAIT_S)
    assert lines(store, kept.wait(WAIT_S)) == ["kept"]
    with pytest.raises(StorageTimeoutError, match="withdrawn"):
        withdrawn.wait(WAIT_S)
    stats = committer.stats()
    assert (stats.items, stats.orphans, stats.pending_bytes) == (2, 0, 0)


def test_a_batch_of_which_everything_was_withdrawn_writes_nothing(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    first = committer.submit(Item("first"))
    assert gate.reached.wait(WAIT_S)
    withdrawn = committer.submit(Item("withdrawn"))
    with pytest.raises(StorageTimeoutError):
        withdrawn.wait(0)
    gate.open.set()
    first.wait(WAIT_S)
    assert committer.close(WAIT_S)
    assert len(store.list()) == 1


def test_callers_wait_while_too_much_is_in_memory(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make(max_pending_bytes=100)
    tickets = [committer.submit(Item("huge", 1000))]
    assert gate.reached.wait(WAIT_S)
    with pytest.raises(StorageTimeoutError, match=r"1000 bytes still waited to be written after 0\.01 s"):
        committer.submit(Item("x"), 0.01)
    waiting = threading.Thread(target=lambda: tickets.append(committer.submit(Item("y"))))
    waiting.start()
    gate.open.set()
    waiting.join(WAIT_S)
    assert [ticket.wait(WAIT_S).seq for ticket in tickets] == [0, 1]


def test_a_withdrawn_item_makes_room(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make(max_pending_bytes=100)
    first = committer.submit(Item("first", 50))
    assert gate.reached.wait(WAIT_S)
    withdrawn = committer.submit(Item("withdrawn", 50))
    with pytest.raises(StorageTimeoutError):
        withdrawn.wait(0)
    fits = committer.submit(Item("fits", 50), 0)
    gate.open.set()
    assert [first.wait(WAIT_S).seq, fits.wait(WAIT_S).seq] == [0, 1]


def test_closing_writes_what_waits_and_refuses_the_rest(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    tickets = [committer.submit(Item("first"))]
    assert gate.reached.wait(WAIT_S)
    tickets.append(committer.submit(Item("waits")))
    assert not committer.close(0.01)
    gate.open.set()
    assert committer.close(WAIT_S)
    assert [ticket.wait(0).seq for ticket in tickets] == [0, 1]
    with pytest.raises(StorageError, match="closed"):
        committer.submit(Item("late"))


def test_closing_releases_those_who_wait_for_room(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make(max_pending_bytes=10)
    committer.submit(Item("first"))
    assert gate.reached.wait(WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(committer.submit, Item("x"), WAIT_S)
        assert not committer.close(0.01)
        with pytest.raises(StorageError, match="closed"):
            waiting.result(WAIT_S)
    gate.open.set()


def test_everybody_is_told_when_many_wait(make: Make) -> None:
    committer = make()
    with ThreadPoolExecutor(64) as pool:
        places = list(pool.map(lambda number: committer.commit(Item(str(number))), range(640)))
    assert len({(place.seq, place.row) for place in places}) == 640
    assert committer.stats().items == 640


class Held:
    """Writes lines; holds the committer in the middle of a segment that begins with a certain item."""

    def __init__(self, *texts: str) -> None:
        self.reached = {text: threading.Event() for text in texts}
        self.open = {text: threading.Event() for text in texts}

    def __call__(self, stream: SegmentStream, items: list[Item]) -> list[RowPlace]:
        places = write_lines(stream, items)
        if items[0].text in self.open:
            self.reached[items[0].text].set()
            assert self.open[items[0].text].wait(WAIT_S)
        return places


def told_while_the_next_is_written(make: Make, held: Held, *withdrawn: int) -> list[Ticket[Item]]:
    """Return four tickets of one segment, of which the first is told; the segment after it is held."""
    committer = make(write=held)
    committer.submit(Item("first"))
    assert held.reached["first"].wait(WAIT_S)
    tickets = [committer.submit(Item(text)) for text in "abcd"]
    for number in withdrawn:
        with pytest.raises(StorageTimeoutError):
            tickets[number].wait(0)
    held.open["first"].set()
    assert held.reached["a"].wait(WAIT_S)
    committer.submit(Item("next"))
    held.open["a"].set()
    assert held.reached["next"].wait(WAIT_S)
    return tickets


def test_callers_wake_each_other_past_those_who_gave_up(make: Make) -> None:
    held = Held("first", "a", "next")
    tickets = told_while_the_next_is_written(make, held, 1, 2)
    batch = tickets[0].batch
    assert list(batch.untold) == tickets[1:]
    assert tickets[0].wait(WAIT_S).row == 0
    assert not batch.untold
    assert tickets[3].wait(WAIT_S).row == 1
    held.open["next"].set()


def test_a_caller_that_never_asks_keeps_nobody_waiting_beyond_the_next_segment(make: Make) -> None:
    held = Held("first", "a", "next")
    *_, last = told_while_the_next_is_written(make, held)
    with ThreadPoolExecutor(1) as pool:
        place = pool.submit(last.wait, 10 * WAIT_S)
        held.open["next"].set()
        assert place.result(WAIT_S).row == 3
    assert not last.batch.untold


def test_a_caller_whose_time_is_over_gets_the_outcome_that_is_known_and_wakes_the_next(make: Make) -> None:
    held = Held("first", "a", "next")
    tickets = told_while_the_next_is_written(make, held)
    assert tickets[3].wait(0).row == 3
    assert list(tickets[0].batch.untold) == tickets[2:]
    held.open["next"].set()


def test_no_thread_before_the_first_item_and_none_after_the_end(make: Make) -> None:
    def mine() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "test-commit"]

    committer = make(name="test-commit")
    assert mine() == []
    committer.commit(Item("x"))
    assert mine() == ["test-commit"]
    assert committer.close(WAIT_S)
    assert mine() == []


def test_a_writer_that_worked_before_a_fork_is_refused_after_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = make()
    committer.commit(Item("parent"))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(StorageError, match="before the process was forked"):
        committer.commit(Item("child"))


def test_a_writer_that_was_only_made_before_a_fork_gets_a_name_of_its_own(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = make()
    name = committer.writer
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert committer.commit(Item("child")).segment == f"p/{committer.writer}/00000000.calls.parquet"
    assert committer.writer != name


def test_a_partition_must_have_a_possible_name(make: Make) -> None:
    with pytest.raises(ValueError, match="cannot be a staging partition"):
        make(partition="a/b")


def test_an_item_that_is_being_written_takes_room_although_nobody_waits_for_it(store: WatchedStore, make: Make) -> None:
    gate, committer = Gate(store), make()
    ticket = committer.submit(Item("slow", 10))
    assert gate.reached.wait(WAIT_S)
    with pytest.raises(StorageTimeoutError):
        ticket.wait(0.0)
    assert committer.stats().pending_bytes == 10
    gate.open.set()
    assert lines(store, ticket.wait(WAIT_S)) == ["slow"]
