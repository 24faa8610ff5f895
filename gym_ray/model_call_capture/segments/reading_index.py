"""Where the records of writers lie that cannot be asked: their segments are found by name, their indexes read once.

A listing may be behind, so beyond the last segment that it shows the next names are tried one by one. Segments never
change, so what was read of one stays right. Never reads a record: only the indexes.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gym_ray.errors import CaptureError, StorageMissingError
from gym_ray.model_call_capture.segments.layout import (
    SEGMENTS,
    NeedMore,
    SegmentIndex,
    SegmentRecord,
    parse_segment_name,
    read_index,
    segment_name,
    segments_of,
)
from gym_ray.storage.store import SegmentStore

__all__ = ["FoundRecord", "SegmentIndexes", "stored_index"]

_TAIL_BYTES = 128 * 1024
_MOST_RECORDS = 200_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One record of a segment.

    Attributes:
        writer_id: Who wrote it.
        seq: Number of the segment.
        record: Its place there.
    """

    writer_id: str
    seq: int
    record: SegmentRecord

    @property
    def name(self) -> str:
        """Name of the segment."""
        return segment_name(self.writer_id, self.seq)


@dataclass(slots=True)
class _Written:
    """The segments of one writer that were read: the last number, records by rollout, and what is damaged."""

    last: int = 0
    count: int = 0
    records: dict[str, list[FoundRecord]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


class SegmentIndexes:
    """The indexes of segments, by writer. About 200 bytes a record are held, of the writers that were used last.

    Args:
        store: Where the segments are.
        most_records: Records whose places are held at once; beyond them a writer's indexes are read again.
    """

    def __init__(self, store: SegmentStore, *, most_records: int = _MOST_RECORDS) -> None:
        self._store, self._most = store, most_records
        self._lock = threading.Lock()
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self._numbers: dict[str, set[int]] = {}

    def list_all(self) -> frozenset[str]:
        """List every segment, and return the writers that have one.

        Raises:
            StorageError: They cannot be listed.
        """
        self._take(self._store.list(SEGMENTS))
        with self._lock:
            return frozenset(self._numbers)

    def writers(self) -> frozenset[str]:
        """Return the writers that listings showed so far."""
        with self._lock:
            return frozenset(self._numbers)

    def _take(self, names: list[str]) -> None:
        with self._lock:
            for name in names:
                parsed = parse_segment_name(name)
                if parsed is not None:
                    self._numbers.setdefault(parsed[0], set()).add(parsed[1])

    def last_number(self, writer_id: str, *, listed: bool) -> int:
        """Return the number of a writer's last segment, 0 when it has none.

        Args:
            writer_id: The writer.
            listed: List its segments first; else what earlier listings showed is the start.

        Raises:
            StorageError: The store cannot be asked.
        """
        if listed:
            self._take(self._store.list(segments_of(writer_id)))
        with self._lock:
            number = max(self._numbers.get(writer_id, ()), default=0)
        while self._store.exists(segment_name(writer_id, number + 1)):
            number += 1
            self._take([segment_name(writer_id, number)])
        return number

    def records(self, writer_id: str, rollout_id: str, *, may_write: bool) -> tuple[list[FoundRecord], list[str]]:
        """Return a rollout's records of one writer, and the segments of the writer whose index is damaged.

        Args:
            writer_id: The writer.
            rollout_id: The rollout.
            may_write: The writer may live, so that there may be segments that nobody has listed yet.

        Raises:
            StorageError: A segment cannot be read.
        """
        written = self._read(writer_id, may_write=may_write)
        return list(written.records.get(rollout_id, ())), list(written.damaged)

    def rollout_ids(self, writer_id: str) -> Iterator[str]:
        """Yield the rollouts of a writer's records.

        Raises:
            StorageError: A segment cannot be read.
        """
        yield from list(self._read(writer_id, may_write=True).records)

    def _read(self, writer_id: str, *, may_write: bool) -> _Written:
        with self._lock:
            written = self._written.get(writer_id)
            if written is not None:
                self._written.move_to_end(writer_id)
        if written is not None and not may_write:
            return written
        last = self.last_number(writer_id, listed=True)
        begin = _Written() if written is None else written
        if last == begin.last and written is not None:
            return written
        grown = _Written(
            last, begin.count, {name: list(found) for name, found in begin.records.items()}, [*begin.damaged]
        )
        for seq in range(begin.last + 1, last + 1):
            self._add(grown, writer_id, seq)
        with self._lock:
            self._written[writer_id] = grown
            self._written.move_to_end(writer_id)
            self._shrink()
        return grown

    def _add(self, written: _Written, writer_id: str, seq: int) -> None:
        name = segment_name(writer_id, seq)
        try:
            index = stored_index(self._store, name)
        except StorageMissingError:
            return  # a number that was given up
        except CaptureError as error:
            _log.error("%s", error)
            written.damaged.append(name)
            return
        for record in index.records:
            written.records.setdefault(record.rollout_id, []).append(FoundRecord(writer_id, seq, record))
        written.count += len(index.records)

    def _shrink(self) -> None:
        held = sum(written.count for written in self._written.values())
        while held > self._most and len(self._written) > 1:
            _, dropped = self._written.popitem(last=False)
            held -= dropped.count


def stored_index(store: SegmentStore, name: str) -> SegmentIndex:
    """Return the index of a segment.

    Raises:
        StorageMissingError: There is no such segment.
        StorageError: It cannot be read.
        CaptureError: It is damaged.
    """
    tail, size = store.read_tail(name, _TAIL_BYTES)
    found = read_index(tail, size, name=name)
    if isinstance(found, NeedMore):
        tail, size = store.read_tail(name, found.length)
        found = read_index(tail, size, name=name)
    if isinstance(found, NeedMore):
        raise CaptureError(f"{name}: damaged segment: its end changed while it was read")
    return found
