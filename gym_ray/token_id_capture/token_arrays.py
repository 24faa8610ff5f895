"""Tokens and log probabilities as arrays: checked once, then compared, joined and hashed without Python integers.

A list of integers costs 36 bytes a token and a pass of the interpreter each time it is touched. An array made here is
read-only, so that a call, its children and a row can share one buffer. Nothing here may change a value: an id or a log
probability that the array cannot hold exactly is refused.
"""

from __future__ import annotations

import hashlib
import operator
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from gym_ray.errors import NonFiniteLogProbError

__all__ = [
    "DIGEST_DOMAIN",
    "DIGEST_VERSION",
    "EMPTY_DIGEST",
    "FloatArray",
    "LogProbs",
    "TokenArray",
    "TokenIds",
    "digest_packed",
    "encode_packed",
    "join_tokens",
    "pack_log_probs",
    "pack_token_ids",
    "starts_with",
    "token_header",
    "update_with_tokens",
]

DIGEST_VERSION: Final = 1
DIGEST_DOMAIN: Final = b"nemo-gym-tokens"
EMPTY_DIGEST: Final = hashlib.sha256(DIGEST_DOMAIN).hexdigest()

TokenArray: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]
FloatArray: TypeAlias = NDArray[np.float32] | NDArray[np.float64]
TokenIds: TypeAlias = (
    "Sequence[int] | NDArray[Any] | memoryview | array[int]"  # quoted: array cannot be subscripted on 3.11
)
LogProbs: TypeAlias = "Sequence[float] | NDArray[Any] | memoryview | array[float]"

_HEADER: Final = struct.Struct(">BQ").pack
_ID_LIMIT: Final = 1 << 64
_NARROW_LIMIT: Final = 1 << 32
# 64 KiB of big-endian ids at a time stay in the processor's cache between the conversion and the hash.
_HASHED_TOKENS: Final = 8192


def pack_token_ids(values: TokenIds) -> TokenArray:
    """Return token ids as a read-only 1-D array, uint32 where every id fits and uint64 otherwise.

    A read-only array of the right type is shared, everything else is copied. Truth values in a list count as 0 and 1,
    as they do in a record (B4); an array of them is refused.

    Raises:
        ValueError: An id is negative, 2**64 or more, or no integer (B10, W22): the first negative one is named, else
            the first that does not fit. Or the values are no one-dimensional sequence.
    """
    if isinstance(values, np.ndarray):
        return _pack_id_array(values)
    if isinstance(values, memoryview | array):
        return _pack_id_array(np.asarray(values))
    return _pack_id_list(_listed(values, "token ids"))


def pack_log_probs(values: LogProbs) -> FloatArray:
    """Return log probabilities as a read-only 1-D array that holds each value exactly.

    float32 if the source is a float32 array or if every value survives float32, else float64.

    Raises:
        NonFiniteLogProbError: A value is NaN or infinite (W21); its index is named. A ValueError.
        ValueError: A value is not a number; its index is named. Or the values are no one-dimensional sequence.
    """
    packed = _float_array(np.asarray(values) if isinstance(values, memoryview | array) else values)
    finite = np.isfinite(packed)
    if not finite.all():
        at = int(np.argmin(finite))
        raise NonFiniteLogProbError(f"log prob {packed[at]} at index {at} is not finite")
    return _frozen(_narrowed(packed))


def encode_packed(ids: TokenArray) -> bytes:
    """Return version, count and ids as B9 lays them out: ``9 + 8 n`` bytes, big-endian."""
    return b"".join((token_header(ids.size), ids.astype(">u8").data.cast("B")))


def digest_packed(ids: TokenArray) -> str:
    """Return the digest of a token sequence, 64 lowercase hex digits (B11); no Python integer is made."""
    if not ids.size:
        return EMPTY_DIGEST
    state = hashlib.sha256(DIGEST_DOMAIN)
    update_with_tokens(state, ids)
    return state.hexdigest()


def token_header(count: int) -> bytes:
    """Return the nine bytes that precede ``count`` encoded ids (B9)."""
    return _HEADER(DIGEST_VERSION, count)


def update_with_tokens(state: Any, ids: TokenArray) -> None:
    """Feed the encoding of ``ids`` (B9) into a hashlib state, without holding it as a whole."""
    state.update(token_header(ids.size))
    block = np.empty(min(ids.size, _HASHED_TOKENS), ">u8")
    for start in range(0, ids.size, _HASHED_TOKENS):
        part = ids[start : start + _HASHED_TOKENS]
        block[: part.size] = part
        state.update(block[: part.size])


def starts_with(ids: TokenArray, prefix: TokenArray) -> bool:
    """Whether ``ids`` begins with every token of ``prefix``, whatever the types of the two arrays."""
    return prefix.size <= ids.size and bool((ids[: prefix.size] == prefix).all())


def join_tokens(parts: Sequence[TokenArray]) -> TokenArray:
    """Return the parts one after the other, read-only.

    A single part is returned as it is, and parts that lie next to each other in one buffer become a view of it;
    everything else is one copy.
    """
    parts = [part for part in parts if part.size]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _frozen(np.empty(0, np.uint32))
    view = _common_view(parts)
    return _frozen(np.concatenate(parts) if view is None else view)


def _common_view(parts: Sequence[TokenArray]) -> TokenArray | None:
    owner = parts[0].base
    if not isinstance(owner, np.ndarray) or owner.ndim != 1 or not owner.flags.c_contiguous:
        return None
    end = _address(parts[0])
    for part in parts:
        if part.base is not owner or part.dtype != owner.dtype or _address(part) != end:
            return None
        end += part.nbytes
    start = (_address(parts[0]) - _address(owner)) // owner.itemsize
    return cast("TokenArray", owner[start : start + sum(part.size for part in parts)])


def _address(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    if not values.flags.writeable:
        return values
    view = values.view()
    view.flags.writeable = False
    return view


def _listed(values: Iterable[Any], what: str) -> list[Any] | tuple[Any, ...] | range:
    if isinstance(values, list | tuple | range):
        return values
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
        raise ValueError(f"{what} must be a sequence of numbers, not {type(values).__name__}")  # noqa: TRY004 - one error type for bad tokens
    return list(values)


def _pack_id_list(values: Sequence[Any]) -> TokenArray:
    for code, dtype in (("I", np.uint32), ("Q", np.uint64)):
        try:
            return _frozen(np.frombuffer(array(code, values), dtype))
        except OverflowError:
            continue
        except TypeError:
            break
    raise ValueError(_first_refused(values))


def _first_refused(values: Sequence[Any]) -> str:
    other = ""
    for at, value in enumerate(values):
        try:
            number = operator.index(value)
        except TypeError:
            other = other or f"token id {value!r} at index {at} is not an integer"
            continue
        if number < 0:
            return f"token id {number} at index {at} is negative"
        if number >= _ID_LIMIT:
            other = other or f"token id {number} at index {at} is 2**64 or more"
    return other


def _pack_id_array(values: NDArray[Any]) -> TokenArray:
    if values.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, not of shape {values.shape}")
    if values.dtype.kind == "O":
        return _pack_id_list(values.tolist())
    if values.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers, not an array of {values.dtype}")
    if values.dtype.kind == "i" and values.size and values.min() < 0:
        at = int(np.argmax(values < 0))
        raise ValueError(f"token id {values[at]} at index {at} is negative")
    wide = values.itemsize > 4 and values.size and int(values.max()) >= _NARROW_LIMIT
    return _frozen(_owned(values, np.uint64 if wide else np.uint32))


def _float_array(values: Any) -> NDArray[Any]:
    if not isinstance(values, np.ndarray):
        return _float_list(_listed(values, "log probs"))
    if values.ndim != 1:
        raise ValueError(f"log probs must be one-dimensional, not of shape {values.shape}")
    if values.dtype == np.float32:
        return _owned(values, np.float32)
    return _owned(values, np.float64) if values.dtype.kind in "fiu" else _float_list(values.tolist())


def _float_list(values: Sequence[Any]) -> NDArray[np.float64]:
    try:
        return np.frombuffer(array("d", values), np.float64)
    except (TypeError, OverflowError):
        raise ValueError(_first_no_float(values)) from None


def _first_no_float(values: Sequence[Any]) -> str:
    for at, value in enumerate(values):
        try:
            array("d", (value,))
        except (TypeError, OverflowError):
            return f"log prob {value!r} at index {at} is not a number that a float can hold"
    return "log probs are not numbers"


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32, copy=False)
    return narrow if np.array_equal(narrow, values) else values


def _owned(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values in the given type: themselves if nobody can change them, else a copy."""
    shared = values.dtype == dtype and not values.flags.writeable and values.flags.c_contiguous
    return values if shared else values.astype(dtype, order="C")
