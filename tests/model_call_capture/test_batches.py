"""What waits goes together; who waits for whom is decided by counts that a test can see, never by timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import pytest

from gym_ray.errors import StorageError
from gym_ray.model_call_capture.batches import Batches

LONG_S = 20.0


class Item:
    def __init__(self, number: int, nbytes: int = 1, patience_s: float = 0.0) -> None:
        self.number, self.nbytes, self.patience_s = number, nbytes, patience_s
        self.error: Exception | None = None

    def failed(self, error: Exception) -> None:
        self.error = error


class Place:
    """Batches that a test lets go one by one."""

    def __init__(self, **options: int) -> None:
        self.open, self.begun, self.go = 0, SimpleQueue[list[int]](), threading.Semaphore(0)
        self.done: list[int] = []
        self.error: Exception | None = None
        settings: dict[str, int] = {"most_items": 100, "most_bytes": 1000, **options}
        self.batches: Batches[Item] = Batches(
            "memory://x", self.send, on_done=self.on_done, open_calls=lambda: self.open, **settings
        )

    def send(self, items: list[Item]) -> None:
        self.begun.put([item.number for item in items])
        assert self.go.acquire(timeout=LONG_S)
        if self.error is not None:
            raise self.error

    def on_done(self, items: Sequence[Item]) -> None:
        self.done += [item.number for item in items]

    def submit(self, *items: Item) -> None:
        for item in items:
            self.batches.submit(item)

    def next(self) -> list[int]:
        return self.begun.get(timeout=LONG_S)

    def finish(self) -> None:
        for _ in range(100):
            self.go.release()
        assert self.batches.close(LONG_S)


def numbered(first: int, count: int, **options: float) -> list[Item]:
    return [Item(number, **options) for number in range(first, first + count)]  # type: ignore[arg-type]


def test_a_lone_record_goes_at_once_and_the_others_together() -> None:
    place = Place()
    place.submit(Item(0))
    assert place.next() == [0]
    place.submit(*numbered(1, 10))
    place.go.release()
    assert place.next() == list(range(1, 11))
    place.finish()
    assert place.done == list(range(11))


def test_a_second_batch_sets_out_only_when_it_is_worth_it() -> None:
    place = Place()
    place.submit(Item(0))
    assert place.next() == [0]
    place.submit(*numbered(1, 16))
    assert place.next() == list(range(1, 17))  # beside the first, which is still on its way
    place.submit(*numbered(17, 40))
    place.go.release()
    assert place.next() == list(range(17, 57))
    place.finish()


def test_a_batch_that_hangs_holds_up_the_others_for_a_while_only() -> None:
    place = Place()
    place.submit(Item(0))
    assert place.next() == [0]
    for number in range(1, 4):  # each comes by itself, and nothing ends
        place.submit(Item(number))
        assert place.next() == [number]
    place.submit(Item(4))
    with pytest.raises(Empty):  # four are on their way, so this one waits
        place.begun.get(timeout=0.05)
    place.finish()
    assert sorted(place.done) == [0, 1, 2, 3, 4]


def test_a_record_waits_for_company_while_many_calls_are_open() -> None:
    place = Place()
    place.open = 64
    place.submit(*numbered(0, 15, patience_s=LONG_S))
    assert place.begun.empty()
    place.submit(Item(15, patience_s=LONG_S))
    assert place.next() == list(range(16))
    place.finish()


def test_nobody_waits_for_company_that_will_not_come() -> None:
    place = Place()
    place.open = 10
    place.submit(Item(0, patience_s=LONG_S), Item(1, patience_s=LONG_S), Item(2, patience_s=LONG_S))
    assert place.next() == [0, 1, 2]  # with the third, seven others are open
    place.finish()


def test_patience_ends() -> None:
    place = Place()
    place.open = 64
    place.submit(Item(0, patience_s=LONG_S), Item(1, patience_s=0.01))
    place.submit(Item(2, patience_s=LONG_S))
    taken = place.next()
    assert taken[:2] == [0, 1]
    place.finish()
    assert sorted(place.done) == [0, 1, 2]


def test_batches_are_bounded_by_count_and_bytes() -> None:
    place = Place(most_items=3, most_bytes=10)
    place.submit(Item(0))
    assert place.next() == [0]
    place.submit(*numbered(1, 4), Item(5, nbytes=6), Item(6, nbytes=6), Item(7, nbytes=50))
    place.finish()
    batches = []
    while not place.begun.empty():
        batches.append(place.begun.get())
    assert [number for batch in batches for number in batch] == list(range(1, 8))
    assert all(len(batch) <= 3 for batch in batches)
    assert [7] in batches
    assert [5, 6] not in batches


def test_too_much_that_waits_is_refused_and_a_large_lone_record_is_not() -> None:
    place = Place(most_pending_bytes=100)
    place.submit(Item(0, nbytes=500))
    assert place.next() == [0]
    with pytest.raises(StorageError, match="memory://x: 500 bytes of records wait"):
        place.submit(Item(1))
    place.finish()


def fail(place: Place) -> None:
    place.error = ValueError("no")


def fail_listener(place: Place) -> None:
    def refuse(items: Sequence[Item]) -> None:
        raise ValueError(len(items))

    place.batches._on_done = refuse


@pytest.mark.parametrize("harm", [fail, fail_listener])
def test_a_failure_is_told_and_costs_no_later_batch(harm: Callable[[Place], None]) -> None:
    place = Place()
    harm(place)
    first, second = Item(0), Item(1)
    for item in (first, second):
        place.submit(item)
        assert place.next() == [item.number]
        place.go.release()
    place.finish()
    if harm is fail:
        assert isinstance(first.error, ValueError)
        assert isinstance(second.error, ValueError)
        assert place.done == [0, 1]


def test_close_sends_what_waits_and_takes_nothing_more() -> None:
    place = Place()
    place.open = 64
    place.submit(*numbered(0, 5, patience_s=LONG_S))
    place.finish()
    assert place.done == [0, 1, 2, 3, 4]
    with pytest.raises(StorageError, match="closed"):
        place.submit(Item(9))


def test_close_says_when_something_is_still_on_its_way() -> None:
    place = Place()
    place.submit(Item(0))
    assert place.next() == [0]
    assert not place.batches.close(0.01)
    place.finish()
