"""Rows of a segment as the calls that were staged: every value checked against its digest before anybody sees it.

A key names a place and eight digits of a digest. The row there must be a call with that digest, or the key leads
nowhere; what the row says must give its digest, or it is damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray import exact_json
from gym_ray.errors import StagedCallMissingError
from gym_ray.token_id_capture.staging.digests import compute_extras_digest
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey
from gym_ray.token_id_capture.staging.parquet.segments.schema import BASE_COLUMNS, CALL_ROW
from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot, StagedCallSnapshot
from gym_ray.token_id_capture.token_arrays import TokenArray

__all__ = [
    "ATTACHMENT_COLUMNS",
    "CALL_COLUMNS",
    "EXTRAS_COLUMNS",
    "IDENTITY_COLUMNS",
    "LINK_COLUMNS",
    "SNAPSHOT_COLUMNS",
    "CallIdentity",
    "StoredAttachment",
    "TokenLink",
    "attachments_of",
    "base_snapshot_of",
    "call_snapshot_of",
    "extras_of",
    "identity_of",
    "link_of",
    "require_identity",
]

IDENTITY_COLUMNS: Final = ("row_kind", "rollout_id", "model_call_id", "digest")
SNAPSHOT_COLUMNS: Final = ("row_kind", *BASE_COLUMNS)
LINK_COLUMNS: Final = (*IDENTITY_COLUMNS, "parent_call_id", "prev_len", "chain_hash", "token_ids", "token_ids_wide")
EXTRAS_COLUMNS: Final = (*IDENTITY_COLUMNS, "extras_digest", "extras_json")
ATTACHMENT_COLUMNS: Final = (*IDENTITY_COLUMNS, "attachments")
CALL_COLUMNS: Final = (*SNAPSHOT_COLUMNS, "extras_json", "attachments")

_DIGEST8: Final = 8


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Which call a row is."""

    rollout_id: str
    model_call_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TokenLink:
    """What a call adds to the tokens of its chain, and what it says it is linked to."""

    identity: CallIdentity
    parent_call_id: str | None
    prev_len: int
    chain_hash: str
    token_ids: TokenArray


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """One entry of a row's attachments.

    Attributes:
        name: Name under which it was handed over.
        item: Place in a list, 0 for a single value and for the entry of a list.
        dtype: See :mod:`attachment_kinds`.
        shape: Its shape.
        nbytes: How many bytes it has.
        sha256: Their hash, 32 bytes.
        media_row: The row of the file that holds the first part; None without bytes.
    """

    name: str
    item: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    sha256: bytes
    media_row: int | None


def identity_of(table: pa.Table, row: int) -> CallIdentity | None:
    """Return which call a row is; None for a row that is no call."""
    if _cell(table, "row_kind", row) != CALL_ROW:
        return None
    rollout_id, model_call_id = _cell(table, "rollout_id", row), _cell(table, "model_call_id", row)
    digest = _cell(table, "digest", row)
    if not rollout_id or not model_call_id or digest is None:
        return None
    return CallIdentity(rollout_id, model_call_id, digest.hex())


def require_identity(table: pa.Table, row: int, key: SegmentKey, place: str) -> CallIdentity:
    """Return which call a row is, if it is the one that a key was given for.

    Raises:
        StagedCallMissingError: It is no call, or another.
    """
    if not 0 <= row < table.num_rows:
        raise StagedCallMissingError(str(key), f"{place} has no row {row} in that row group")
    found = identity_of(table, row)
    if found is None:
        raise StagedCallMissingError(str(key), f"row {row} of {place} is no staged call")
    if found.digest[:_DIGEST8] != key.digest8:
        raise StagedCallMissingError(
            str(key), f"row {row} of {place} is call {found.model_call_id} with the digest {found.digest}"
        )
    return found


def base_snapshot_of(table: pa.Table, row: int) -> StagedCallBaseSnapshot:
    """Return a call with its token columns (C125); its digest was computed again.

    Raises:
        ValueError: The row contradicts itself or its digest.
    """
    return StagedCallBaseSnapshot(**_members(table, row))


def call_snapshot_of(table: pa.Table, row: int) -> StagedCallSnapshot:
    """Return a call with its token columns and extras (C51); both digests were computed again.

    Raises:
        ValueError: The row contradicts itself or a digest.
    """
    return StagedCallSnapshot(**_members(table, row), extras=_extras(table, row))


def link_of(table: pa.Table, row: int, identity: CallIdentity) -> TokenLink:
    """Return the tokens of a call and what it is linked to; whoever joins a chain checks the hash.

    Raises:
        ValueError: The row has no token ids, or no hash.
    """
    return TokenLink(
        identity,
        _cell(table, "parent_call_id", row),
        _cell(table, "prev_len", row),
        _hash(table, "chain_hash", row),
        _token_ids(table, row),
    )


def extras_of(table: pa.Table, row: int) -> dict[str, Any] | None:
    """Return the extras of a call, None for a call without; they give the digest that the row names.

    Raises:
        ValueError: They do not.
    """
    extras = _extras(table, row)
    found, named = compute_extras_digest(extras), _hash(table, "extras_digest", row)
    if found != named:
        raise ValueError(f"extras_digest is {named}, the extras give {found}")
    return extras


def attachments_of(table: pa.Table, row: int) -> list[StoredAttachment] | None:
    """Return what a row says of its attachments; None for a call that was given none."""
    entries = _cell(table, "attachments", row)
    if entries is None:
        return None
    return [StoredAttachment(**{**entry, "shape": tuple(entry["shape"])}) for entry in entries]


def _members(table: pa.Table, row: int) -> dict[str, Any]:
    plain = ("rollout_id", "model_call_id", "parent_call_id", "mode")
    numbers = ("prev_len", "delta_len", "cum_len", "weight_version")
    hashes = ("digest", "extras_digest", "chain_hash", "cumulative_hash")
    return {
        **{name: _cell(table, name, row) for name in (*plain, *numbers)},
        **{name: _hash(table, name, row) for name in hashes},
        "token_ids_delta": _token_ids(table, row),
        "token_mask_delta": _values(table, "token_mask", row),
        "generation_log_probs_delta": _values(table, "log_probs", row),
    }


def _extras(table: pa.Table, row: int) -> dict[str, Any] | None:
    text = _cell(table, "extras_json", row)
    if text is None:
        return None
    extras = exact_json.loads(text.encode())
    if not isinstance(extras, dict):
        raise ValueError("extras_json is no JSON object")  # noqa: TRY004 - one error type for damaged rows
    return extras


def _token_ids(table: pa.Table, row: int) -> TokenArray:
    narrow = table.column("token_ids")[row]
    if not narrow.is_valid:
        return _values(table, "token_ids_wide", row)
    ids = _values(table, "token_ids", row)
    if ids.size and int(ids.min()) < 0:
        raise ValueError("a token id is negative")
    return ids.view(np.uint32)


def _values(table: pa.Table, column: str, row: int) -> NDArray[Any]:
    """Return the values of a list cell as a read-only array of its own, which keeps no row group alive."""
    cell = table.column(column)[row]
    if not cell.is_valid or cell.values.null_count:
        raise ValueError(f"{column} is missing, or a value in it")
    values: NDArray[Any] = cell.values.to_numpy(zero_copy_only=False)
    values = values.copy() if not values.flags.owndata else values
    values.flags.writeable = False
    return values


def _hash(table: pa.Table, column: str, row: int) -> str:
    value = _cell(table, column, row)
    if value is None:
        raise ValueError(f"{column} is missing")
    return str(value.hex())


def _cell(table: pa.Table, column: str, row: int) -> Any:
    return table.column(column)[row].as_py()
