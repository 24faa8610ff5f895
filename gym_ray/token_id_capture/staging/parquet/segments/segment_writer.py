"""The Parquet file of a segment: opened on a stream, filled row group by row group, never published by itself.

A Parquet writer that is closed by an exception leaves a valid file that is too short. Here the footer is written in one
place, after the last row; a file that was left before is given up together with its stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gym_ray.token_id_capture.staging.parquet.segments.committer import SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.schema import SegmentFacts, file_metadata, writer_options
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import FooterHolder

__all__ = ["SegmentFile", "segment_file"]

_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""The encoder writes a few bytes at a time, and each write into Python waits for the interpreter: so most of them go
into this buffer."""


class SegmentFile:
    """A segment that rows are written to.

    Attributes:
        row_groups: How many row groups it has by now.
        rows: How many rows it has by now.
    """

    def __init__(self, writer: pq.ParquetWriter, stream: SegmentStream) -> None:
        self._writer, self._stream = writer, stream
        self.row_groups = 0
        self.rows = 0

    def write_row_group(self, rows: pa.Table) -> int:
        """Write rows as one row group, and return its number.

        Raises:
            OSError: The stream took no more.
        """
        if not self.row_groups:
            self._stream.encoding_begins()
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self.row_groups += 1
        self.rows += rows.num_rows
        return self.row_groups - 1


@contextmanager
def segment_file(
    stream: SegmentStream, schema: pa.Schema, store_id: str, options: dict[str, Any] | None = None
) -> Iterator[SegmentFile]:
    """Open the Parquet file of a segment; after the block it is whole in the stream, footer and seal included.

    Args:
        stream: The segment; who gave it publishes it.
        schema: Of its rows.
        store_id: The store that it is written for.
        options: Of the Parquet writer, if not those of ``schema.writer_options()``.

    Raises:
        OSError: The stream took no more; so does whatever is written into the block's file.
    """
    holder = FooterHolder(stream.value)
    buffered = pa.BufferedOutputStream(pa.PythonFile(holder, mode="w"), _BUFFER_BYTES)
    try:
        writer = pq.ParquetWriter(buffered, schema, **(options or writer_options()))
        try:
            yield SegmentFile(writer, stream)
            writer.add_key_value_metadata(file_metadata(SegmentFacts(stream.name.kind, store_id, str(stream.name))))
            buffered.flush()
            holder.hold()
        finally:
            writer.close()
        buffered.detach()
        holder.release()
    except BaseException:
        with suppress(OSError, ValueError, pa.ArrowException):
            buffered.close()
        raise
