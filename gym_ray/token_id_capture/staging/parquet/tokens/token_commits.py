"""Writes token records and events into segments, sorted by rollout; what was given is durable when a method returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from gym_ray.errors import StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.committer import (
    CommitStats,
    RowPlace,
    SegmentCommitter,
    SegmentStream,
)
from gym_ray.token_id_capture.staging.parquet.segments.identity import open_identity
from gym_ray.token_id_capture.staging.parquet.segments.layout import EVENTS_KIND, TOKENS_KIND
from gym_ray.token_id_capture.staging.parquet.segments.schema import (
    CALLS_PER_ROW_GROUP,
    TOKENS_PER_ROW_GROUP,
    writer_options,
)
from gym_ray.token_id_capture.staging.parquet.segments.segment_writer import segment_file
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import EventRow, table_of_events
from gym_ray.token_id_capture.staging.parquet.tokens.token_rows import TokenRow, table_of_records
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import EVENTS_SCHEMA, LOG_PROB_COLUMNS, TOKENS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import with_rollout_keys
from gym_ray.token_id_capture.staging.parquet.tokens.token_writers import ClosedWriter, claim_number, close_claim

__all__ = ["TokenCommits"]

_EVENTS_PER_ROW_GROUP: Final = 128
_log = logging.getLogger(__name__)

RowT = TypeVar("RowT", TokenRow, EventRow)


class TokenCommits:
    """The two writers of a sink: one for records, one for events.

    Args:
        store: Where the segments go.
        partition: First part of their names.
        timeout_s: A row that is not known to be durable by then has failed.
        max_pending_bytes: Callers wait while this much is in memory.

    Raises:
        StorageError: The store could not be opened.
        ValueError: The partition has no possible name, or ``store.json`` there is not of this format.
    """

    def __init__(self, store: SegmentStore, partition: str, *, timeout_s: float, max_pending_bytes: int) -> None:
        self._store, self._partition, self._timeout_s = store, partition, timeout_s
        store_id = open_identity(store)

        def write_records(stream: SegmentStream, rows: list[TokenRow]) -> Sequence[RowPlace]:
            sizes = [row.tokens for row in rows]
            return _write(stream, store_id, TOKENS_SCHEMA, rows, sizes, CALLS_PER_ROW_GROUP, table_of_records)

        def write_events(stream: SegmentStream, rows: list[EventRow]) -> Sequence[RowPlace]:
            sizes = [0] * len(rows)
            return _write(stream, store_id, EVENTS_SCHEMA, rows, sizes, _EVENTS_PER_ROW_GROUP, table_of_events)

        self._records: SegmentCommitter[TokenRow] = SegmentCommitter(
            store,
            partition=partition,
            kind=TOKENS_KIND,
            write=write_records,
            max_pending_bytes=max_pending_bytes,
            timeout_s=timeout_s,
            name="token-commit",
        )
        self._events: SegmentCommitter[EventRow] = SegmentCommitter(
            store,
            partition=partition,
            kind=EVENTS_KIND,
            write=write_events,
            max_pending_bytes=max_pending_bytes,
            timeout_s=timeout_s,
            name="event-commit",
        )
        self._lock = threading.Lock()
        self._claim: int | None = None
        self._segments = {TOKENS_KIND: 0, EVENTS_KIND: 0}
        self._closed = False

    def keep_record(self, row: TokenRow) -> RowPlace:
        """Keep a record.

        Raises:
            StorageTimeoutError: It is not known to be durable in time.
            StorageError: It could not be written, or this is closed.
        """
        self._claim_number()
        return self._noted(TOKENS_KIND, self._records.commit(row))

    def keep_event(self, row: EventRow) -> RowPlace:
        """Keep an event; the rest as :meth:`keep_record`."""
        self._claim_number()
        return self._noted(EVENTS_KIND, self._events.commit(row))

    def stats(self) -> tuple[CommitStats, CommitStats]:
        """Return what was done so far with records, and with events."""
        return self._records.stats(), self._events.stats()

    def close(self) -> None:
        """Write what waits, end the threads, and say that no more comes. Can be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        ended = [committer.close(self._timeout_s) for committer in (self._records, self._events)]
        if self._claim is None or not all(ended):
            return
        closed = [ClosedWriter(one.writer, one.kind, self._segments[one.kind]) for one in (self._records, self._events)]
        try:
            close_claim(self._store, self._partition, self._claim, closed)
        except StorageError as error:  # readers go on asking for this writer's next segment, which costs little
            _log.warning("the writers of %s could not be closed: %s", self._store.place, error)

    def _claim_number(self) -> None:
        """Make the writers known before their first segment is; where nothing can be claimed, listings must do."""
        with self._lock:
            if self._claim is None and self._store.exclusive:
                writers = {TOKENS_KIND: self._records.writer, EVENTS_KIND: self._events.writer}
                self._claim = claim_number(self._store, self._partition, writers)

    def _noted(self, kind: str, place: RowPlace) -> RowPlace:
        with self._lock:
            self._segments[kind] = max(self._segments[kind], place.seq + 1)
        return place


def _write(
    stream: SegmentStream,
    store_id: str,
    schema: pa.Schema,
    rows: list[RowT],
    token_counts: Sequence[int],
    rows_per_group: int,
    table_of: Callable[[Sequence[RowT]], pa.Table],
) -> Sequence[RowPlace]:
    """Write rows sorted by rollout, and return the place of each, in the order in which they were given."""
    order = sorted(range(len(rows)), key=lambda at: rows[at].rollout_id)
    places: dict[int, RowPlace] = {}
    options = writer_options(LOG_PROB_COLUMNS if schema is TOKENS_SCHEMA else ())
    keyed = with_rollout_keys(schema, [rows[at].rollout_id for at in order])
    with segment_file(stream, keyed, store_id, options) as file:
        group: list[int] = []
        tokens = 0
        for at in order:
            group.append(at)
            tokens += token_counts[at]
            if len(group) >= rows_per_group or tokens >= TOKENS_PER_ROW_GROUP or at == order[-1]:
                number = file.write_row_group(table_of([rows[one] for one in group]))
                places.update({one: stream.place(number, row) for row, one in enumerate(group)})
                group, tokens = [], 0
    return [places[at] for at in range(len(rows))]
