"""A staged call with its attachments as one Arrow stream: what a worker without the store sends to a process with it.

The same rows as in a segment, and nothing that would have to be unpickled. What arrives is checked against its hashes
before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from gym_ray.errors import DamagedRecordError
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_bytes import regrouped
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment, prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import (
    StoredAttachment,
    attachments_of,
    call_snapshot_of,
)
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem, calls_table
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import MediaPlan
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND
from gym_ray.token_id_capture.staging.parquet.segments.schema import (
    CALLS_SCHEMA,
    MEDIA_PART_BYTES,
    SegmentFacts,
    check_metadata,
    file_metadata,
)
from gym_ray.token_id_capture.staging.records import StagedCallRecord

__all__ = ["decode_call", "encode_call"]

_WHERE: Final = "the encoded call"


def encode_call(record: StagedCallRecord, attachments: Mapping[str, Any] | None) -> bytes:
    """Return a call with its attachments as bytes for :func:`decode_call`.

    Raises:
        RefusedRecordError: The call or an attachment cannot be staged, as ``ParquetStagingSink.stage`` would say.
        StorageError: An attachment changed in the meantime.
    """
    item = CallItem(record, None if attachments is None else prepare_attachments(attachments))
    media = MediaPlan(1)
    rows = calls_table([item], [media.rows_of(item.attachments)])
    out = pa.BufferOutputStream()
    schema = CALLS_SCHEMA.with_metadata(file_metadata(SegmentFacts(CALLS_KIND, "", "")))
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_table(rows)
        for part_rows in media.row_groups():
            stream.write_table(part_rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


def decode_call(data: bytes) -> tuple[StagedCallRecord, list[PreparedAttachment] | None]:
    """Return a call and its attachments, ready for ``ParquetStagingSink.stage_prepared``; they share the bytes.

    Raises:
        DamagedRecordError: The bytes are not what :func:`encode_call` returned, or do not give the hashes in them.
    """
    try:
        table = _rows_of(data)
        snapshot = call_snapshot_of(table, 0)
        stored = attachments_of(table, 0)
        prepared = None if stored is None else [_prepared(one, table.column("media_data")) for one in stored]
    except (ValueError, IndexError, TypeError, OSError, OverflowError, pa.ArrowException) as error:
        raise DamagedRecordError(f"{_WHERE} cannot be read: {error}") from error
    return StagedCallRecord.trusted(**_trusted_members(snapshot)), prepared


def _rows_of(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        check_metadata(stream.schema.metadata, file=_WHERE, kind=CALLS_KIND)
        if not stream.schema.equals(CALLS_SCHEMA):
            raise ValueError(f"{_WHERE} has other columns than staged calls have")
        rows = stream.read_all()
    rows.validate(full=True)
    return rows


def _trusted_members(snapshot: Any) -> dict[str, Any]:
    columns = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
    versions = ("schema_version", "digest_version", "extras_digest_version")
    members = {name: getattr(snapshot, name) for name in type(snapshot).model_fields if name not in versions}
    return members | {name: members[name].array for name in columns}


class _Parts:
    """Bytes that lie in memory in several pieces."""

    def __init__(self, parts: list[memoryview]) -> None:
        self._parts = parts

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        return regrouped(self._parts, max_bytes)


def _prepared(stored: StoredAttachment, media: pa.ChunkedArray) -> PreparedAttachment:
    count = -(-stored.nbytes // MEDIA_PART_BYTES)
    first = stored.media_row or 0
    source = _Parts([memoryview(media[first + part].as_buffer()) for part in range(count)])
    prepared = PreparedAttachment(stored.name, stored.item, stored.dtype, stored.shape, source)
    if prepared.nbytes != stored.nbytes or prepared.sha256 != stored.sha256:
        raise ValueError(f"attachment {stored.name!r} does not give its hash")
    return prepared
