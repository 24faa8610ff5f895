"""One segment of token records or events: its footer, and the columns of one row group, by small ranges.

Unlike segments of calls, these are often small, and what precedes the footer are tokens of rollouts that nobody asked
for. So little more than the footer is read to learn which rollouts are in it, and it says so exactly: it has a
key for the rollout of each row, where statistics would only give a range. A wrong key would hide a record, so the keys
carry a checksum, which nothing else in a footer does.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gym_ray.errors import StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.schema import check_metadata

__all__ = ["TokenSegmentFile", "rollout_key", "with_rollout_keys"]

_KEYS: Final = b"gym_ray.rollout_keys"
_KEY_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 8
_TAIL_BYTES: Final = 12288
"""Enough for the footer of 128 records; more is fetched where a footer has more."""
_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
_PARSED_OVER_STORED: Final = 13
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)


def rollout_key(rollout_id: str) -> int:
    """Return the key of a rollout; two rollouts may share one, which only costs a look at the rows."""
    return int.from_bytes(hashlib.blake2b(rollout_id.encode(), digest_size=_KEY_BYTES).digest(), "little")


def with_rollout_keys(schema: pa.Schema, rollout_ids: Sequence[str]) -> pa.Schema:
    """Return a schema for a file that says which rollout each of its rows, in order, belongs to."""
    keys = np.array([rollout_key(rollout_id) for rollout_id in rollout_ids], "<u4").tobytes()
    return schema.with_metadata({_KEYS: base64.b64encode(keys + _checksum(keys))})


class TokenSegmentFile:
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

    def __init__(self, store: SegmentStore, name: str, kind: str) -> None:
        self._store, self._name = store, name
        tail, self._size = store.read_tail(name, _TAIL_BYTES)
        footer = self._footer(tail)
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(footer))
        except _DAMAGE as error:
            raise self._damaged(f"its footer cannot be read: {error}") from error
        said: dict[bytes, bytes] = self._metadata.metadata or {}
        check_metadata(said, file=f"{store.place}/{name}", kind=kind)
        self.weight = len(footer) * _PARSED_OVER_STORED
        self._keys = said.get(_KEYS)

    def row_ends(self) -> NDArray[np.int64]:
        """Return, for each row group, how many rows there are up to its end."""
        rows = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        return np.cumsum(rows, dtype=np.int64)

    def rollout_keys(self) -> NDArray[np.uint32]:
        """Return the key of each row's rollout.

        Raises:
            ValueError: They are missing or damaged.
        """
        try:
            data = base64.b64decode(self._keys or b"", validate=True)
        except ValueError as error:
            raise self._damaged(f"its keys of rollouts are damaged: {error}") from error
        keys, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if len(keys) != _KEY_BYTES * self._metadata.num_rows or _checksum(keys) != checksum:
            raise self._damaged("its keys of rollouts are missing or damaged")
        return np.frombuffer(keys, "<u4")

    def read(self, row_group: int, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Return columns of one row group; those that lie next to each other come by one request.

        Raises:
            StorageError: They could not be read.
            ValueError: They are damaged, or not there.
        """
        ranges = _Ranges(self._store, self._name, self._size)
        try:
            file = pq.ParquetFile(
                pa.PythonFile(ranges, mode="r"),
                metadata=self._metadata,
                page_checksum_verification=True,
                pre_buffer=True,  # joins neighbouring columns; asking damaged metadata for their places may abort
            )
            table = file.read_row_group(row_group, columns=list(columns), use_threads=False)
            table.validate(full=True)
        except _DAMAGE as error:
            if ranges.failure is not None:
                raise ranges.failure from error
            raise self._damaged(f"row group {row_group} cannot be read: {error}") from error
        if table.num_rows != self._metadata.row_group(row_group).num_rows:
            raise self._damaged(f"row group {row_group} has another number of rows than it says")
        for column in columns:
            if column not in table.column_names or table.schema.field(column).type != schema.field(column).type:
                raise self._damaged(f"row group {row_group} has no column {column} of type {schema.field(column).type}")
        return table

    def _footer(self, tail: bytes) -> bytes:
        if self._size < len(_MAGIC) + _END_BYTES or not tail.endswith(_MAGIC):
            raise self._damaged("it is truncated, or no Parquet file")
        length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
        if length + len(_MAGIC) > self._size:
            raise self._damaged(f"its footer is said to have {length} bytes, more than the file")
        if length <= len(tail):
            return tail[-length:]
        return self._store.read_range(self._name, self._size - length, length - len(tail)) + tail

    def _damaged(self, problem: str) -> ValueError:
        return ValueError(f"{self._store.place}/{self._name}: {problem}")


class _Ranges:
    """A segment as a file that is fetched range by range.

    Attributes:
        failure: What the store raised instead of giving a range.
    """

    def __init__(self, store: SegmentStore, name: str, size: int) -> None:
        self.closed = False
        self.failure: StorageError | None = None
        self._store, self._name, self._size, self._at = store, name, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        start = self._at
        self._at = end = self._size if length < 0 else min(self._size, start + length)
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


def _checksum(keys: Any) -> bytes:
    return hashlib.blake2b(keys, digest_size=_CHECKSUM_BYTES).digest()
