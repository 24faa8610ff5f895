"""The calls of a whole segment, for who copies or counts them: identities first, contents one row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gym_ray.token_id_capture.staging.parquet.attachments.attachment_bytes import regrouped
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment
from gym_ray.token_id_capture.staging.parquet.calls.attachment_reading import AttachmentView
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import (
    ATTACHMENT_COLUMNS,
    CALL_COLUMNS,
    CallIdentity,
    StoredAttachment,
    attachments_of,
    call_snapshot_of,
    identity_of,
)
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.media_reading import media_parts
from gym_ray.token_id_capture.staging.parquet.segments.schema import (
    CALLS_PER_ROW_GROUP,
    CALLS_SCHEMA,
    MEDIA_ROW_GROUP_BYTES,
    TOKENS_PER_ROW_GROUP,
)
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader

__all__ = ["StoredCall", "read_items", "stored_calls"]


@dataclass(frozen=True, slots=True)
class StoredCall:
    """One call of a segment.

    Attributes:
        row_group: Where it is.
        row: Where it is.
        identity: Which call it is.
        row_groups: What part of a row group its tokens take, and how many its media; about.
        media: Name, place, type, shape and hash of each attachment: equal for equal attachments.
    """

    row_group: int
    row: int
    identity: CallIdentity
    row_groups: float
    media: tuple[tuple[str, int, str, tuple[int, ...], bytes], ...] | None

    @property
    def content(self) -> tuple[object, ...]:
        """What two rows of the same call with the same attachments have in common."""
        return self.identity, self.media


def stored_calls(reader: SegmentReader) -> list[StoredCall]:
    """Return the calls of a segment in its order; no tokens and no media are read.

    Raises:
        StorageError: It could not be read.
        ValueError: It is damaged.
    """
    found: list[StoredCall] = []
    for row_group in range(reader.row_groups):
        table = reader.read(row_group, (*ATTACHMENT_COLUMNS, "delta_len"), CALLS_SCHEMA)
        for row in range(table.num_rows):
            identity = identity_of(table, row)
            if identity is None:
                return found  # the media follow the calls
            media = attachments_of(table, row)
            size = _row_groups(table.column("delta_len")[row].as_py() or 0, media or ())
            found.append(StoredCall(row_group, row, identity, size, None if media is None else _described(media)))
    return found


def read_items(reader: SegmentReader, wanted: list[StoredCall]) -> Iterator[CallItem]:
    """Yield calls ready to be written once more, every digest checked; their media are read when they are written.

    Raises:
        StorageError: The segment could not be read.
        ValueError: A call is damaged; file and row are named.
    """
    group, table = -1, None
    for call in wanted:
        if table is None or call.row_group != group:
            group, table = call.row_group, reader.read(call.row_group, CALL_COLUMNS, CALLS_SCHEMA)
        try:
            record = call_snapshot_of(table, call.row)
            media = attachments_of(table, call.row)
        except ValueError as error:
            raise ValueError(f"{reader.place}, row group {call.row_group}, row {call.row}: {error}") from error
        yield CallItem(record, None if media is None else [_prepared(reader, one) for one in media])


def _row_groups(tokens: int, media: Sequence[StoredAttachment]) -> float:
    of_tokens = max(1 / CALLS_PER_ROW_GROUP, tokens / TOKENS_PER_ROW_GROUP)
    return of_tokens + sum(one.nbytes for one in media) / MEDIA_ROW_GROUP_BYTES


def _described(media: list[StoredAttachment]) -> tuple[tuple[str, int, str, tuple[int, ...], bytes], ...]:
    return tuple((one.name, one.item, one.dtype, one.shape, one.sha256) for one in media)


def _prepared(reader: SegmentReader, stored: StoredAttachment) -> PreparedAttachment:
    source = _StoredBytes(reader, stored)
    return PreparedAttachment(stored.name, stored.item, stored.dtype, stored.shape, source, stored.sha256)


class _StoredBytes:
    """The bytes of an attachment in a segment; whoever walks through them to the end has the right ones."""

    def __init__(self, reader: SegmentReader, stored: StoredAttachment) -> None:
        self.nbytes = stored.nbytes
        self._view = AttachmentView(stored, reader.place, lambda entry: media_parts(reader, entry))

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        return regrouped(self._view.chunks(), max_bytes)
