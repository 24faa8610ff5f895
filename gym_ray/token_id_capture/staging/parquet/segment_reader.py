"""One segment, read by ranges: its footer once, then exactly the columns that somebody asks for.

A segment holds a thousand calls and gigabytes of media; who wants one call must not move the rest. Whatever is wrong
with a file is one ``ValueError`` that names the file: damaged bytes never become a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.layout import CALLS_KIND
from gym_ray.token_id_capture.staging.parquet.schema import SegmentFacts, check_metadata

__all__ = ["SegmentReader"]

_TAIL_BYTES: Final = 160 * 1024
"""Read first: the footer of a full segment of calls takes about 120 KiB, a small segment is here as a whole."""
_GAP_BYTES: Final = 64 * 1024
"""Columns that lie further apart than this are fetched by a request each."""
_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
_PARSED_OVER_STORED: Final = 13
"""Memory that a parsed footer takes, for each of its bytes; measured."""
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)
"""What the Parquet library raises when bytes are not what they should be."""

_Span = tuple[int, int]


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
            self._metadata = pq.read_metadata(self._file([(self.size - len(tail), tail)]))
        except _DAMAGE as error:
            raise self._damaged(f"its footer cannot be read: {error}") from error
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
        """
        try:
            chunks = self._metadata.row_group(row_group)
            for at in range(chunks.num_columns):
                chunk = chunks.column(at)
                if chunk.path_in_schema == column:
                    found = chunk.statistics
                    return (found.min, found.max) if found is not None and found.has_min_max else None
        except _DAMAGE as error:
            raise self._damaged(f"the statistics of row group {row_group} cannot be read: {error}") from error
        return None

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
        pieces = self._fetch(self._spans(row_group, columns))
        try:
            file = pq.ParquetFile(
                self._file(pieces), metadata=self._metadata, page_checksum_verification=True, pre_buffer=False
            )
            table = file.read_row_group(row_group, columns=list(columns), use_threads=False)
            table.validate(full=True)
        except _DAMAGE as error:
            raise self._damaged(f"row group {row_group} cannot be read: {error}") from error
        for column in columns:
            if column not in table.column_names or table.schema.field(column).type != schema.field(column).type:
                raise self._damaged(f"row group {row_group} has no column {column} of type {schema.field(column).type}")
        return table

    def _spans(self, row_group: int, columns: Iterable[str]) -> list[_Span]:
        """Return the ranges of the file that hold the columns, neighbours joined."""
        wanted = set(columns)
        try:
            chunks = self._metadata.row_group(row_group)
            spans = [
                _span(chunk)
                for chunk in (chunks.column(at) for at in range(chunks.num_columns))
                if chunk.path_in_schema.partition(".")[0] in wanted
            ]
        except _DAMAGE as error:
            raise self._damaged(f"the columns of row group {row_group} cannot be found: {error}") from error
        joined: list[_Span] = []
        for start, end in sorted(spans):
            if not len(_MAGIC) <= start < end <= self._data_end:
                raise self._damaged(f"row group {row_group} is said to lie outside the file, from {start} to {end}")
            if joined and start - joined[-1][1] <= _GAP_BYTES:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def _fetch(self, spans: Iterable[_Span]) -> list[tuple[int, bytes]]:
        if self._whole is not None:
            return [(0, self._whole)]
        pieces = [(start, self._store.read_range(self.name, start, end - start)) for start, end in spans]
        for (start, end), (_, data) in zip(spans, pieces, strict=True):
            if len(data) != end - start:
                raise self._damaged(f"it ends at {start + len(data)}, in the middle of a column")
        return pieces

    def _footer_bytes(self, tail: bytes) -> int:
        if self.size < len(_MAGIC) + _END_BYTES or not tail.endswith(_MAGIC):
            raise self._damaged("it is truncated, or no Parquet file")
        footer_bytes = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
        if footer_bytes + _END_BYTES + len(_MAGIC) > self.size:
            raise self._damaged(f"its footer is said to have {footer_bytes} bytes, more than the file")
        return footer_bytes

    def _file(self, pieces: Sequence[tuple[int, bytes]]) -> pa.NativeFile:
        return pa.PythonFile(_Pieces(self.size, pieces), mode="r")

    def _damaged(self, problem: str) -> ValueError:
        return ValueError(f"{self.place}: {problem}")


def _span(chunk: Any) -> _Span:
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


class _Pieces:
    """A file of which some pieces are here; to the Parquet library it looks whole."""

    def __init__(self, size: int, pieces: Sequence[tuple[int, bytes]]) -> None:
        self.closed = False
        self._size, self._pieces, self._at = size, pieces, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        end = self._size if length < 0 else min(self._size, self._at + length)
        for start, data in self._pieces:
            if start <= self._at <= end <= start + len(data):
                found = data[self._at - start : end - start]
                self._at = end
                return found
        raise OSError(f"bytes {self._at} to {end} belong to no column that was asked for")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
