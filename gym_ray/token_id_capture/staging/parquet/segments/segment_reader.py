"""One segment, read by ranges: its footer once, then exactly the columns that somebody asks for.

A segment holds a thousand calls and gigabytes of media; who wants one call must not move the rest. Whatever is wrong
with a file is one ``ValueError`` that names the file: damaged bytes never become a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND
from gym_ray.token_id_capture.staging.parquet.segments.schema import SegmentFacts, check_metadata
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import read_footer
from gym_ray.token_id_capture.staging.parquet.segments.segment_ranges import SegmentRanges, read_columns

__all__ = ["SegmentReader"]

_TAIL_BYTES: Final = 160 * 1024
"""Read first: the footer of a full segment of calls takes about 120 KiB, a small segment is here as a whole."""


class SegmentReader:
    """A segment whose footer has been read and checked; may be shared by threads.

    Args:
        store: Where it lies.
        name: Its name there.
        kind: The kind of rows that it must hold.

    Raises:
        StorageMissingError: There is no such segment.
        StorageError: It could not be read.
        ValueError: It is truncated or damaged, no Parquet file, no segment, or of another version or kind.
    """

    def __init__(self, store: SegmentStore, name: str, *, kind: str = CALLS_KIND) -> None:
        self.name = name
        self._store = store
        footer = read_footer(store, name, _TAIL_BYTES)
        self.size = footer.size
        self._whole = footer.tail if len(footer.tail) == footer.size else None
        self._metadata = footer.metadata
        self.facts: SegmentFacts = check_metadata(self._metadata.metadata, file=self.place, kind=kind)
        self.weight = footer.weight + len(self._whole or b"")

    @property
    def place(self) -> str:
        """Store and name, for messages."""
        return f"{self._store.place}/{self.name}"

    @property
    def row_groups(self) -> int:
        """How many row groups there are."""
        return int(self._metadata.num_row_groups)

    def rows(self, row_group: int) -> int:
        """Return how many rows a row group has."""
        return int(self._metadata.row_group(row_group).num_rows)

    def locate(self, file_row: int) -> tuple[int, int]:
        """Return the row group of a row that is counted over the whole file, and the row in it.

        Raises:
            ValueError: The file has no such row.
        """
        row = file_row
        for row_group in range(self.row_groups):
            rows = self.rows(row_group)
            if row < rows:
                return row_group, row
            row -= rows
        raise ValueError(f"{self.place}: it has no row {file_row}")

    def read(self, row_group: int, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Return columns of one row group; nothing else of the file is fetched, and neighbours come in one request.

        Args:
            row_group: Counts from 0.
            columns: Top-level columns.
            schema: What the columns must look like.

        Raises:
            StorageMissingError: The segment is gone.
            StorageError: It could not be read.
            ValueError: The row group or a column is not there, or damaged.
        """
        if not 0 <= row_group < self.row_groups:
            raise ValueError(f"{self.place}: it has no row group {row_group}, only {self.row_groups}")
        ranges = SegmentRanges(self._store, self.name, self.size, self._whole)
        return read_columns(ranges, self._metadata, row_group, columns, schema)
