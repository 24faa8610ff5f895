"""From staging keys to rows: few requests, many files at once, and compaction followed wherever it went.

A key says which row of which segment. All keys of one row group are answered by one read, row groups are read in
parallel, and only when a segment is gone is its note looked up. So a reader never needs an index, and never fails
because a file moved under it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from gym_ray.errors import ForeignKeyError, StagedCallMissingError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import IDENTITY_COLUMNS, CallIdentity, require_identity
from gym_ray.token_id_capture.staging.parquet.calls.retirement import Retirements
from gym_ray.token_id_capture.staging.parquet.segments.identity import read_identity
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey, parse_key
from gym_ray.token_id_capture.staging.parquet.segments.moves import Moves, Place
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.segments.segment_cache import SegmentCache
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

__all__ = ["FoundRow", "KeyLookup", "parse_keys"]

_MAX_MOVES: Final = 64
"""Compactions that a key is followed through; notes that lead in a circle end here."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """The row that a key leads to, and the columns that were asked for.

    Attributes:
        key: The key.
        identity: The call.
        table: The row group.
        row: The row in it.
        segment: Where it was found.
        place: The same, for messages.
    """

    key: SegmentKey
    identity: CallIdentity
    table: pa.Table
    row: int
    segment: str
    place: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    at: int
    key: SegmentKey
    place: Place


class KeyLookup:
    """Reads rows of one store by key. May be used from several threads.

    Args:
        store: The store.
        max_parallel: Row groups that are read at once.
    """

    def __init__(self, store: SegmentStore, max_parallel: int) -> None:
        self.store = store
        self.segments = SegmentCache(store)
        self.moves = Moves(store)
        self.retirements = Retirements(store)
        self._max_parallel = max_parallel
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._store_id: str | None = None

    def close(self) -> None:
        """End the threads; the next lookup starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def rows(self, keys: Sequence[SegmentKey], columns: Sequence[str], take: Callable[[FoundRow], T]) -> list[T]:
        """Return what ``take`` makes of the row of each key, in the order of the keys.

        ``take`` is called in several threads; what it keeps of a row it must copy.

        Raises:
            StagedCallMissingError: A key leads nowhere, or its call is retired.
            ForeignKeyError: A key is of another store.
            ValueError: A row is damaged; the message names file, row and what is wrong.
            StorageError: The store could not be read.
        """
        taken = self._taken(keys, columns, lambda row: (row.identity, _named(row, take)))
        self._refuse_retired(keys, [identity for identity, _ in taken])
        return [result for _, result in taken]

    def identities(self, keys: Sequence[SegmentKey]) -> list[CallIdentity]:
        """Return which call each key leads to, retired or not; raises as :meth:`rows`."""
        return self._taken(keys, IDENTITY_COLUMNS, lambda row: row.identity)

    def store_id(self) -> str | None:
        """Return the id of the store, None where there is none yet."""
        if self._store_id is None:
            self._store_id = read_identity(self.store)
        return self._store_id

    def _taken(self, keys: Sequence[SegmentKey], columns: Sequence[str], take: Callable[[FoundRow], T]) -> list[T]:
        if not keys:
            return []
        found: dict[int, T] = {}
        wanted = [_Wanted(at, key, Place(str(key.segment), key.row_group, key.row)) for at, key in enumerate(keys)]
        for _ in range(_MAX_MOVES):
            groups: dict[tuple[str, int], list[_Wanted]] = defaultdict(list)
            for one in wanted:
                groups[one.place.segment, one.place.row_group].append(one)
            jobs = [_Job(segment, group, tuple(ones)) for (segment, group), ones in groups.items()]
            wanted = []
            for job, results in zip(jobs, self._run(jobs, columns, take), strict=True):
                if results is None:
                    wanted.extend(self._moved(one) for one in job.wanted)
                else:
                    found.update(zip((one.at for one in job.wanted), results, strict=True))
            if not wanted:
                return [found[at] for at in range(len(keys))]
        raise ValueError(f"{self.store.place}: the notes of {wanted[0].place.segment} lead in a circle")

    def _run(self, jobs: Sequence[_Job], columns: Sequence[str], take: Callable[[FoundRow], T]) -> list[list[T] | None]:
        if len(jobs) == 1:
            return [self._read(jobs[0], columns, take)]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._max_parallel, thread_name_prefix="staging-source")
            futures = [self._pool.submit(self._read, job, columns, take) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error nobody wants the rest

    def _read(self, job: _Job, columns: Sequence[str], take: Callable[[FoundRow], T]) -> list[T] | None:
        """Return the rows of one row group; None if the segment is gone."""
        try:
            reader = self.segments.open(job.segment)
            for one in job.wanted:
                _require_store(one.key, reader)
                if job.row_group >= reader.row_groups:
                    raise StagedCallMissingError(str(one.key), f"{reader.place} has no row group {job.row_group}")
            table = reader.read(job.row_group, columns, CALLS_SCHEMA)
        except StorageMissingError:
            self.segments.forget(job.segment)
            return None
        return [take(_found(one, table, reader)) for one in job.wanted]

    def _moved(self, one: _Wanted) -> _Wanted:
        note = self.moves.note_of(one.place.segment)
        if note is None:
            store_id = self.store_id()
            if store_id is not None:
                one.key.require_store(store_id, self.store.place)
            raise StagedCallMissingError(
                str(one.key), f"{self.store.place} has no segment {one.place.segment} and no note of where it went"
            )
        place = note.follow(one.place.row_group, one.place.row)
        if place is None:
            raise StagedCallMissingError(
                str(one.key), f"its call was retired, and compaction of {one.place.segment} removed it"
            )
        return _Wanted(one.at, one.key, place)

    def _refuse_retired(self, keys: Sequence[SegmentKey], identities: Sequence[CallIdentity]) -> None:
        retired = {rollout: self.retirements.of(rollout) for rollout in {call.rollout_id for call in identities}}
        for key, call in zip(keys, identities, strict=True):
            if (call.model_call_id, call.digest) in retired[call.rollout_id]:
                raise StagedCallMissingError(
                    str(key), f"call {call.model_call_id} of rollout {call.rollout_id} was retired"
                )


@dataclass(frozen=True, slots=True)
class _Job:
    """The rows that are wanted of one row group."""

    segment: str
    row_group: int
    wanted: tuple[_Wanted, ...]


def parse_keys(staging_keys: Sequence[str]) -> list[SegmentKey]:
    """Return keys as they were asked for.

    Raises:
        StagedCallMissingError: One is no key of such a store, or is there twice.
    """
    keys: list[SegmentKey] = []
    seen: set[str] = set()
    for text in staging_keys:
        try:
            keys.append(parse_key(text))
        except ValueError as error:
            raise StagedCallMissingError(str(text), str(error)) from error
        if text in seen:
            raise StagedCallMissingError(text, "it is asked for twice")
        seen.add(text)
    return keys


def _require_store(key: SegmentKey, reader: SegmentReader) -> None:
    if key.store_id != reader.facts.store_id:
        raise ForeignKeyError(str(key), key.store_id, reader.facts.store_id, reader.place)


def _found(one: _Wanted, table: pa.Table, reader: SegmentReader) -> FoundRow:
    place = f"{reader.place}, row group {one.place.row_group}"
    identity = require_identity(table, one.place.row, one.key, place)
    return FoundRow(one.key, identity, table, one.place.row, reader.name, f"{place}, row {one.place.row}")


def _named(row: FoundRow, take: Callable[[FoundRow], T]) -> T:
    try:
        return take(row)
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # a damaged cell may be anything
        raise ValueError(f"{row.place}: call {row.identity.model_call_id} is damaged: {error}") from error
