"""A column of a staged call: an immutable array that reads like the list which the wire has.

A list of integers costs 36 bytes a token, and a pass of the interpreter each time it is checked, compared or hashed. A
column holds the array; whoever wants Python numbers gets them one by one, or all with :meth:`Column.tolist`. No column
changes a value: what the smaller type cannot hold exactly stays in the larger one.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gym_ray.token_id_capture.token_arrays import FloatArray, pack_token_ids

__all__ = ["Column", "id_array", "id_column", "log_prob_column", "mask_column", "plain_array"]

T = TypeVar("T", int, float)

_NUMBERS: Final = "biuf"


class Column(Sequence[T]):
    """A one-dimensional, read-only array of token ids, of a mask or of log probabilities, that compares like a list.

    A mask is held as truth values and read as ``0.0`` and ``1.0``. Equal means equal in value and order, to any list,
    tuple, array or column. A column is not hashable, as a list is not.

    Args:
        values: A one-dimensional array of numbers or truth values. It is shared, not copied: from now on nobody may
            change it.

    Raises:
        ValueError: The array has another number of dimensions, or holds something else.
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: NDArray[Any]) -> None:
        values = plain_array(values, "a column")
        if values.ndim != 1 or values.dtype.kind not in _NUMBERS:
            raise ValueError(
                f"a column is a one-dimensional array of numbers, not {values.dtype} of shape {values.shape}"
            )
        if values.flags.writeable:
            values = values.view()
            values.flags.writeable = False
        self._array = values

    @property
    def array(self) -> NDArray[Any]:
        """The values as a read-only array; a mask is one of truth values unless a zero in it has a sign."""
        return self._array

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return self._array.nbytes

    def tolist(self) -> list[T]:
        """Return the values as a new list of Python numbers."""
        values = self._array
        numbers: list[T] = (values.astype(np.float32) if values.dtype.kind == "b" else values).tolist()
        return numbers

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Column[T]: ...
    def __getitem__(self, index: int | slice) -> T | Column[T]:
        if isinstance(index, slice):
            return Column(self._array[index])
        value = self._array[operator.index(index)]
        return float(value) if self._array.dtype.kind == "b" else value.item()  # type: ignore[return-value]

    def __len__(self) -> int:
        return self._array.size

    def __iter__(self) -> Iterator[T]:
        return iter(self.tolist())

    def __reversed__(self) -> Iterator[T]:
        return reversed(self.tolist())

    def __contains__(self, value: object) -> bool:
        return value in self.tolist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            other = other._array
        if isinstance(other, np.ndarray):
            return bool(np.array_equal(self._array, other))
        if isinstance(other, list | tuple):
            return len(other) == self._array.size and self.tolist() == list(other)
        return NotImplemented

    def __add__(self, other: Sequence[T]) -> list[T]:
        return self.tolist() + list(other) if isinstance(other, Column | list | tuple) else NotImplemented

    def __radd__(self, other: Sequence[T]) -> list[T]:
        return list(other) + self.tolist() if isinstance(other, list | tuple) else NotImplemented

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if dtype is None or np.dtype(dtype) == self._array.dtype:
            return self._array.copy() if copy else self._array
        if copy is False:
            raise ValueError(f"a column of {self._array.dtype} becomes {np.dtype(dtype)} only as a copy")
        return self._array.astype(dtype)

    def __reduce__(self) -> tuple[type[Column[T]], tuple[NDArray[Any]]]:
        return Column, (self._array,)

    def __repr__(self) -> str:
        return f"Column({self.tolist()!r})"


def id_column(values: object) -> Column[int]:
    """Return token ids as a column of uint32 where each fits, else of uint64 (C22, C304).

    A list or tuple holds integers, no truth values and no numpy scalars; an array holds integers.

    Raises:
        ValueError: Something else, or an id that is negative or 2**64 and more; its index is named.
    """
    if isinstance(values, list | tuple):
        _refuse_other_types(values, (int,), "token id", "an integer")
        return Column(pack_token_ids(values))
    return Column(pack_token_ids(id_array(values, "token ids")))


def mask_column(values: object) -> Column[float]:
    """Return a mask as a column of truth values, or of float32 where a zero has a sign, which counts (C84).

    A list or tuple holds floats or integers, an array numbers or truth values; each is 0 or 1.

    Raises:
        ValueError: Something else; its index is named.
    """
    mask = _numbers(values, "token mask", "mask value")
    if mask.dtype.kind == "b":
        return Column(_owned(mask, np.bool_))
    ones = mask == 1
    odd = ~(ones | (mask == 0))
    if odd.any():
        at = int(np.argmax(odd))
        raise ValueError(f"mask value {mask[at]} at index {at} is neither 0.0 nor 1.0")
    if mask.dtype.kind == "f" and np.signbit(mask).any():
        return Column(_owned(mask, np.float32))
    return Column(ones)


def log_prob_column(values: object) -> Column[float]:
    """Return log probabilities as a column: float32 for an array or where that is exact, else float64.

    The values of a float64 array are rounded to float32, half to even, as they are staged and hashed (C83), unless that
    would make a zero of one. Those of a list stay as they are (C165).

    Raises:
        ValueError: A value is no float, not finite, or rounds past the largest float32; its index is named.
    """
    wide = _numbers(values, "log probs", "log prob")
    if wide.dtype.kind != "f":
        raise ValueError(f"log probs must be floats, not an array of {wide.dtype}")
    return Column(_as_float32(wide, exact=isinstance(values, list | tuple | Column)))


def id_array(values: object, what: str) -> NDArray[Any]:
    """Return a buffer as an array of integers; their range and its shape are not looked at.

    Raises:
        ValueError: It holds something else; an array of objects is judged by its type, as any other is.
    """
    ids = plain_array(values, what)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers, not an array of {ids.dtype}")
    return ids


def plain_array(values: object, what: str) -> NDArray[Any]:
    """Return a buffer, an array or a column as an array.

    Raises:
        ValueError: It is none of these; or an array of another class, which may compare in its own way: what a masked
            array hides equals anything.
    """
    if isinstance(values, Column):
        return values.array
    if type(values) is np.ndarray:
        return values
    if isinstance(values, memoryview | array | np.memmap):
        return np.asarray(values)
    raise ValueError(f"{what} must be a list, tuple or array, not {type(values).__name__}")


def _as_float32(wide: NDArray[Any], *, exact: bool) -> FloatArray:
    """Return log probabilities as float32, or as they are where ``exact`` forbids rounding or one would vanish.

    Args:
        wide: A one-dimensional array of numbers.
        exact: Whether a value that float32 does not hold keeps them all in float64.

    Raises:
        ValueError: A value is not finite, or rounds past the largest float32; its index is named.
    """
    if wide.dtype == np.float32:
        _refuse_infinite(wide, wide)
        return _owned(wide, np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32)
    _refuse_infinite(narrow, wide)
    kept = np.array_equal(narrow, wide) if exact else np.count_nonzero(narrow) == np.count_nonzero(wide)
    return narrow if kept else _owned(wide, np.float64)


def _refuse_infinite(narrow: NDArray[Any], wide: NDArray[Any]) -> None:
    finite = np.isfinite(narrow)
    if not finite.all():
        at = int(np.argmin(finite))
        raise ValueError(f"log prob {wide[at]} at index {at} is no finite float32")


def _numbers(values: object, what: str, one: str) -> NDArray[Any]:
    if isinstance(values, list | tuple):
        _refuse_other_types(values, (float, int), one, "a float")
        try:
            return np.frombuffer(array("d", values), np.float64)
        except OverflowError:
            raise ValueError(f"{what} hold an integer that no float can hold") from None
    numbers = plain_array(values, what)
    if numbers.ndim != 1 or numbers.dtype.kind not in _NUMBERS or numbers.dtype.itemsize > 8:
        raise ValueError(f"{what} must be a one-dimensional array of numbers, not {numbers.dtype} of {numbers.shape}")
    return numbers


def _refuse_other_types(values: Sequence[Any], allowed: tuple[type, ...], one: str, wanted: str) -> None:
    if operator.countOf(map(type, values), allowed[0]) == len(values):
        return
    kinds = set(map(type, values))
    if all(issubclass(kind, allowed) and kind is not bool for kind in kinds):
        return
    for at, value in enumerate(values):
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise ValueError(f"{one} {value!r} at index {at} is not {wanted}")  # noqa: TRY004 - pydantic takes it for the field's


def _owned(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values in the given type: themselves if nobody can change them, else a copy."""
    shared = values.dtype == dtype and not values.flags.writeable and values.flags.c_contiguous
    return values if shared else values.astype(dtype, order="C")
