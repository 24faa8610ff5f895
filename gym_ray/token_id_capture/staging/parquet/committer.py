"""Group commit of segments: what waits is one file, published by one atomic create, and then everybody is told.

A batch is whatever waited while the one before it was being written: nobody lingers for company, and many callers
share one sync all the same. A commit that fails fails exactly the callers whose items were in it and leaves no file;
its number is not used again.

Whoever waits only until a deadline may be gone when the segment is published. Such a row is an orphan: whole, readable,
and named by no key that anybody was given. It is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gym_ray.errors import StorageError, StorageTimeoutError
from gym_ray.storage.store import SegmentStore
from gym_ray.storage.streams import StreamedValue
from gym_ray.token_id_capture.staging.parquet.layout import SegmentName, check_partition, new_writer

__all__ = ["CommitItem", "CommitStats", "RowPlace", "SegmentCommitter", "SegmentStream", "Ticket"]

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024


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
class _Batch(Generic[ItemT]):
    """What waits together."""

    tickets: list[Ticket[ItemT]] = field(default_factory=list)
    nbytes: int = 0
    taken: bool = False
    done: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome(Generic[ItemT]):
    """What became of a batch."""

    batch: _Batch[ItemT]
    tickets: list[Ticket[ItemT]]
    places: Sequence[RowPlace]


class Ticket(Generic[ItemT]):
    """One item on its way; ask it where the item is."""

    __slots__ = ("_batch", "_committer", "_outcome", "_place", "_waiting", "item")

    def __init__(self, committer: SegmentCommitter[ItemT], batch: _Batch[ItemT], item: ItemT) -> None:
        self.item: ItemT | None = item
        self._committer, self._batch = committer, batch
        # Held until there is an outcome. A bare lock costs a waiter a fraction of what an event does.
        self._outcome = threading.Lock()
        self._outcome.acquire()
        self._place: RowPlace | None = None
        self._waiting = True  # from the start: whoever has the ticket is about to wait

    @property
    def being_written(self) -> bool:
        """Whether the item may yet become durable although it is not so now."""
        return self._batch.taken and not self._batch.done

    def wait(self, timeout_s: float) -> RowPlace:
        """Return where the item is, once it is durable. May be called again, and by several threads.

        An item that nobody has begun to write when the time is over is withdrawn.

        Raises:
            StorageTimeoutError: It is not known to be durable after ``timeout_s`` seconds.
            StorageError: It could not be written; nothing of it is there.
        """
        if self._outcome.acquire(timeout=timeout_s):
            self._outcome.release()  # for whoever asks next
        elif self._committer._give_up(self):  # noqa: SLF001 - halves of one thing
            raise StorageTimeoutError(f"not durable at {self._committer.place} within {timeout_s:g} s")
        if self._place is not None:
            return self._place
        error = self._batch.error
        if error is None:
            raise StorageTimeoutError(f"withdrawn from {self._committer.place}: it was not written in time")
        raise StorageError(str(error)) from error


class SegmentCommitter(Generic[ItemT]):
    """Writes items into segments on a thread of its own, which the first item starts.

    Args:
        store: Where the segments go.
        partition: First part of their names.
        kind: What their rows are, last part of their names.
        write: Writes all items to the stream, and returns the place of each, in order; runs on the thread.
        max_calls: Items of one segment at most.
        max_pending_bytes: A caller waits while this much is in memory; one item alone may be larger.
        max_batch_bytes: A segment takes no more items once it has this many bytes of them.
        timeout_s: How long callers wait unless they say something else.
        name: Name of the thread.
    """

    def __init__(
        self,
        store: SegmentStore,
        *,
        partition: str,
        kind: str,
        write: Callable[[SegmentStream, list[ItemT]], Sequence[RowPlace]],
        max_calls: int = 1024,
        max_pending_bytes: int = 256 * _MIB,
        max_batch_bytes: int = 64 * _MIB,
        timeout_s: float = 30.0,
        name: str = "staging-commit",
    ) -> None:
        self.partition, self.kind, self.writer = check_partition(partition), kind, new_writer()
        self._store, self._write, self._timeout_s, self._name = store, write, timeout_s, name
        self._max_calls, self._max_pending, self._max_batch = max_calls, max_pending_bytes, max_batch_bytes
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[_Batch[ItemT]] = deque()  # the last one is still open
        self._idle = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._untold: _Outcome[ItemT] | None = None  # of the thread alone
        self._next_seq = 0
        self._pending_bytes = 0
        self._segments = self._items = self._failed_segments = self._failed_items = self._orphans = 0

    @property
    def place(self) -> str:
        """Where the segments go, for messages."""
        return f"{self._store.place}/{self.partition}/{self.writer}"

    def commit(self, item: ItemT, timeout_s: float | None = None) -> RowPlace:
        """Return where an item is, once it is durable.

        Raises:
            StorageTimeoutError: It is not known to be durable after ``timeout_s`` seconds.
            StorageError: It could not be written, or the committer is closed.
        """
        until = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        ticket = self.submit(item, until - time.monotonic())
        return ticket.wait(max(0.0, until - time.monotonic()))

    def submit(self, item: ItemT, timeout_s: float | None = None) -> Ticket[ItemT]:
        """Take an item; its outcome is asked of the ticket, by somebody who waits for it from now on.

        Raises:
            StorageTimeoutError: ``max_pending_bytes`` were in memory all the time.
            StorageError: The committer is closed.
        """
        size = item.nbytes
        with self._lock:
            if not self._has_room(size):
                self._wait_for_room(size, self._timeout_s if timeout_s is None else timeout_s)
            self._require_open()
            self._pending_bytes += size
            batch = self._open_batch()
            batch.nbytes += size
            ticket = Ticket(self, batch, item)
            batch.tickets.append(ticket)
            if self._idle:
                self._idle = False
                self._arrived.notify()
            elif self._thread is None:
                self._start()
        return ticket

    def stats(self) -> CommitStats:
        """Return what was done so far."""
        with self._lock:
            return CommitStats(
                self._segments,
                self._items,
                self._failed_segments,
                self._failed_items,
                self._orphans,
                self._pending_bytes,
            )

    def close(self, timeout_s: float | None = None) -> bool:
        """Take no more items, write those that wait, end the thread.

        Returns:
            Whether everything taken had its outcome within the time.
        """
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            self._room.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(self._timeout_s if timeout_s is None else timeout_s)
        return not thread.is_alive()

    def _require_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.place}: the writer is closed")

    def _wait_for_room(self, size: int, timeout_s: float) -> None:
        if not self._room.wait_for(lambda: self._closed or self._has_room(size), timeout_s):
            raise StorageTimeoutError(
                f"{self.place}: {self._pending_bytes} bytes still waited to be written after {timeout_s:g} s; "
                f"max_pending_bytes is {self._max_pending}"
            )

    def _has_room(self, size: int) -> bool:
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending

    def _open_batch(self) -> _Batch[ItemT]:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and len(last.tickets) < self._max_calls and last.nbytes < self._max_batch:
            return last
        batch: _Batch[ItemT] = _Batch()
        self._waiting.append(batch)
        return batch

    def _start(self) -> None:
        # A daemon: a sync that the kernel never ends must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            self._commit(batch)

    def _take(self) -> _Batch[ItemT] | None:
        with self._lock:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle = True
                self._arrived.wait()
            batch = self._waiting.popleft()
            batch.taken = True
            return batch

    def _commit(self, batch: _Batch[ItemT]) -> None:
        tickets = [ticket for ticket in batch.tickets if ticket.item is not None]
        places: Sequence[RowPlace] = ()
        try:
            if tickets:
                places = self._publish([ticket.item for ticket in tickets if ticket.item is not None])
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to those whose items these were
            batch.error = error
            _log.error("%s: a segment of %d calls could not be written: %s", self.place, len(tickets), error)
        self._tell()
        self._untold = _Outcome(batch, tickets, places)
        if not self._waiting:
            self._tell()

    def _tell(self) -> None:
        """Wake those whose outcome is known; at the latest when the next segment has one, too."""
        untold, self._untold = self._untold, None
        if untold is not None:
            self._finish(untold.batch, untold.tickets, untold.places)

    def _publish(self, items: list[ItemT]) -> Sequence[RowPlace]:
        name = SegmentName(self.partition, self.writer, self._next_seq, self.kind)
        self._next_seq += 1
        try:
            with self._store.stream(str(name)) as value:
                places = self._write(SegmentStream(name, value, self._tell), items)
                value.publish()
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"cannot write {self._store.place}/{name}: {type(error).__name__}: {error}") from error
        return places

    def _finish(self, batch: _Batch[ItemT], tickets: list[Ticket[ItemT]], places: Sequence[RowPlace]) -> None:
        with self._lock:
            for ticket, place in zip(tickets, places, strict=batch.error is None):
                ticket._place = place  # noqa: SLF001 - halves of one thing
                self._orphans += not ticket._waiting  # noqa: SLF001
            if batch.error is not None:
                self._failed_segments += 1
                self._failed_items += len(tickets)
            elif tickets:
                self._segments += 1
                self._items += len(tickets)
            batch.done = True
            self._pending_bytes -= batch.nbytes
            told = batch.tickets
            batch.tickets = []
            self._room.notify_all()
            for ticket in told:
                ticket.item = None
                ticket._outcome.release()  # noqa: SLF001

    def _give_up(self, ticket: Ticket[ItemT]) -> bool:
        """Wait no more for a ticket; whether there is no outcome, also not by now."""
        with self._lock:
            batch = ticket._batch  # noqa: SLF001 - halves of one thing
            if batch.done:
                return False
            ticket._waiting = False  # noqa: SLF001
            if not batch.taken and ticket.item is not None:
                size = ticket.item.nbytes
                ticket.item = None
                batch.nbytes -= size
                self._pending_bytes -= size
                self._room.notify_all()
            return True
