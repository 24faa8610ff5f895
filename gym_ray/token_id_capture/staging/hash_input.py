"""What the digests of staging are made of: values checked as strictly as the contract has it, and fed to a hash.

Lists and tuples hold exact Python numbers, or they are refused: a truth value or a numpy scalar that hashes like the
number it stands for would let two records differ that have one digest (C80, C83). Arrays are judged by their type. No
Python number is made of an array, and no encoding of a column is ever held as a whole.
"""

from __future__ import annotations

import operator
import re
import struct
from array import array
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.columns import id_array, plain_array
from gym_ray.token_id_capture.token_arrays import TokenArray, pack_token_ids

__all__ = [
    "checked_digest",
    "float32_values",
    "read_u64",
    "strict_floats",
    "strict_token_ids",
    "u64",
    "update_with_floats",
    "update_with_ids",
]

# 256 KiB of big-endian values stay in the cache of a core, and the lock is handed over a few times only.
_HASHED_IDS: Final = 32768
_HASHED_FLOATS: Final = 65536
_U64: Final = struct.Struct(">Q").pack
_U64_LIMIT: Final = 1 << 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REFUSED_ARRAY: Final = "{} must be a one-dimensional array of {}, not {} of shape {}"


def u64(value: int) -> bytes:
    """Return a length or count that is known to be right, big-endian."""
    return _U64(value)


def read_u64(value: object, what: str) -> int:
    """Return an exact integer of 64 bits without sign.

    Raises:
        ValueError: It is none; ``what`` names it.
    """
    if type(value) is not int or not 0 <= value < _U64_LIMIT:
        raise ValueError(f"{what} {value!r} is not an integer from 0 to 2**64 - 1")
    return value


def checked_digest(value: object, what: str) -> bytes:
    """Return the 32 bytes that a digest spells (C13).

    Raises:
        TypeError: It is missing.
        ValueError: It is anything but 64 lowercase hex digits; ``what`` names it.
    """
    if value is None:
        raise TypeError(f"{what} is missing")
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{what} {value!r} is not 64 lowercase hex digits")
    return bytes.fromhex(value)


def strict_token_ids(values: object, what: str = "token ids") -> TokenArray:
    """Return token ids as a read-only array; a packed array is returned as it is (C80).

    Raises:
        ValueError: An element of a list or tuple is no exact ``int`` in 0 to 2**64 - 1, an array does not hold
            integers, or the values are no sequence.
    """
    if isinstance(values, list | tuple):
        _refuse_inexact(values, int, what)
        return pack_token_ids(values)
    return pack_token_ids(id_array(values, what))


def strict_floats(values: object, what: str) -> NDArray[Any]:
    """Return floats as an array of the type that they came in: truth values, float32 or float64 (C83).

    Raises:
        ValueError: An element of a list or tuple is no exact ``float``, an array holds something else, or the values
            are no sequence. Whether they are finite is not looked at.
    """
    if isinstance(values, list | tuple):
        _refuse_inexact(values, float, what)
        return np.frombuffer(array("d", values), np.float64)
    numbers = plain_array(values, what)
    if numbers.ndim != 1 or numbers.dtype.kind not in "bf" or numbers.dtype.itemsize > 8:
        raise ValueError(_REFUSED_ARRAY.format(what, "floats", numbers.dtype, numbers.shape))
    return numbers


def float32_values(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return values as float32, rounded half to even; truth values and float32 as they are (C83).

    Raises:
        ValueError: A value is not finite, or rounds past the largest float32; its index is named.
    """
    if values.dtype.kind == "b":
        return values
    narrow = values
    if values.dtype != np.float32:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = values.astype(np.float32)
    finite = np.isfinite(narrow)
    if not finite.all():
        at = int(np.argmin(finite))
        raise ValueError(f"{what}: {values[at]} at index {at} is no finite float32")
    return narrow


def update_with_ids(states: tuple[Any, ...], ids: TokenArray) -> None:
    """Feed ids as u64 into each of the hashlib states, encoded once; the count is the caller's."""
    block = np.empty(min(ids.size, _HASHED_IDS), ">u8")
    for start in range(0, ids.size, _HASHED_IDS):
        part = ids[start : start + _HASHED_IDS]
        encoded = block[: part.size]
        encoded[:] = part
        for state in states:
            state.update(encoded)


def update_with_floats(state: Any, values: NDArray[Any]) -> None:
    """Feed float32 or truth values as f32 into a hashlib state; the count is the caller's."""
    block = np.empty(min(values.size, _HASHED_FLOATS), ">f4")
    for start in range(0, values.size, _HASHED_FLOATS):
        part = values[start : start + _HASHED_FLOATS]
        encoded = block[: part.size]
        encoded[:] = part
        state.update(encoded)


def _refuse_inexact(values: list[Any] | tuple[Any, ...], wanted: type, what: str) -> None:
    if operator.countOf(map(type, values), wanted) == len(values):
        return
    at, value = next((at, value) for at, value in enumerate(values) if type(value) is not wanted)
    raise ValueError(f"{what}: {value!r} at index {at} is not an exact {wanted.__name__}")
