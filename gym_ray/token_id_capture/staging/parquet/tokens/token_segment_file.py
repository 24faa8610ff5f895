"""One segment of token records or events: its footer, and the columns of one row group, by small ranges.

Unlike segments of calls, these are often small, and what precedes the footer are tokens of rollouts that nobody asked
for. So little more than the footer is read to learn which rollouts are in it, and it says so exactly: it has a
key for the rollout of each row, where statistics would only give a range.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.schema import check_metadata
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import read_footer
from gym_ray.token_id_capture.staging.parquet.segments.segment_ranges import SegmentRanges, read_columns
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Origins

__all__ = ["TokenSegmentFile", "rollout_key", "with_rollout_keys"]

_KEYS: Final = b"gym_ray.rollout_keys"
_ORIGINS: Final = b"gym_ray.origins"
_KEY_BYTES: Final = 4
_TAIL_BYTES: Final = 12288
"""Enough for the footer of 128 records; more is fetched where a footer has more."""


def rollout_key(rollout_id: str) -> int:
    """Return the key of a rollout; two rollouts may share one, which only costs a look at the rows."""
    return int.from_bytes(hashlib.blake2b(rollout_id.encode(), digest_size=_KEY_BYTES).digest(), "little")


def with_rollout_keys(schema: pa.Schema, rollout_ids: Sequence[str], origins: Origins | None = None) -> pa.Schema:
    """Return a schema for a file that says which rollout each of its rows, in order, belongs to.

    Args:
        schema: The columns.
        rollout_ids: The rollout of each row.
        origins: Where the rows were first, if compaction writes them.
    """
    keys = np.array([rollout_key(rollout_id) for rollout_id in rollout_ids], "<u4").tobytes()
    metadata = {_KEYS: base64.b64encode(keys)}
    return schema.with_metadata(metadata if origins is None else {**metadata, _ORIGINS: origins.encoded()})


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
        footer = read_footer(store, name, _TAIL_BYTES)
        self._size, self._metadata, self.weight = footer.size, footer.metadata, footer.weight
        said: dict[bytes, bytes] = self._metadata.metadata or {}
        check_metadata(said, file=f"{store.place}/{name}", kind=kind)
        self._keys, self._origins = said.get(_KEYS), said.get(_ORIGINS)

    @property
    def size(self) -> int:
        """Bytes of the whole segment."""
        return self._size

    def row_ends(self) -> NDArray[np.int64]:
        """Return, for each row group, how many rows there are up to its end."""
        rows = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        return np.cumsum(rows, dtype=np.int64)

    def rollout_keys(self) -> NDArray[np.uint32]:
        """Return the key of each row's rollout.

        Raises:
            ValueError: They are missing, or not as many as there are rows.
        """
        try:
            keys = base64.b64decode(self._keys or b"", validate=True)
        except ValueError as error:
            raise self._damaged(f"its keys of rollouts are damaged: {error}") from error
        if len(keys) != _KEY_BYTES * self._metadata.num_rows:
            raise self._damaged("its keys of rollouts are missing or damaged")
        return np.frombuffer(keys, "<u4")

    def origins(self) -> Origins | None:
        """Return where its rows were first, None if they are where they were.

        Raises:
            ValueError: It cannot be read.
        """
        if self._origins is None:
            return None
        try:
            found = Origins.decoded(self._origins)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if len(found.rows) != self._metadata.num_rows:
            raise self._damaged(f"it says the origins of {len(found.rows)} rows and has {self._metadata.num_rows}")
        return found

    def read(self, row_group: int, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Return columns of one row group; those that lie next to each other come by one request.

        Raises:
            StorageError: They could not be read.
            ValueError: They are damaged, or not there.
        """
        ranges = SegmentRanges(self._store, self._name, self._size)
        return read_columns(ranges, self._metadata, row_group, columns, schema)

    def _damaged(self, problem: str) -> ValueError:
        return ValueError(f"{self._store.place}/{self._name}: {problem}")
