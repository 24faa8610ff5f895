"""The right to write compacted token segments: of one run at a time, whatever became of the runs before it.

A run that was stopped for long would otherwise publish, after all, rows that were dropped and forgotten meanwhile. So a
run writes its segments under consecutive numbers, and the next run puts an empty one under the next number of every
run before it: that run cannot publish any more, for its number is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gym_ray.errors import StorageExistsError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.committer import SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    EVENTS_KIND,
    TOKENS_KIND,
    SegmentName,
    new_writer,
    partition_prefix,
)
from gym_ray.token_id_capture.staging.parquet.segments.schema import writer_options
from gym_ray.token_id_capture.staging.parquet.segments.segment_writer import SegmentFile, segment_file
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Origins, origins_of
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import EVENTS_SCHEMA, LOG_PROB_COLUMNS, TOKENS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import with_rollout_keys
from gym_ray.token_id_capture.staging.parquet.tokens.token_writers import (
    ClosedWriter,
    claim_number,
    close_claim,
    read_compacting_claim,
    shown_claims,
)

__all__ = ["CompactionClaim"]


class CompactionClaim:
    """The claim of one run; when it is made, no run before it can publish any more.

    Args:
        store: The store; must be able to create exclusively.
        store_id: Its identity.
        partition: The partition.
        written_at: What the segments are to say of their time, seconds since 1970.

    Raises:
        CaptureError: A claim is damaged.
        StorageError: It could not be done.
    """

    def __init__(self, store: SegmentStore, store_id: str, partition: str, written_at: float) -> None:
        self._store, self._store_id, self._partition = store, store_id, partition
        self._written_at = written_at
        self._writers = {TOKENS_KIND: new_writer(), EVENTS_KIND: new_writer()}
        self._written = dict.fromkeys(self._writers, 0)
        self._number = claim_number(store, partition, self._writers, compacts=True)
        closed = shown_claims(partition, store.list(f"{partition_prefix(partition)}writers/")).closed
        for number in range(self._number):
            writers = None if number in closed else read_compacting_claim(store, partition, number)
            if writers is not None:
                self._end(number, writers)

    def write(
        self, kind: str, rollout_ids: Sequence[str], origins: Origins, write: Callable[[SegmentFile], None]
    ) -> str:
        """Write a segment, and return its name; it is there, and counts, from then on.

        Args:
            kind: What its rows are.
            rollout_ids: The rollout of each row.
            origins: Where the rows were first, and what the segment stands for.
            write: Writes the rows.

        Raises:
            StorageExistsError: A later run has taken over; this one can write nothing more.
            StorageError: It could not be written.
        """
        name = SegmentName(self._partition, self._writers[kind], self._written[kind], kind)
        self._publish(name, rollout_ids, origins, write)
        self._written[kind] += 1
        return str(name)

    def close(self) -> None:
        """Say that this run writes no more.

        Raises:
            StorageError: It could not be done; the next run does it.
        """
        closed = [ClosedWriter(writer, kind, self._written[kind]) for kind, writer in self._writers.items()]
        close_claim(self._store, self._partition, self._number, closed)

    def _end(self, number: int, writers: dict[str, str]) -> None:
        """Take the next number of each writer of an earlier run, and close its claim."""
        closed = []
        for kind, writer in writers.items():
            seq = 0
            while not self._take(SegmentName(self._partition, writer, seq, kind)):
                seq += 1
            closed.append(ClosedWriter(writer, kind, seq + 1))
        close_claim(self._store, self._partition, number, closed)

    def _take(self, name: SegmentName) -> bool:
        if self._store.exists(str(name)):
            return False
        try:
            self._publish(name, (), origins_of(self._written_at, (), (), {}), lambda _: None)
        except StorageExistsError:
            return False
        return True

    def _publish(
        self, name: SegmentName, rollout_ids: Sequence[str], origins: Origins, write: Callable[[SegmentFile], None]
    ) -> None:
        is_tokens = name.kind == TOKENS_KIND
        options = writer_options(LOG_PROB_COLUMNS if is_tokens else ())
        keyed = with_rollout_keys(TOKENS_SCHEMA if is_tokens else EVENTS_SCHEMA, rollout_ids, origins)
        with self._store.stream(str(name)) as value:
            with segment_file(SegmentStream(name, value, lambda: None), keyed, self._store_id, options) as file:
                write(file)
            value.publish()
