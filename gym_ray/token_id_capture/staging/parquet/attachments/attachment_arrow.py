"""Arrow tables, batches and arrays as one Arrow IPC stream, written a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from gym_ray.errors import RefusedRecordError
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_bytes import regrouped
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import (
    ARROW_ARRAY,
    ARROW_CHUNKED_ARRAY,
    ARROW_COLUMN,
    ARROW_RECORD_BATCH,
    ARROW_TABLE,
)

__all__ = ["ArrowSource"]

_BATCH_BYTES: Final = 4 << 20


class ArrowSource:
    """The bytes of an Arrow IPC stream.

    Args:
        kind: What is stored, one of :data:`attachment_kinds.ARROW_KINDS`.
        shape: Rows and columns, or the length of an array.
        table: The rows.
    """

    __slots__ = ("_table", "kind", "nbytes", "shape")

    def __init__(self, kind: str, shape: tuple[int, ...], table: pa.Table) -> None:
        self.kind, self.shape, self._table = kind, shape, table
        counted = pa.MockOutputStream()
        with pa.ipc.new_stream(counted, table.schema) as writer:
            for batch in self._batches():
                writer.write_batch(batch)
        self.nbytes: int = counted.size()

    @classmethod
    def of(cls, label: str, value: Any) -> ArrowSource:
        """Return the stream of a table, a record batch, an array or a chunked array.

        Raises:
            RefusedRecordError: It is inconsistent, or Arrow cannot write it.
        """
        try:
            value.validate()
            if isinstance(value, pa.Table):
                return cls(ARROW_TABLE, value.shape, value)
            if isinstance(value, pa.RecordBatch):
                return cls(ARROW_RECORD_BATCH, value.shape, pa.Table.from_batches([value]))
            kind = ARROW_CHUNKED_ARRAY if isinstance(value, pa.ChunkedArray) else ARROW_ARRAY
            return cls(kind, (len(value),), pa.table({ARROW_COLUMN: value}))
        except pa.ArrowException as error:
            raise RefusedRecordError(f"attachment {label} cannot be written as Arrow IPC: {error}") from error

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield the stream in parts of ``max_bytes``, the last one shorter."""
        return regrouped(self._written(), max_bytes)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        row_bytes = max(1, self._table.nbytes // max(1, self._table.num_rows))
        yield from self._table.to_batches(max_chunksize=max(1, _BATCH_BYTES // row_bytes))

    def _written(self) -> Iterator[memoryview]:
        taken = _Taken()
        with pa.ipc.new_stream(pa.PythonFile(taken, "w"), self._table.schema) as writer:
            for batch in self._batches():
                writer.write_batch(batch)
                yield from taken.take()
        yield from taken.take()


class _Taken:
    """A file that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self.closed = False
        self._blocks: list[memoryview] = []

    def write(self, data: bytes) -> int:
        self._blocks.append(memoryview(bytes(data)))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[memoryview]:
        blocks, self._blocks = self._blocks, []
        return blocks
