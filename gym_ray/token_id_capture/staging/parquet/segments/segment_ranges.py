"""A segment as a file that is fetched range by range, and the columns of one row group of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gym_ray.errors import StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import DAMAGE

__all__ = ["SegmentRanges", "read_columns"]


def read_columns(
    ranges: SegmentRanges, metadata: Any, row_group: int, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return columns of one row group; nothing else is fetched, and neighbours come in one request.

    Args:
        ranges: The segment.
        metadata: Its footer, checked.
        row_group: Counts from 0; the segment has it.
        columns: Top-level columns.
        schema: What they must look like.

    Raises:
        StorageMissingError: The segment is gone.
        StorageError: It could not be read.
        ValueError: A column is not there, or damaged.
    """
    try:
        file = pq.ParquetFile(
            pa.PythonFile(ranges, mode="r"),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=True,  # joins the chunks of neighbouring columns into one range
        )
        table = file.read_row_group(row_group, columns=list(columns), use_threads=False)
        table.validate(full=True)
    except DAMAGE as error:
        if ranges.failure is not None:
            raise ranges.failure from error
        raise ValueError(f"{ranges.place}: row group {row_group} cannot be read: {error}") from error
    rows = metadata.row_group(row_group).num_rows
    if table.num_rows != rows:
        raise ValueError(
            f"{ranges.place}: row group {row_group} has {table.num_rows} rows, not the {rows} that it says"
        )
    for column in columns:
        if column not in table.column_names or table.schema.field(column).type != schema.field(column).type:
            raise ValueError(
                f"{ranges.place}: row group {row_group} has no column {column} of type {schema.field(column).type}"
            )
    return table


class SegmentRanges:
    """What the Parquet library reads a segment from, once.

    Attributes:
        place: Store and name, for messages.
        failure: What the store answered instead of a range.

    Args:
        store: Where it lies.
        name: Its name there.
        size: Of the whole file.
        whole: All its bytes, where they were read before.
    """

    def __init__(self, store: SegmentStore, name: str, size: int, whole: bytes | None = None) -> None:
        self.closed = False
        self.place = f"{store.place}/{name}"
        self.failure: StorageError | None = None
        self._store, self._name, self._size, self._whole, self._at = store, name, size, whole, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def read(self, length: int = -1) -> bytes:
        """Return bytes from the place on."""
        start = self._at
        self._at = end = self._size if length < 0 else min(self._size, start + length)
        if self._whole is not None:
            return self._whole[start:end]
        try:
            return self._store.read_range(self._name, start, end - start)
        except StorageError as error:
            self.failure = error
            raise

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Read no more."""
        self.closed = True
