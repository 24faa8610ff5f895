"""Group commit of segments: what waits is one file, published by one atomic create, and then everybody is told.

A batch is whatever waited while the one before it was being written: nobody lingers for company, and many callers
share one sync all the same. A commit that fails fails exactly the callers whose items were in it and leaves no file;
its number is not used again.

Whoever waits only until a deadline may be gone when the segment is published. Such a row is an orphan: whole, readable,
and named by no key that anybody was given. It is counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from gym_ray.errors import StorageError, StorageTimeoutError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName, check_partition, new_writer
from gym_ray.token_id_capture.staging.parquet.segments.schema import MAX_SEGMENT_BYTES
from gym_ray.token_id_capture.staging.parquet.segments.tickets import (
    Batch,
    CommitItem,
    CommitStats,
    ItemT,
    RowPlace,
    SegmentStream,
    Ticket,
)

__all__ = ["CommitItem", "CommitStats", "RowPlace", "SegmentCommitter", "SegmentStream", "Ticket"]

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome(Generic[ItemT]):
    """What became of a batch; a ticket that is not among ``tickets`` was withdrawn."""

    batch: Batch[ItemT]
    tickets: list[Ticket[ItemT]]
    places: Sequence[RowPlace]


class SegmentCommitter(Generic[ItemT]):
    """Writes items into segments on a thread of its own, which the first item starts.

    Args:
        store: Where the segments go.
        partition: First part of their names.
        kind: What their rows are, last part of their names.
        write: Writes all items to the stream, and returns the place of each, in order; runs on the thread.
        max_calls: Items of one segment at most.
        max_pending_bytes: A caller waits while this much is in memory; one item alone may be larger.
        max_batch_bytes: A segment takes no item that would make it larger than this many bytes of items, unless it is
            its first: what is read to find one row of a segment grows with what the segment holds.
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
        max_batch_bytes: int = MAX_SEGMENT_BYTES,
        timeout_s: float = 30.0,
        name: str = "staging-commit",
    ) -> None:
        self.partition, self.kind, self._writer = check_partition(partition), kind, new_writer()
        self._store, self._write, self._timeout_s, self._name = store, write, timeout_s, name
        self._max_calls, self._max_pending, self._max_batch = max_calls, max_pending_bytes, max_batch_bytes
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Batch[ItemT]] = deque()  # the last one is still open
        self._idle = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._untold: _Outcome[ItemT] | None = None  # of the thread alone, as the next
        self._telling: Batch[ItemT] | None = None
        self._next_seq = 0
        self._pending_bytes = 0
        self._segments = self._items = self._failed_segments = self._failed_items = self._orphans = 0

    @property
    def writer(self) -> str:
        """The name that the segments are written under, this process's own from the first look or item on."""
        if self._thread is None and self._process != os.getpid():  # forked before the first item: the parent has it
            self._process, self._writer = os.getpid(), new_writer()
        return self._writer

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
        of_s = self._timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + of_s
        ticket = self.submit(item, until - time.monotonic(), of_s)
        return ticket.wait(max(0.0, until - time.monotonic()), of_s)

    def submit(self, item: ItemT, timeout_s: float | None = None, of_s: float | None = None) -> Ticket[ItemT]:
        """Take an item; its outcome is asked of the ticket, by somebody who waits for it from now on.

        Args:
            item: The item.
            timeout_s: How long to wait for room; None takes this committer's.
            of_s: The timeout of which this is what is left, for the message.

        Raises:
            StorageTimeoutError: ``max_pending_bytes`` were in memory all the time.
            StorageError: The committer is closed.
        """
        size = item.nbytes
        with self._lock:
            if not self._has_room(size):
                left_s = self._timeout_s if timeout_s is None else timeout_s
                self._wait_for_room(size, left_s, of_s or left_s)
            self._require_open()
            if self._thread is None:
                self._start()
            self._pending_bytes += size
            batch = self._open_batch(size)
            batch.nbytes += size
            ticket = Ticket(item, batch, self._store.place, self._give_up)
            batch.tickets.append(ticket)
            if self._idle:
                self._idle = False
                self._arrived.notify()
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
        if self._thread is not None and self._process != os.getpid():
            raise StorageError(f"{self.place}: this writer was at work before the process was forked; make one anew")

    def _wait_for_room(self, size: int, timeout_s: float, of_s: float) -> None:
        if not self._room.wait_for(lambda: self._closed or self._has_room(size), timeout_s):
            raise StorageTimeoutError(
                f"{self.place}: {self._pending_bytes} bytes still waited to be written after {of_s:g} s; "
                f"max_pending_bytes is {self._max_pending}"
            )

    def _has_room(self, size: int) -> bool:
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending

    def _open_batch(self, size: int) -> Batch[ItemT]:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and len(last.tickets) < self._max_calls and last.nbytes + size <= self._max_batch:
            return last
        batch: Batch[ItemT] = Batch()
        self._waiting.append(batch)
        return batch

    def _start(self) -> None:
        # A daemon: a sync that the kernel never ends must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        _ = self.writer  # settled before the thread is there
        try:
            thread.start()
        except RuntimeError as error:
            raise StorageError(f"{self.place}: no thread can be started to write: {error}") from error
        self._thread = thread

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            self._commit(batch)

    def _take(self) -> Batch[ItemT] | None:
        with self._lock:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle = True
                self._arrived.wait()
            batch = self._waiting.popleft()
            batch.taken = True
            return batch

    def _commit(self, batch: Batch[ItemT]) -> None:
        tickets = [ticket for ticket in batch.tickets if ticket.item is not None]
        places: Sequence[RowPlace] = ()
        try:
            if tickets:
                places = self._publish([ticket.item for ticket in tickets if ticket.item is not None])
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to those whose items these were
            batch.error = error
            _log.error("%s: a segment of %d calls could not be written: %s", self.place, len(tickets), error)
        self._tell_all()
        self._untold = _Outcome(batch, tickets, places)
        if not self._waiting:
            self._tell_all()

    def _tell(self) -> None:
        """Wake the first of those whose outcome is known, and each of them wakes the next.

        All at once would take turns for the interpreter, and each of them ask for it again and again.
        """
        untold, self._untold = self._untold, None
        if untold is not None:
            self._finish(untold)
            self._telling = untold.batch
            untold.batch.tell_next()

    def _tell_all(self) -> None:
        """Wake those who were not woken yet: one of the callers who should have done it may be gone."""
        self._tell()
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.tell_all()

    def _publish(self, items: list[ItemT]) -> Sequence[RowPlace]:
        name = SegmentName(self.partition, self.writer, self._next_seq, self.kind)
        self._next_seq += 1
        try:
            with self._store.stream(str(name)) as value:
                places = _one_each(self._write(SegmentStream(name, value, self._tell), items), items)
                value.publish()
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"cannot write {self._store.place}/{name}: {type(error).__name__}: {error}") from error
        return places

    def _finish(self, outcome: _Outcome[ItemT]) -> None:
        batch, rows = (
            outcome.batch,
            dict(zip(outcome.tickets, outcome.places, strict=False)),
        )  # no places after an error
        with self._lock:
            if batch.error is not None:
                self._failed_segments += 1
                self._failed_items += len(outcome.tickets)
            elif rows:
                self._segments += 1
                self._items += len(rows)
                self._orphans += sum(not ticket.wanted for ticket in rows)
            batch.untold.extend(batch.tickets)
            batch.tickets = []
            for ticket in batch.untold:
                ticket.settle(rows.get(ticket))
            batch.done = True
            self._pending_bytes -= batch.nbytes
            self._room.notify_all()

    def _give_up(self, ticket: Ticket[ItemT]) -> bool:
        """Wait no more for a ticket; whether there is no outcome, also not by now."""
        with self._lock:
            batch = ticket.batch
            if batch.done:
                return False
            ticket.wanted = False
            if not batch.taken and ticket.item is not None:
                size = ticket.item.nbytes
                ticket.item = None
                batch.nbytes -= size
                self._pending_bytes -= size
                self._room.notify_all()
            return True


def _one_each(places: Sequence[RowPlace], items: Sequence[object]) -> Sequence[RowPlace]:
    if len(places) != len(items):
        raise StorageError(f"{len(places)} places were given for {len(items)} items")
    return places
