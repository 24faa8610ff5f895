"""Token records as rows: packed once, hashed once, and equal to what was put when they are read back.

Whatever no reader could turn back into the record is refused before anything is written.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError, RefusedRecordError
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.staging.parquet.tokens.token_ids import check_call_id, check_rollout_id
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import TOKENS_SCHEMA
from gym_ray.token_id_capture.token_arrays import FloatArray, TokenArray, pack_token_ids

__all__ = ["StoredRecord", "TokenRow", "records_of", "table_of_records"]

_DIGEST_DOMAIN: Final = b"gym-ray-token-row-1"
_LENGTHS: Final = struct.Struct(">4Q")
_NARROW_LIMIT: Final = 1 << 31
_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY
_OWN_COLUMNS: Final = ("rollout_id", "model_call_id", "created_at")
_ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """One record, ready to be written.

    Attributes:
        rollout_id: Its rollout.
        model_call_id: Its call.
        created_at: When it was captured, seconds.
        digest: Hash of everything but ``created_at``, 32 bytes.
        prompt: Its prompt.
        generation: Its sampled tokens.
        log_probs: Theirs.
        entry_json: All its other members.
    """

    rollout_id: str
    model_call_id: str
    created_at: float
    digest: bytes
    prompt: TokenArray
    generation: TokenArray
    log_probs: FloatArray
    entry_json: bytes

    @classmethod
    def of(cls, entry: TokenEntry | PackedEntry) -> TokenRow:
        """Pack and hash a record; arrays may be shared with it.

        Raises:
            RolloutIdError: No row can have its rollout id.
            RefusedRecordError: It could not be read back: its numbers are no tokens or not finite (W21), an assignment
                made it contradict itself (B8), or it holds something that has no JSON form.
        """
        rollout_id = check_rollout_id(entry.rollout_id)
        call_id = check_call_id(rollout_id, entry.model_call_id)
        try:
            packed = entry if isinstance(entry, PackedEntry) else PackedEntry.of_entry(entry)
            rest = {name: value for name, value in packed.rest.items() if name not in _OWN_COLUMNS}
            entry_json = _encode(rest)
        except ValueError as error:
            raise RefusedRecordError(f"{rollout_id}: the record of call {call_id!r} is refused: {error}") from error
        columns = packed.prompt_token_ids, packed.generation_token_ids, packed.generation_log_probs
        digest = _digest(f"{rollout_id}\0{call_id}".encode(), columns, entry_json)
        return cls(rollout_id, call_id, packed.created_at, digest, *columns, entry_json)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.prompt.nbytes + self.generation.nbytes + self.log_probs.nbytes + len(self.entry_json) + _ROW_BYTES

    @property
    def tokens(self) -> int:
        """Tokens that are written."""
        return int(self.prompt.size + self.generation.size)


def _encode(rest: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(rest, default=_plain, option=_OPTIONS)
    except orjson.JSONEncodeError:  # a big integer, a lone surrogate, depth: the exact encoder decides
        try:
            return exact_json.dumps(_sorted(rest))
        except RecursionError:
            raise ValueError("the record nests too deeply for JSON") from None


def _plain(value: object) -> Any:
    """Return what stands for a value that JSON does not know, which never is the way it looks.

    Raises:
        ValueError: Nothing does.
    """
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    return to_jsonable_python(value)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        members = {str(name): item for name, item in value.items()}
        return {name: _sorted(members[name]) for name in sorted(members)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else _sorted(_plain(value))


def _digest(ids: bytes, columns: tuple[TokenArray, TokenArray, FloatArray], entry_json: bytes) -> bytes:
    prompt, generation, log_probs = columns
    state = hashlib.sha256(_DIGEST_DOMAIN)
    state.update(_LENGTHS.pack(len(ids), prompt.size, generation.size, len(entry_json)))
    state.update(ids)
    state.update(entry_json)
    state.update(prompt.astype("<u8").data)
    state.update(generation.astype("<u8").data)
    state.update(log_probs.astype("<f8").data)
    return state.digest()


def table_of_records(rows: Sequence[TokenRow]) -> pa.Table:
    """Return rows as one table of :data:`TOKENS_SCHEMA`."""
    prompts, prompts_wide = _id_columns([row.prompt for row in rows])
    generations, generations_wide = _id_columns([row.generation for row in rows])
    exact = [row.log_probs.dtype == np.float32 for row in rows]
    log_probs = [row.log_probs for row in rows]
    columns = [
        pa.array([row.rollout_id for row in rows], pa.string()),
        pa.array([row.model_call_id for row in rows], pa.string()),
        pa.array([row.digest for row in rows], pa.binary(32)),
        pa.array([row.created_at for row in rows], pa.float64()),
        prompts,
        prompts_wide,
        generations,
        generations_wide,
        _list_column(log_probs, exact, np.dtype(np.float32)),
        _list_column(log_probs, [not narrow for narrow in exact], np.dtype(np.float64)),
        pa.array([row.entry_json for row in rows], pa.large_binary()).cast(pa.large_string()),
    ]
    return pa.Table.from_arrays(columns, schema=TOKENS_SCHEMA)


def _id_columns(parts: Sequence[TokenArray]) -> tuple[pa.Array, pa.Array]:
    narrow = [not part.size or int(part.max()) < _NARROW_LIMIT for part in parts]
    wide = [not fits for fits in narrow]
    return _list_column(parts, narrow, np.dtype(np.int32)), _list_column(parts, wide, np.dtype(np.uint64))


def _list_column(parts: Sequence[NDArray[Any]], present: Sequence[bool], dtype: np.dtype[Any]) -> pa.Array:
    kept = [part.astype(dtype) for part, is_here in zip(parts, present, strict=True) if is_here]
    lengths = [part.size if is_here else 0 for part, is_here in zip(parts, present, strict=True)]
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(np.concatenate(kept) if kept else np.empty(0, dtype))
    absent = pa.array([not is_here for is_here in present])
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=absent)


@dataclass(frozen=True, slots=True, eq=False)
class StoredRecord:
    """A record as it was read.

    Attributes:
        model_call_id: Its call.
        created_at: When it was captured, seconds.
        digest: Hash of everything but ``created_at``.
        place: Segment, row group and row where it was first.
        entry: The record; raises where the row is damaged.
    """

    model_call_id: str
    created_at: float
    digest: bytes
    place: tuple[str, int, int]
    _table: pa.Table
    _row: int

    def entry(self, rollout_id: str) -> PackedEntry:
        """Return the record, checked against its digest; its arrays are views of what was read.

        Raises:
            DamagedRecordError: The row is not what was written.
        """
        segment, group, row = self.place
        try:
            columns = self._ids("prompt_token_ids"), self._ids("generation_token_ids"), self._log_probs()
            text = self._table.column("entry_json")[self._row].as_py().encode()
            rest = exact_json.loads(text)
            if not isinstance(rest, dict):
                raise ValueError("entry_json is no object")  # noqa: TRY004, TRY301 - as any other damage of the row
            own = {"rollout_id": rollout_id, "model_call_id": self.model_call_id, "created_at": self.created_at}
            names = "prompt_token_ids", "generation_token_ids", "generation_log_probs"
            entry = PackedEntry.of_json({**rest, **own, **dict(zip(names, columns, strict=True))})
            if _digest(f"{rollout_id}\0{self.model_call_id}".encode(), columns, text) != self.digest:
                raise ValueError("the row does not have the digest that was written with it")  # noqa: TRY301 - the same
        except ValueError as error:
            raise DamagedRecordError(f"{segment}, row group {group}, row {row}: {error}") from error
        return entry

    def _ids(self, name: str) -> TokenArray:
        narrow, wide = self._values(name), self._values(f"{name}_wide")
        if narrow is not None and wide is None:
            return pack_token_ids(narrow.view(np.uint32))
        if wide is not None and narrow is None:
            return pack_token_ids(wide)
        raise ValueError(f"exactly one of {name} and {name}_wide must be there")

    def _log_probs(self) -> FloatArray:
        narrow, wide = self._values("log_probs"), self._values("log_probs_wide")
        if (narrow is None) == (wide is None):
            raise ValueError("exactly one of log_probs and log_probs_wide must be there")
        values: FloatArray = narrow if narrow is not None else wide  # type: ignore[assignment]  # one of them is
        values.flags.writeable = False
        return values

    def _values(self, name: str) -> NDArray[Any] | None:
        value = self._table.column(name)[self._row]
        return value.values.to_numpy(zero_copy_only=True) if value.is_valid else None


def records_of(
    table: pa.Table,
    rollout_id: str,
    segment: str,
    group: int,
    origin: Callable[[int], tuple[str, int, int]] | None = None,
) -> Iterator[StoredRecord]:
    """Yield a rollout's records of one row group; ``origin`` tells where a row was first, if not there."""
    names = "rollout_id", "model_call_id", "created_at", "record_digest"
    for row, (rollout, call_id, created_at, digest) in enumerate(
        zip(*(table.column(name).to_pylist() for name in names), strict=True)
    ):
        if rollout == rollout_id:
            place = (segment, group, row) if origin is None else origin(row)
            yield StoredRecord(call_id, created_at, digest, place, table, row)
