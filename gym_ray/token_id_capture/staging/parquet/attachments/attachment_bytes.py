"""The stored bytes of a tensor, cut into parts: C-order, little-endian, copied a part at a time or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArraySource", "ByteSource", "BytesSource", "regrouped"]


class ByteSource(Protocol):
    """Bytes that can be walked through any number of times."""

    @property
    def nbytes(self) -> int:
        """How many there are."""

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield them in parts of ``max_bytes``, the last one shorter, none empty."""


class BytesSource:
    """Bytes that lie in memory as they are stored; never copied.

    Args:
        data: A flat view of bytes.
    """

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._data.nbytes

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield views of the bytes."""
        for start in range(0, self._data.nbytes, max_bytes):
            yield self._data[start : start + max_bytes]


class ArraySource:
    """The elements of an array in C order, little-endian.

    Args:
        array: Numbers of a fixed size, in any layout and byte order.
    """

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._array.size * self._array.itemsize

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield the bytes: views where the array lies in memory as it is stored, copies of a part otherwise."""
        array = self._array
        if not array.size:
            return iter(())
        stored = array.dtype.newbyteorder("<")
        if array.flags.c_contiguous and array.dtype == stored:
            return BytesSource(array.reshape(-1).view(np.uint8).data).parts(max_bytes)
        return regrouped(self._copies(stored, max_bytes), max_bytes)

    def _copies(self, stored: np.dtype[Any], max_bytes: int) -> Iterator[memoryview]:
        walk = np.nditer(  # type: ignore[call-overload] # numpy's stubs misspell "contig"
            self._array,
            flags=["external_loop", "buffered"],
            op_flags=[["readonly", "contig"]],
            op_dtypes=[stored],
            order="C",
            casting="equiv",
            buffersize=max(1, max_bytes // stored.itemsize),
        )
        with walk:
            for block in walk:
                # The iterator fills the same buffer again, or shows the array itself: what leaves here must stay.
                yield memoryview(np.asarray(block).tobytes())


def regrouped(blocks: Iterable[memoryview], max_bytes: int) -> Iterator[memoryview]:
    """Yield the same bytes in parts of exactly ``max_bytes``, the last one shorter; whole blocks are not copied."""
    pending = bytearray()
    for block in blocks:
        start = 0
        while start < block.nbytes:
            if not pending and block.nbytes - start >= max_bytes:
                yield block[start : start + max_bytes]
                start += max_bytes
                continue
            taken = block[start : start + max_bytes - len(pending)]
            pending += taken
            start += taken.nbytes
            if len(pending) == max_bytes:
                yield memoryview(pending)
                pending = bytearray()
    if pending:
        yield memoryview(pending)
