"""What a framework handed over, given back as it was: streamed, or as a whole, and never without its hash checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import (
    ARROW_ARRAY,
    ARROW_CHUNKED_ARRAY,
    ARROW_COLUMN,
    ARROW_KINDS,
    ARROW_RECORD_BATCH,
    ARROW_TABLE,
    BYTES,
    LIST,
    RAW_BITS,
    TEXT,
    storage_dtype,
)
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import StoredAttachment

__all__ = ["AttachmentView", "PartReader", "gathered"]

PartReader: TypeAlias = Callable[[StoredAttachment], Iterator[memoryview]]
"""Returns the stored parts of an attachment one after the other."""


class AttachmentView:
    """One attachment in storage; its bytes move when they are asked for.

    Attributes:
        name: Name under which it was handed over.
        item: Place in a list, 0 for a single value.
        dtype: Type of its elements, or ``bytes``, ``str``, ``arrow:table``, …
        shape: Its shape; the length of bytes, and of text in UTF-8; rows and columns of a table.
        nbytes: How many bytes it has.
        sha256: Their hash, 32 bytes.
    """

    __slots__ = ("_parts", "_place", "_stored", "dtype", "item", "name", "nbytes", "sha256", "shape")

    def __init__(self, stored: StoredAttachment, place: str, parts: PartReader) -> None:
        self.name, self.item = stored.name, stored.item
        self.dtype, self.shape = stored.dtype, stored.shape
        self.nbytes, self.sha256 = stored.nbytes, stored.sha256
        self._stored, self._place, self._parts = stored, place, parts

    def __repr__(self) -> str:
        return f"AttachmentView({self.name!r}, item={self.item}, dtype={self.dtype!r}, shape={self.shape})"

    def chunks(self) -> Iterator[memoryview]:
        """Yield the stored bytes in order, in parts of at most 16 MiB: C order, little-endian.

        They are right only if the iteration ends without an error: the hash is known after the last part.

        Raises:
            ValueError: They are not the bytes that were staged.
            StagedCallMissingError: The call was retired and its rows removed.
            StorageError: They could not be read.
        """
        state, count = hashlib.sha256(), 0
        for part in self._parts(self._stored) if self.nbytes else ():
            state.update(part)
            count += part.nbytes
            yield part
        if count != self.nbytes or state.digest() != self.sha256:
            raise self._damaged(f"its {count} bytes have the hash {state.hexdigest()}, not {self.sha256.hex()}")

    def read(self) -> Any:
        """Return the value: an array of its own that may be changed, bytes, text, or what Arrow had.

        bfloat16 and float8 come as arrays of ``ml_dtypes`` where that is installed, else as their bits in ``uint16``
        or ``uint8``; :attr:`dtype` tells which numbers they are.

        Raises:
            ValueError: It is damaged; the message names the file, the row and the attachment.
            StagedCallMissingError: The call was retired and its rows removed.
            StorageError: It could not be read.
        """
        kind = storage_dtype(self.dtype)
        if kind is not None and math.prod(self.shape) * kind.itemsize != self.nbytes:
            raise self._damaged(f"{self.nbytes} bytes are no {self.dtype} of shape {self.shape}")
        if kind is None and self.dtype not in (BYTES, TEXT) and self.dtype not in ARROW_KINDS:
            raise self._damaged(f"its type {self.dtype!r} is not known here; it may be of a later version")
        data = self._whole()
        if kind is not None:
            return _as_tensor(data.view(kind).reshape(self.shape), self.dtype)
        try:
            return _VALUES[self.dtype](data)
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise self._damaged(f"it cannot be read as {self.dtype}: {error}") from error

    def _whole(self) -> NDArray[np.uint8]:
        data = np.empty(0, np.uint8)
        at = 0
        for part in self.chunks():
            if not at:  # the first part is there, so the number of bytes is not a damaged one
                data = np.empty(self.nbytes, np.uint8)
            if at + part.nbytes > self.nbytes:
                raise self._damaged(f"it has more than its {self.nbytes} bytes")
            data[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
            at += part.nbytes
        return data

    def _damaged(self, problem: str) -> ValueError:
        return ValueError(f"{self._place}: attachment {self.name!r}, item {self.item}: {problem}")


def gathered(views: list[AttachmentView], place: str) -> dict[str, AttachmentView | list[AttachmentView]]:
    """Return the attachments of a call by name, in the order they were handed over; a list is a list.

    Raises:
        ValueError: The entries of a list are not together, or a name is there twice.
    """
    found: dict[str, AttachmentView | list[AttachmentView]] = {}
    at = 0
    while at < len(views):
        first = views[at]
        if first.name in found:
            raise ValueError(f"{place}: attachment {first.name!r} is there twice")
        if first.dtype != LIST:
            found[first.name] = first
            at += 1
            continue
        count = first.shape[0] if first.shape else 0
        items = views[at + 1 : at + 1 + count]
        if [(view.name, view.item) for view in items] != [(first.name, item) for item in range(count)]:
            raise ValueError(f"{place}: attachment {first.name!r} is a list of {count} items, which are not all there")
        found[first.name] = items
        at += 1 + count
    return found


def _as_tensor(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype not in RAW_BITS:
        return array
    try:
        kind: Any = getattr(import_module("ml_dtypes"), dtype, None)
    except ImportError:
        return array
    return array if kind is None else array.view(kind)


def _as_table(data: NDArray[np.uint8]) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    table.validate(full=True)
    return table


def _as_record_batch(data: NDArray[np.uint8]) -> pa.RecordBatch:
    table = _as_table(data).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _as_array(data: NDArray[np.uint8]) -> pa.Array:
    column = _as_table(data).column(ARROW_COLUMN)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


_VALUES: Final[Mapping[str, Callable[[NDArray[np.uint8]], Any]]] = MappingProxyType(
    {
        BYTES: lambda data: data.tobytes(),
        TEXT: lambda data: data.tobytes().decode(),
        ARROW_TABLE: _as_table,
        ARROW_RECORD_BATCH: _as_record_batch,
        ARROW_ARRAY: _as_array,
        ARROW_CHUNKED_ARRAY: lambda data: _as_table(data).column(ARROW_COLUMN),
    }
)
