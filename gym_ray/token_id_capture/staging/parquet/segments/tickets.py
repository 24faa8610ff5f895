"""What a segment committer is given, and what it gives back: items, tickets, places, counts.

A ticket is one item on its way. Tickets of one batch share its outcome; each of them is waited for by itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gym_ray.errors import StorageError, StorageTimeoutError
from gym_ray.storage.streams import StreamedValue
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName

__all__ = ["Batch", "CommitItem", "CommitStats", "RowPlace", "SegmentStream", "Ticket"]


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row is.

    Attributes:
        segment: Name of the segment in its store.
        seq: Its number.
        row_group: Counts the row groups of the file from 0.
        row: Counts the rows of the row group from 0.
    """

    segment: str
    seq: int
    row_group: int
    row: int


@dataclass(frozen=True, slots=True)
class SegmentStream:
    """A segment that is being written.

    Attributes:
        name: What it will be called.
        value: Takes its bytes. Whoever writes them neither publishes nor closes it.
        encoding_begins: To be called when all that is left is work without the interpreter. Those who wait for the
            segment before are told then: woken earlier, they would take turns with the writer for the interpreter,
            now they run beside it.
    """

    name: SegmentName
    value: StreamedValue
    encoding_begins: Callable[[], None]

    def place(self, row_group: int, row: int) -> RowPlace:
        """Return the place of a row of this segment."""
        return RowPlace(str(self.name), self.name.seq, row_group, row)


class CommitItem(Protocol):
    """Rows that belong together."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps in memory until it is written, as good as they are known."""


ItemT = TypeVar("ItemT", bound=CommitItem)


@dataclass(frozen=True, slots=True)
class CommitStats:
    """What a committer has done so far.

    Attributes:
        segments: Segments that were published.
        items: Items in them.
        failed_segments: Commits that failed.
        failed_items: Items whose commit failed.
        orphans: Items that were published when nobody waited for them any more.
        pending_bytes: Bytes of the items that wait or are being written now.
    """

    segments: int
    items: int
    failed_segments: int
    failed_items: int
    orphans: int
    pending_bytes: int

    @property
    def mean_batch(self) -> float:
        """Items in a published segment, on average; 0.0 before the first."""
        return self.items / self.segments if self.segments else 0.0


@dataclass(slots=True, eq=False)
class Batch(Generic[ItemT]):
    """What waits together, and what became of it.

    Attributes:
        tickets: One an item.
        nbytes: Bytes of the items.
        taken: It is being written or was.
        done: It is known what became of it.
        error: Why it was not written.
        untold: Tickets with an outcome that nobody was told yet, in order.
    """

    tickets: list[Ticket[ItemT]] = field(default_factory=list)
    nbytes: int = 0
    taken: bool = False
    done: bool = False
    error: Exception | None = None
    untold: deque[Ticket[ItemT]] = field(default_factory=deque)

    def tell_next(self) -> None:
        """Wake whoever waits for the next ticket, if one is left; they wake the one after.

        Who gave up wakes nobody, and is passed over. May be called by several threads at once.
        """
        with suppress(IndexError):
            while not self.untold.popleft().tell():
                pass

    def tell_all(self) -> None:
        """Wake everybody who waits yet."""
        while self.untold:
            self.tell_next()


class Ticket(Generic[ItemT]):
    """One item on its way; ask it where the item is.

    Attributes:
        item: The item, until it is written or withdrawn.
        batch: What it waits with.
        wanted: Whether somebody waits, from the start on: whoever has the ticket is about to.

    Args:
        item: The item.
        batch: What it waits with.
        place: Where it goes, for messages.
        give_up: Called when the time is over; whether there is no outcome, also not by then.
    """

    __slots__ = ("_give_up", "_outcome", "_place", "_row", "batch", "item", "wanted")

    def __init__(self, item: ItemT, batch: Batch[ItemT], place: str, give_up: Callable[[Ticket[ItemT]], bool]) -> None:
        self.item: ItemT | None = item
        self.batch, self.wanted = batch, True
        self._place, self._give_up = place, give_up
        self._row: RowPlace | None = None
        # Held until there is an outcome. A bare lock costs a waiter a fraction of what an event does.
        self._outcome = threading.Lock()
        self._outcome.acquire()

    @property
    def being_written(self) -> bool:
        """Whether the item may yet become durable although it is not so now."""
        return self.batch.taken and not self.batch.done

    @property
    def failed(self) -> bool:
        """Whether it is known that the item was not written."""
        return self.batch.done and self.batch.error is not None

    def wait(self, timeout_s: float, of_s: float | None = None) -> RowPlace:
        """Return where the item is, once it is durable. May be called again, and by several threads.

        An item that nobody has begun to write when the time is over is withdrawn.

        Args:
            timeout_s: How long to wait.
            of_s: The timeout of which this is what is left, for the message.

        Raises:
            StorageTimeoutError: It is not known to be durable after ``timeout_s`` seconds.
            StorageError: It could not be written; nothing of it is there.
        """
        if self._outcome.acquire(timeout=timeout_s):
            self._outcome.release()  # for whoever asks next
        elif self._give_up(self):
            raise StorageTimeoutError(f"not durable at {self._place} within {of_s or timeout_s:g} s")
        self.batch.tell_next()
        if self._row is not None:
            return self._row
        error = self.batch.error
        if error is None:
            raise StorageTimeoutError(f"withdrawn from {self._place}: it was not written in time")
        raise StorageError(str(error)) from error

    def settle(self, row: RowPlace | None) -> None:
        """Take where the item is, if it was written; its batch knows why not. Called once, before the batch is done."""
        self._row, self.item = row, None

    def tell(self) -> bool:
        """Wake whoever waits; return whether somebody does. Called once, after :meth:`settle`."""
        self._outcome.release()
        return self.wanted
