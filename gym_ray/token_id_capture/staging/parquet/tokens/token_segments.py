"""The segments with token records and events, and which of their row groups can hold a rollout.

It grows with new names only: the footer of each segment is read once, and what it says of rollouts is kept. Nothing
else of a segment is read unless a rollout that somebody asks for can be in it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray.errors import StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import EVENTS_KIND, TOKENS_KIND, parse_segment_name
from gym_ray.token_id_capture.staging.parquet.tokens.token_discovery import SegmentDiscovery
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Origins, Place, is_within, join_ranges
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import (
    EVENTS_SCHEMA,
    IDENTITY_COLUMNS,
    TOKENS_SCHEMA,
)
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import TokenSegmentFile, rollout_key

__all__ = ["IndexedSegment", "RowGroup", "TokenSegments"]

_LISTED_EVERY_S: Final = 5.0
_FOOTER_BYTES: Final = 64 << 20
"""Memory for parsed footers; those used last are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSegment:
    """What is kept of a segment.

    Attributes:
        name: Its name.
        kind: What its rows are.
        keys: The key of each row's rollout.
        row_ends: For each row group, how many rows there are up to its end.
        damage: Why its rows cannot be read; empty if they can.
        size: Its bytes.
        origins: Where its rows were first; None if they are where they were.
    """

    name: str
    kind: str
    keys: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    row_ends: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    damage: str = ""
    size: int = 0
    origins: Origins | None = None

    def place(self, row: int) -> Place:
        """Return where a row was first; rows are counted over the whole segment."""
        if self.origins is not None:
            return self.origins.place(row)
        group = int(np.searchsorted(self.row_ends, row, side="right"))
        return self.name, group, row - (int(self.row_ends[group - 1]) if group else 0)

    def groups_of(self, key: int) -> list[int]:
        """Return the row groups that hold rows of a rollout with this key."""
        rows = np.flatnonzero(self.keys == key)
        groups: list[int] = np.unique(np.searchsorted(self.row_ends, rows, side="right")).tolist()
        return groups

    def keys_of(self, group: int) -> list[int]:
        """Return the keys of a row group's rows."""
        start = int(self.row_ends[group - 1]) if group else 0
        keys: list[int] = self.keys[start : int(self.row_ends[group])].tolist()
        return keys


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group.

    Attributes:
        segment: Name of the segment.
        group: Its number.
        is_events: Whether its rows are events.
        table: Its rows, with the columns that were asked for.
        first_row: How many rows of the segment are before it.
        origins: Where the segment's rows were first; None if they are where they were.
    """

    segment: str
    group: int
    is_events: bool
    table: pa.Table
    first_row: int = 0
    origins: Origins | None = None

    def place(self, row: int) -> Place:
        """Return where a row was first."""
        return (self.segment, self.group, row) if self.origins is None else self.origins.place(self.first_row + row)


@dataclass(frozen=True, slots=True)
class _Missing:
    segment: str
    error: StorageMissingError


class TokenSegments:
    """The index of one partition; safe for threads.

    Args:
        store: The store; it is not closed with the index.
        partition: The partition.
        trust_listings: Whether a listing shows every name that was there when it began.
        max_parallel: Requests at a time.
    """

    def __init__(
        self, store: SegmentStore, partition: str, *, trust_listings: bool = False, max_parallel: int = 8
    ) -> None:
        self._store, self._max_parallel = store, max_parallel
        self._discovery = SegmentDiscovery(
            store, partition, trust_listings=trust_listings, in_parallel=self._in_parallel
        )
        self._lock = threading.Lock()
        self._looked = threading.Condition(self._lock)
        self._looking = False
        self._begun = self._ended = self._ended_listed = 0
        self._listing_wanted = False
        self._listed_at = float("-inf")
        self._told: set[str] = set()
        self._unread: list[str] = []
        self._segments: list[IndexedSegment] = []
        self._positions: dict[str, int] = {}
        self._replaced: dict[str, dict[str, list[tuple[int, int]]]] = {TOKENS_KIND: {}, EVENTS_KIND: {}}
        self._files: OrderedDict[str, TokenSegmentFile] = OrderedDict()
        self._weight = 0
        self._pool: ThreadPoolExecutor | None = None

    def tell(self, name: str) -> None:
        """Name a segment that is there, whatever a listing says."""
        with self._lock:
            self._told.add(name)

    def refresh(self, *, listing: bool = True) -> list[IndexedSegment]:
        """Return all segments, in the order in which they were found; those published before the call are there.

        A segment that a compacted one stands for has no rows any more; its place in the list stays.

        Callers that wait at the same time share one look at the store, which begins after each of them called.

        Args:
            listing: Whether the store must be listed; else that is done every few seconds, and writers are asked for
                their next segments in between, which costs the same however many there are. What lies behind more than
                four commits of a writer that failed in a row is then seen with the next listing.

        Raises:
            StorageError: The store cannot be read.
        """
        with self._lock:
            wanted = self._begun + 1
            self._listing_wanted |= listing
            while self._looking and not self._is_done(wanted, listing):
                self._looked.wait()
            if self._is_done(wanted, listing):
                return self._segments[:]
            self._looking, self._begun = True, self._begun + 1
            mine, told = self._begun, self._told.copy()
            lists = self._listing_wanted or time.monotonic() - self._listed_at > _LISTED_EVERY_S
            self._listing_wanted = False
        try:
            self._look(told, listing=lists)
            with self._lock:
                self._told -= told
                self._ended = mine
                self._ended_listed = mine if lists else self._ended_listed
                return self._segments[:]
        finally:
            with self._lock:
                self._looking = False
                self._looked.notify_all()

    def position(self, segment: str) -> int | None:
        """Return where in the list the rows of a segment were seen first, in itself or in one that stands for it."""
        with self._lock:
            return self._positions.get(segment)

    def is_replaced(self, segment: str) -> bool:
        """Whether another segment that was seen stands for this one."""
        parsed = parse_segment_name(segment)
        with self._lock:
            return parsed is not None and is_within(self._replaced.get(parsed.kind, {}), parsed)

    def read(
        self, segments: Iterable[IndexedSegment], rollout_id: str, *, tokens: bool = True
    ) -> list[RowGroup] | None:
        """Return the row groups that can hold a rollout; None if compaction removed one: refresh, and ask again.

        Args:
            segments: Where to look; those that are damaged as a whole have no row groups.
            rollout_id: The rollout.
            tokens: Whether records are wanted with all they hold, or only with what tells them apart.

        Raises:
            StorageError: They cannot be read.
            ValueError: One is damaged.
        """
        key = rollout_key(rollout_id)
        wanted = [(segment, group) for segment in segments for group in segment.groups_of(key)]
        found = self._in_parallel(lambda pair: self._read_if_there(*pair, tokens=tokens), wanted)
        missing = [one for one in found if isinstance(one, _Missing)]
        if not missing:
            return found
        self.refresh()
        for one in missing:
            if not self.is_replaced(one.segment):  # evidence that is gone is no evidence that there was none
                raise one.error
        return None

    def read_whole(self, segment: IndexedSegment) -> Iterator[RowGroup]:
        """Yield all row groups of a segment with all their columns.

        Raises:
            StorageError: They cannot be read.
            ValueError: One is damaged.
        """
        for group in range(len(segment.row_ends)):
            yield self._read(segment, group, tokens=True)

    def close(self) -> None:
        """Let go of threads and memory; it begins anew when it is asked again."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._files.clear()
            self._weight = 0
        if pool is not None:
            pool.shutdown()

    def _is_done(self, wanted: int, listing: bool) -> bool:
        return (self._ended_listed if listing else self._ended) >= wanted

    def _look(self, told: set[str], *, listing: bool) -> None:
        began = time.monotonic()
        self._unread += self._discovery.look(told, listing=listing)
        if listing:
            self._listed_at = began
        while self._unread:
            indexed = self._in_parallel(self._index, self._unread)
            self._unread = []
            found = [segment for segment in indexed if segment is not None]
            self._take(found)
            if len(found) < len(indexed) or any(segment.origins is not None for segment in found):
                # What stands for the missing one was there before it went, and says how far its writer had come.
                self._unread += self._discovery.look(listing=False)

    def _take(self, found: Sequence[IndexedSegment]) -> None:
        compacted = [(one, one.origins) for one in found if one.origins is not None]
        with self._lock:
            start = len(self._segments)
            for position, segment in enumerate(found, start):
                self._positions.setdefault(segment.name, position)
                for origin in segment.origins.segments if segment.origins is not None else ():
                    self._positions.setdefault(origin, position)
            for one, origins in compacted:
                self._replaced[one.kind] = join_ranges([self._replaced[one.kind], origins.replaced])
                self._discovery.leave_out(one.kind, origins.replaced)
            self._segments += found
            for position in range(0 if compacted else start, len(self._segments)):
                segment = self._segments[position]
                parsed = parse_segment_name(segment.name)
                if parsed is not None and is_within(self._replaced[parsed.kind], parsed):
                    self._segments[position] = IndexedSegment(segment.name, segment.kind)

    def _index(self, name: str) -> IndexedSegment | None:
        parsed = parse_segment_name(name)
        assert parsed is not None
        try:
            file = self._file(name, parsed.kind)
            keys, ends = file.rollout_keys(), file.row_ends()
            return IndexedSegment(name, parsed.kind, keys, ends, size=file.size, origins=file.origins())
        except StorageMissingError:
            return None  # listed, and removed since: another segment stands for it
        except ValueError as error:
            return IndexedSegment(name, parsed.kind, damage=str(error))

    def _read_if_there(self, segment: IndexedSegment, group: int, *, tokens: bool) -> RowGroup | _Missing:
        try:
            return self._read(segment, group, tokens=tokens)
        except StorageMissingError as error:
            return _Missing(segment.name, error)

    def _read(self, segment: IndexedSegment, group: int, *, tokens: bool) -> RowGroup:
        is_events = segment.kind == EVENTS_KIND
        schema = EVENTS_SCHEMA if is_events else TOKENS_SCHEMA
        columns = schema.names if is_events or tokens else IDENTITY_COLUMNS
        table = self._file(segment.name, segment.kind).read(group, columns, schema)
        if [rollout_key(rollout_id) for rollout_id in table.column("rollout_id").to_pylist()] != segment.keys_of(group):
            # A damaged id would hide a row from its rollout.
            raise ValueError(
                f"{self._store.place}/{segment.name}: row group {group} has rows of other rollouts than it says"
            )
        first = int(segment.row_ends[group - 1]) if group else 0
        return RowGroup(segment.name, group, is_events, table, first, segment.origins)

    def _file(self, name: str, kind: str) -> TokenSegmentFile:
        with self._lock:
            file = self._files.get(name)
            if file is not None:
                self._files.move_to_end(name)
                return file
        file = TokenSegmentFile(self._store, name, kind)
        with self._lock:
            if name not in self._files:
                self._files[name] = file
                self._weight += file.weight
            while self._weight > _FOOTER_BYTES and len(self._files) > 1:
                _, forgotten = self._files.popitem(last=False)
                self._weight -= forgotten.weight
        return file

    def _in_parallel(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        if len(values) < 2:
            return [function(value) for value in values]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._max_parallel, thread_name_prefix="token-segments")
            pool = self._pool
        return list(pool.map(function, values))
