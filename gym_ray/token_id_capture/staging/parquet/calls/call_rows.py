"""Staged calls as rows: compact while they wait, one Arrow table a batch, without a Python number for a token.

The columns of all calls of a batch are joined once; offsets say which values are whose. What float32 rounds here was
hashed as float32, so the rows give the digest that was acknowledged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray import exact_json
from gym_ray.errors import RefusedRecordError
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment
from gym_ray.token_id_capture.staging.parquet.segments.schema import ATTACHMENT_TYPE, CALL_ROW, CALLS_SCHEMA
from gym_ray.token_id_capture.staging.records import StagedCallRecord

__all__ = ["CallItem", "calls_table"]

_HEX_DIGEST: Final = 64
_NARROW_LIMIT: Final = 1 << 31
_ROW_BYTES: Final = 1024
"""What a waiting call takes beside its columns, about."""

MediaRows = Sequence[Sequence[int | None] | None]
"""For each call: none without attachments, else the first media row of each."""


class CallItem:
    """A call that waits to be written: nine bytes a token, and what its extras and attachments take.

    Args:
        record: The call; its columns are shared where they have the stored type.
        attachments: Its media, ready to be written; None if none were supplied. Their hashes are computed here.

    Raises:
        RefusedRecordError: The mask has a zero with a sign, which a stored mask cannot tell.
    """

    __slots__ = (
        "attachments",
        "chain_hash",
        "cum_len",
        "cumulative_hash",
        "delta_len",
        "digest",
        "extras_digest",
        "extras_json",
        "log_probs",
        "mode",
        "model_call_id",
        "nbytes",
        "parent_call_id",
        "prev_len",
        "rollout_id",
        "token_ids",
        "token_mask",
        "weight_version",
    )

    def __init__(self, record: StagedCallRecord, attachments: Sequence[PreparedAttachment] | None) -> None:
        self.rollout_id, self.model_call_id = record.rollout_id, record.model_call_id
        self.parent_call_id, self.mode = record.parent_call_id, record.mode
        self.prev_len, self.delta_len, self.cum_len = record.prev_len, record.delta_len, record.cum_len
        self.weight_version = record.weight_version
        self.digest, self.extras_digest = record.digest, record.extras_digest
        self.chain_hash, self.cumulative_hash = record.chain_hash, record.cumulative_hash
        self.token_ids: NDArray[Any] = record.token_ids_delta.array
        self.token_mask: NDArray[np.bool_] = _stored_mask(record)
        self.log_probs: NDArray[np.float32] = _as_float32(record.generation_log_probs_delta.array)
        self.extras_json = None if record.extras is None else exact_json.dumps(record.extras)
        self.attachments = attachments
        self.nbytes = _ROW_BYTES + self.token_ids.nbytes + self.token_mask.nbytes + self.log_probs.nbytes
        if self.extras_json is not None:
            self.nbytes += len(self.extras_json)
        for attachment in attachments or ():
            self.nbytes += attachment.nbytes

    def content(self) -> bytes:
        """Return what two stagings of the same call must agree in: the record's digest, and a hash of its media."""
        digest = bytes.fromhex(self.digest)
        if not self.attachments:
            return digest
        media = hashlib.sha256()
        for one in self.attachments:
            media.update(repr((one.name, one.item, one.dtype, one.shape, one.sha256)).encode())
        return digest + media.digest()


def calls_table(items: Sequence[CallItem], media_rows: MediaRows) -> pa.Table:
    """Return calls as rows of the calls schema, in their order.

    Args:
        items: The calls, at least one.
        media_rows: Where the bytes of their attachments will be.
    """
    nothing = pa.nulls(len(items), pa.large_binary())
    narrow, wide = _id_lists(items)
    columns = [
        pa.repeat(CALL_ROW, len(items)),
        pa.array([item.rollout_id for item in items], pa.string()),
        pa.array([item.model_call_id for item in items], pa.string()),
        pa.array([item.parent_call_id for item in items], pa.string()),
        pa.array([item.mode for item in items], pa.string()),
        pa.array([item.prev_len for item in items], pa.uint64()),
        pa.array([item.delta_len for item in items], pa.uint64()),
        pa.array([item.cum_len for item in items], pa.uint64()),
        pa.array([item.weight_version for item in items], pa.uint64()),
        _hashes([item.digest for item in items]),
        _hashes([item.extras_digest for item in items]),
        _hashes([item.chain_hash for item in items]),
        _hashes([item.cumulative_hash for item in items]),
        narrow,
        wide,
        _lists([item.token_mask for item in items], pa.bool_()),
        _lists([item.log_probs for item in items], pa.float32()),
        pa.array([item.extras_json for item in items], pa.large_binary()).cast(pa.large_string()),
        _attachment_lists(items, media_rows),
        nothing,
    ]
    return pa.Table.from_arrays(columns, schema=CALLS_SCHEMA)


def _stored_mask(record: StagedCallRecord) -> NDArray[np.bool_]:
    mask = record.token_mask_delta.array
    if mask.dtype != np.bool_:
        raise RefusedRecordError(
            f"{record.rollout_id}/{record.model_call_id}: token_mask_delta holds a -0.0, which changes the digest and "
            "which a stored mask cannot tell from 0.0; mask with 0.0 and 1.0"
        )
    return mask


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.float32:
        return values
    with np.errstate(under="ignore"):
        return values.astype(np.float32)  # as the digest has them (C83); a column holds none that would be infinite


def _hashes(digests: Sequence[str]) -> pa.Array:
    data = bytes.fromhex("".join(digests))
    if len(data) * 2 != len(digests) * _HEX_DIGEST:
        raise ValueError("a digest has not 64 hex digits")
    return pa.Array.from_buffers(pa.binary(32), len(digests), [None, pa.py_buffer(data)])


def _offsets(parts: Sequence[NDArray[Any]]) -> pa.Array:
    ends = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([part.size for part in parts], out=ends[1:])
    return pa.array(ends)


def _lists(parts: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """Return one list a part; the values are joined, and handed over without another copy."""
    return pa.ListArray.from_arrays(_offsets(parts), pa.array(np.concatenate(parts), kind))


def _id_lists(items: Sequence[CallItem]) -> tuple[pa.Array, pa.Array]:
    """Return the ids as lists of int32, and as lists of uint64 for the calls that have an id too large for it."""
    narrow_type, wide_type = pa.list_(pa.int32()), pa.list_(pa.uint64())
    parts = [item.token_ids for item in items]
    joined = np.concatenate(parts)
    if joined.dtype == np.uint32 and (not joined.size or joined.max() < _NARROW_LIMIT):
        values = pa.array(joined.view(np.int32))
        return pa.ListArray.from_arrays(_offsets(parts), values), pa.nulls(len(items), wide_type)
    is_wide = [bool(part.size) and int(part.max()) >= _NARROW_LIMIT for part in parts]
    narrow = [None if wide else part.astype(np.int32) for part, wide in zip(parts, is_wide, strict=True)]
    kept = [part.astype(np.uint64) if wide else None for part, wide in zip(parts, is_wide, strict=True)]
    return pa.array(narrow, narrow_type), pa.array(kept, wide_type)


def _attachment_lists(items: Sequence[CallItem], media_rows: MediaRows) -> pa.Array:
    kind = pa.list_(ATTACHMENT_TYPE)
    if all(item.attachments is None for item in items):
        return pa.nulls(len(items), kind)
    rows = [
        None if item.attachments is None else list(map(_described, item.attachments, at or ()))
        for item, at in zip(items, media_rows, strict=True)
    ]
    return pa.array(rows, kind)


def _described(attachment: PreparedAttachment, media_row: int | None) -> dict[str, Any]:
    return {
        "name": attachment.name,
        "item": attachment.item,
        "dtype": attachment.dtype,
        "shape": list(attachment.shape),
        "nbytes": attachment.nbytes,
        "sha256": attachment.sha256,
        "media_row": media_row,
    }
