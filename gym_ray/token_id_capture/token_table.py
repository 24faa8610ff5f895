"""Training rows as one Arrow table: what a training loop reads without a copy, one row for each chain.

The table is made of the rows of a record, so that one that was lost is made again from the durable record, the same in
every value. It never invents a token: a row that proves nothing is there, empty and masked, with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray.errors import UnusableTokensError

__all__ = ["TOKEN_TABLE_SCHEMA", "masked_table", "token_arrays", "token_table", "with_masks"]

_SPAN: Final = pa.struct([("version", pa.string()), ("start", pa.uint32()), ("end", pa.uint32())])
TOKEN_TABLE_SCHEMA: Final = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("chain_id", pa.string()),
        ("token_ids", pa.list_(pa.uint32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("log_probs", pa.list_(pa.float32())),
        ("weight_spans", pa.list_(_SPAN)),
        ("oldest_weight_version", pa.int64()),
        ("reward", pa.float64()),
        ("masked", pa.bool_()),
        ("reasons", pa.list_(pa.string())),
    ]
)
"""Columns of a token table.

``token_ids``, ``loss_mask`` (0 or 1) and ``log_probs`` (0.0 where a token was not sampled) have one entry a token.
``weight_spans`` says which tokens were sampled with which version; ``oldest_weight_version`` is the smallest of them,
null unless every sampled token has a version that is a whole number. ``reward`` is null exactly where nothing was
measured, and always where ``masked`` is true; ``reasons`` then says why.
"""

_LARGEST_ID: Final = 0xFFFF_FFFF
_LARGEST_VERSION: Final = 2**63 - 1


def token_table(rows: Sequence[Mapping[str, Any]], *, reward: float | None = None) -> pa.Table:
    """Return the training rows of one rollout as a table of :data:`TOKEN_TABLE_SCHEMA`.

    Args:
        rows: Rows as :func:`~gym_ray.token_id_capture.row_json.row_as_json` gives them and records hold them.
        reward: What the rollout was scored with, None where nothing was measured.

    Raises:
        UnusableTokensError: A row is not one, or has an id that needs more than 32 bits; rollout and chain are named.
    """
    made = [_columns(row, reward) for row in rows]
    return pa.Table.from_arrays(
        [
            pa.array([row["rollout_id"] for row in made], pa.string()),
            pa.array([row["chain_id"] for row in made], pa.string()),
            _lists([row["token_ids"] for row in made], np.dtype(np.uint32)),
            _lists([row["loss_mask"] for row in made], np.dtype(np.uint8)),
            _lists([row["log_probs"] for row in made], np.dtype(np.float32)),
            pa.array([row["weight_spans"] for row in made], pa.list_(_SPAN)),
            pa.array([row["oldest"] for row in made], pa.int64()),
            pa.array([row["reward"] for row in made], pa.float64()),
            pa.array([row["masked"] for row in made], pa.bool_()),
            pa.array([row["reasons"] for row in made], pa.list_(pa.string())),
        ],
        schema=TOKEN_TABLE_SCHEMA,
    )


def masked_table(rollout_id: str, reasons: Sequence[str]) -> pa.Table:
    """Return a table of one row without tokens, masked: what stands for a rollout that gave none."""
    row = {"rollout_id": rollout_id, "chain_id": "", "mask_sample": True, "reasons": list(reasons)}
    empty: dict[str, Any] = {"token_ids": [], "loss_mask": [], "policy_log_probs": [], "spans": [], "weight_spans": []}
    return token_table([row | empty])


def with_masks(table: pa.Table, reasons: Sequence[Sequence[str]], reward: float | None) -> pa.Table:
    """Return the table with a reward and more reasons to mask its rows; the columns of tokens are the same buffers.

    Args:
        table: A token table.
        reasons: For each row what is added to its reasons; a row with any is masked, and its reward is null.
        reward: Reward of the rows that are not masked.
    """
    before = table.column("reasons").to_pylist()
    whole = [list(dict.fromkeys([*old, *new])) for old, new in zip(before, reasons, strict=True)]
    masked = [was or bool(new) for was, new in zip(table.column("masked").to_pylist(), reasons, strict=True)]
    kept = [None if mask else reward for mask in masked]
    for name, values in (("reward", kept), ("masked", masked), ("reasons", whole)):
        field = TOKEN_TABLE_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return table


def token_arrays(table: pa.Table, row: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.float32]]:
    """Return ids uint32[n], loss mask uint8[n] and log probabilities float32[n] of a row.

    They are read-only views of the table's buffers, which live as long as a view does.

    Raises:
        IndexError: The table has no such row.
    """
    if not 0 <= row < table.num_rows:
        raise IndexError(f"row {row} of a token table of {table.num_rows} rows")
    ids, mask, log_probs = (_view(table.column(name), row) for name in ("token_ids", "loss_mask", "log_probs"))
    return ids, mask, log_probs


def _oldest_version(row: Mapping[str, Any]) -> int | None:
    """Return the smallest weight version of a row's sampled tokens, None unless all have one that is a number."""
    covered = np.zeros(len(row["token_ids"]), np.bool_)
    oldest: int | None = None
    for span in row["weight_spans"]:
        version = _number(span["version"])
        if version is None:
            return None
        oldest = version if oldest is None else min(oldest, version)
        covered[span["start"] : span["end"]] = True
    sampled = [span for span in row["spans"] if span["kind"] == "policy"]
    return oldest if all(covered[span["start"] : span["end"]].all() for span in sampled) else None


def _number(version: object) -> int | None:
    """Return a version as a number: engines may report one as text."""
    if isinstance(version, str) and version.isascii() and version.isdecimal():
        version = int(version)
    usable = isinstance(version, int) and not isinstance(version, bool) and abs(version) <= _LARGEST_VERSION
    return version if usable and isinstance(version, int) else None


def _columns(row: Mapping[str, Any], reward: float | None) -> dict[str, Any]:
    try:
        masked = bool(row["mask_sample"])
        return {
            "rollout_id": row["rollout_id"],
            "chain_id": row["chain_id"],
            "token_ids": _ids(row["token_ids"]),
            "loss_mask": np.asarray(row["loss_mask"], np.uint8),
            "log_probs": _dense(row),
            "weight_spans": [{**span, "version": str(span["version"])} for span in row["weight_spans"]],
            "oldest": _oldest_version(row),
            "reward": None if masked else reward,
            "masked": masked,
            "reasons": list(row["reasons"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        name = f"{row.get('rollout_id')}, chain {row.get('chain_id')!r}"
        raise UnusableTokensError("unusable_row", f"{name}: no token table can hold it: {error!r}") from error


def _ids(ids: Sequence[int]) -> NDArray[np.uint32]:
    wide = np.asarray(ids, np.uint64)
    if wide.size and int(wide.max()) > _LARGEST_ID:
        raise ValueError(f"token id {int(wide.max())} needs more than 32 bits")
    return wide.astype(np.uint32)


def _dense(row: Mapping[str, Any]) -> NDArray[np.float32]:
    length, given = len(row["token_ids"]), np.asarray(row["policy_log_probs"], np.float32)
    if len(row["loss_mask"]) != length:
        raise ValueError(f"{length} token ids and {len(row['loss_mask'])} entries of the loss mask")
    dense, taken = np.zeros(length, np.float32), 0
    for span in row["spans"]:
        if span["kind"] == "policy":
            count = span["end"] - span["start"]
            dense[span["start"] : span["end"]] = given[taken : taken + count]
            taken += count
    if taken != given.size:
        raise ValueError(f"{given.size} log probabilities for {taken} sampled tokens")
    return dense


def _lists(arrays: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> pa.ListArray:
    parts = list(arrays)
    ends = np.cumsum([0, *(part.size for part in parts)], dtype=np.int64)
    values = np.concatenate([*parts, np.empty(0, dtype)]).astype(dtype, copy=False)
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(values))


def _view(column: pa.ChunkedArray, row: int) -> NDArray[Any]:
    for chunk in column.chunks:
        if row < len(chunk):
            first, behind = chunk.offsets[row].as_py(), chunk.offsets[row + 1].as_py()
            view: NDArray[Any] = chunk.values.to_numpy(zero_copy_only=True)[first:behind]
            return view
        row -= len(chunk)
    raise IndexError(row)
