"""One segment, read by ranges: its footer once, then exactly the columns that somebody asks for.

A segment holds a thousand calls and gigabytes of media; who wants one call must not move the rest. Whatever is wrong
with a file is one ``ValueError`` that names the file: damaged bytes never become a table.

The description of a column chunk is not asked for from Python before the library itself has gone through it: pyarrow 26
ends the process if it is damaged. So the ranges that are read are those that the library asks for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gym_ray.errors import StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.layout import CALLS_KIND
from gym_ray.token_id_capture.staging.parquet.schema import SegmentFacts, check_metadata

__all__ = ["SegmentReader"]

_TAIL_BYTES: Final = 160 * 1024
"""Read first: the footer of a full segment of calls takes about 120 KiB, a small segment is here as a whole."""
_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
_PARSED_OVER_STORED: Final = 13
"""Memory that a parsed footer takes, for each of its bytes; measured."""
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)
"""What the Parquet library raises when bytes are not what they should be."""

_Piece = tuple[int, bytes]


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
        tail, self.size = store.read_tail(name, _TAIL_BYTES)
        footer_bytes = self._footer_bytes(tail)
        self._data_end = self.size - _END_BYTES - footer_bytes
        if footer_bytes + _END_BYTES > len(tail):
            start = self._data_end
            tail = store.read_range(name, start, self.size - len(tail) - start) + tail
        self._whole = tail if len(tail) == self.size else None
        try:
            self._metadata = pq.read_metadata(pa.PythonFile(self._ranges((self.size - len(tail), tail)), mode="r"))
        except _DAMAGE as error:
            raise self._damaged(f"its footer cannot be read: {error}") from error
        self._checked: dict[str, int] = {}
        self.facts: SegmentFacts = check_metadata(self._metadata.metadata, file=self.place, kind=kind)
        self.weight = footer_bytes * _PARSED_OVER_STORED + len(self._whole or b"")

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
        raise self._damaged(f"it has no row {file_row}")

    def text_range(self, row_group: int, column: str) -> tuple[str, str] | None:
        """Return the least and the greatest text of a column in a row group, None where the footer does not say.

        A long text may be cut short in the footer; the range then still encloses every text.

        Raises:
            ValueError: The footer is damaged.
        """
        try:
            chunk = self._metadata.row_group(row_group).column(self._checked_column(column))
            found = chunk.statistics if chunk.physical_type == "BYTE_ARRAY" else None
            if found is None or not found.has_min_max:
                return None
            least, greatest = found.min, found.max
        except _DAMAGE as error:
            raise self._damaged(f"the statistics of row group {row_group} cannot be read: {error}") from error
        if not isinstance(least, str) or not isinstance(greatest, str):
            raise self._damaged(f"column {column} of row group {row_group} is said to hold no text")
        return least, greatest

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
            raise self._damaged(f"it has no row group {row_group}, only {self.row_groups}")
        ranges = self._ranges()
        try:
            file = pq.ParquetFile(
                pa.PythonFile(ranges, mode="r"),
                metadata=self._metadata,
                page_checksum_verification=True,
                pre_buffer=True,  # joins the chunks of neighbouring columns into one range
            )
            table = file.read_row_group(row_group, columns=list(columns), use_threads=False)
            table.validate(full=True)
        except _DAMAGE as error:
            if ranges.failure is not None:
                raise ranges.failure from error
            raise self._damaged(f"row group {row_group} cannot be read: {error}") from error
        if table.num_rows != self.rows(row_group):
            raise self._damaged(
                f"row group {row_group} has {table.num_rows} rows, not the {self.rows(row_group)} it says"
            )
        for column in columns:
            if column not in table.column_names or table.schema.field(column).type != schema.field(column).type:
                raise self._damaged(f"row group {row_group} has no column {column} of type {schema.field(column).type}")
        return table

    def _checked_column(self, column: str) -> int:
        """Return the place of a column whose descriptions, in all row groups, were found to be sound."""
        if column not in self._checked:
            schema = self._metadata.schema
            at = next((at for at in range(len(schema)) if schema.column(at).path == column), -1)
            if at < 0:
                raise ValueError(f"it has no column {column}")
            probe = _NoData(self._store, self.name, self.size, ())
            file = pq.ParquetFile(pa.PythonFile(probe, mode="r"), metadata=self._metadata, pre_buffer=True)
            try:
                file.read_row_groups(range(self.row_groups), columns=[column], use_threads=False)
            except OSError:
                if not probe.asked:
                    raise
            self._checked[column] = at
        return self._checked[column]

    def _footer_bytes(self, tail: bytes) -> int:
        if self.size < len(_MAGIC) + _END_BYTES or not tail.endswith(_MAGIC):
            raise self._damaged("it is truncated, or no Parquet file")
        footer_bytes = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
        if footer_bytes + _END_BYTES + len(_MAGIC) > self.size:
            raise self._damaged(f"its footer is said to have {footer_bytes} bytes, more than the file")
        return footer_bytes

    def _ranges(self, *pieces: _Piece) -> _Ranges:
        return _Ranges(self._store, self.name, self.size, pieces if self._whole is None else [(0, self._whole)])

    def _damaged(self, problem: str) -> ValueError:
        return ValueError(f"{self.place}: {problem}")


class _Ranges:
    """A segment as a file: what was read before is here, the rest is fetched range by range.

    Attributes:
        failure: What the store answered instead of a range.
    """

    def __init__(self, store: SegmentStore, name: str, size: int, pieces: Sequence[_Piece]) -> None:
        self.closed = False
        self.failure: StorageError | None = None
        self._store, self._name, self._size, self._pieces, self._at = store, name, size, pieces, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        start = self._at
        self._at = end = self._size if length < 0 else min(self._size, start + length)
        for at, data in self._pieces:
            if at <= start <= end <= at + len(data):
                return data[start - at : end - at]
        try:
            return self._store.read_range(self._name, start, end - start)
        except StorageError as error:
            self.failure = error
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class _NoData(_Ranges):
    """A segment of which nothing but the footer may be read.

    Attributes:
        asked: Whether the library got as far as to ask for data, all descriptions being sound.
    """

    asked = False

    def read(self, length: int = -1) -> bytes:
        self.asked = True
        raise OSError(f"only the footer is read here, not {length} bytes of data")
