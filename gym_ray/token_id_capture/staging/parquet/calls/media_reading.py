"""The media parts of a segment, one row group in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

from gym_ray.token_id_capture.staging.parquet.calls.call_reading import StoredAttachment
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_SCHEMA, MEDIA_PART_BYTES
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

__all__ = ["media_parts"]


def media_parts(reader: SegmentReader, stored: StoredAttachment, *, first_part: int = 0) -> Iterator[memoryview]:
    """Yield the parts of an attachment from a part on; a part stays valid after the next was asked for.

    Nothing is yielded unless the file has as many rows as the attachment needs.

    Raises:
        StorageMissingError: The segment is gone.
        StorageError: It could not be read.
        ValueError: The parts are not where the row says, or damaged.
    """
    if not stored.nbytes:
        return
    if stored.media_row is None:
        raise ValueError(f"{reader.place}: attachment {stored.name!r} has {stored.nbytes} bytes, but no media row")
    count = -(-stored.nbytes // MEDIA_PART_BYTES)
    reader.locate(stored.media_row + count - 1)
    group, table = -1, None
    for part in range(first_part, count):
        row_group, row = reader.locate(stored.media_row + part)
        if table is None or row_group != group:
            group, table = row_group, reader.read(row_group, ["media_data"], CALLS_SCHEMA)
        value = table.column("media_data")[row]
        expected = min(MEDIA_PART_BYTES, stored.nbytes - part * MEDIA_PART_BYTES)
        if not value.is_valid or value.as_buffer().size != expected:
            raise ValueError(f"{reader.place}, row group {row_group}, row {row} is not part {part} of {stored.name!r}")
        yield memoryview(value.as_buffer())
