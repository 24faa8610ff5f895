"""A batch of staged calls as one segment: the rows of the calls first, then the bytes of their attachments, in parts.

Where a part will be is known before anything is written, so the rows can say it. Equal bytes are written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem, calls_table
from gym_ray.token_id_capture.staging.parquet.segments.committer import RowPlace, SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.schema import (
    CALLS_PER_ROW_GROUP,
    CALLS_SCHEMA,
    MEDIA_PART_BYTES,
    MEDIA_ROW,
    MEDIA_ROW_GROUP_BYTES,
    TOKENS_PER_ROW_GROUP,
)
from gym_ray.token_id_capture.staging.parquet.segments.segment_writer import segment_file

__all__ = ["MediaPlan", "row_group_sizes", "write_calls_segment"]

_MEDIA_COLUMN: Final = CALLS_SCHEMA.get_field_index("media_data")
_KIND_COLUMN: Final = CALLS_SCHEMA.get_field_index("row_kind")


def write_calls_segment(stream: SegmentStream, items: Sequence[CallItem], store_id: str) -> list[RowPlace]:
    """Write calls with all their attachments, and return the place of each call, in order.

    Raises:
        OSError: The stream took no more.
        StorageError: An attachment gave other bytes than were hashed.
    """
    media = MediaPlan(len(items))
    rows = [media.rows_of(item.attachments) for item in items]
    places: list[RowPlace] = []
    with segment_file(stream, CALLS_SCHEMA, store_id) as file:
        table = calls_table(items, rows)
        for size in row_group_sizes([item.delta_len for item in items]):
            group = file.write_row_group(table.slice(len(places), size))
            places.extend(stream.place(group, row) for row in range(size))
        for part_rows in media.row_groups():
            file.write_row_group(part_rows)
            del part_rows
    return places


def row_group_sizes(token_counts: Sequence[int]) -> Iterator[int]:
    """Yield how many calls each row group takes: few enough that fetching one call does not read too many."""
    calls = tokens = 0
    for count in token_counts:
        if calls and (calls >= CALLS_PER_ROW_GROUP or tokens + count > TOKENS_PER_ROW_GROUP):
            yield calls
            calls = tokens = 0
        calls += 1
        tokens += count
    if calls:
        yield calls


class MediaPlan:
    """The attachments of some calls, equal bytes once, and the rows that their parts will have.

    Args:
        first_row: Row of the file that the first part will have.
    """

    def __init__(self, first_row: int) -> None:
        self._next_row = first_row
        self._first_rows: dict[tuple[bytes, int], int] = {}
        self._kept: list[PreparedAttachment] = []

    def rows_of(self, attachments: Sequence[PreparedAttachment] | None) -> list[int | None] | None:
        """Return the first row of each attachment, None for one without bytes; None if none were supplied."""
        return None if attachments is None else [self._row_of(one) for one in attachments]

    def row_groups(self) -> Iterator[pa.Table]:
        """Yield tables that are a row group of media each: one row a part, small parts together.

        Raises:
            StorageError: An attachment gave other bytes than were hashed.
        """
        waiting: list[memoryview] = []
        size = 0
        for part in self._parts():
            waiting.append(part)
            size += part.nbytes
            del part  # a loop's variable keeps a part, that may be a copy, while the next one is made
            if size >= MEDIA_ROW_GROUP_BYTES:
                rows = _media_table(waiting)
                waiting, size = [], 0
                yield rows
                del rows
        if waiting:
            yield _media_table(waiting)

    def _row_of(self, attachment: PreparedAttachment) -> int | None:
        if not attachment.nbytes:
            return None
        row = self._first_rows.setdefault((attachment.sha256, attachment.nbytes), self._next_row)
        if row == self._next_row:
            self._next_row += -(-attachment.nbytes // MEDIA_PART_BYTES)
            self._kept.append(attachment)
        return row

    def _parts(self) -> Iterator[memoryview]:
        for attachment in self._kept:
            yield from attachment.hashed_parts(MEDIA_PART_BYTES)


def _media_table(parts: Sequence[memoryview]) -> pa.Table:
    columns = [pa.nulls(len(parts), field.type) for field in CALLS_SCHEMA]
    columns[_KIND_COLUMN] = pa.repeat(MEDIA_ROW, len(parts))
    columns[_MEDIA_COLUMN] = _one_value(parts[0]) if len(parts) == 1 else pa.array(parts, pa.large_binary())
    return pa.Table.from_arrays(columns, schema=CALLS_SCHEMA)


def _one_value(part: memoryview) -> pa.Array:
    """Return an array of one value that shares its bytes."""
    offsets = pa.array([0, part.nbytes], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(part)])
