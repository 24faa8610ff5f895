"""What a framework hands over beside a call's tokens, made ready to be written: checked, named, cut into parts.

Attachments are opaque to the capture and lie outside every digest (C94); here they become bytes that anybody can read
back without pickle: C-order and little-endian whatever the layout was. Everything is checked before the first byte is
written, and what cannot be kept exactly is refused by name (C100). Nothing here may copy a large tensor as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gym_ray.errors import RefusedRecordError, StorageError
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_arrow import ArrowSource
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_bytes import ArraySource, ByteSource, BytesSource
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import (
    BYTES,
    LIST,
    NUMPY_DTYPES,
    RAW_BITS,
    TEXT,
)
from gym_ray.token_id_capture.staging.parquet.attachments.foreign_tensors import is_foreign_tensor, tensor_bits

__all__ = ["PreparedAttachment", "prepare_attachments"]

_HASHED_BYTES: Final = 4 << 20
"""Hashed at a time: hashlib releases the interpreter lock for each slice, and a strided tensor is copied in slices."""

_NO_BYTES: Final = BytesSource(memoryview(b""))


class PreparedAttachment:
    """One stored tensor, or the entry of a list, whose bytes are made when they are asked for.

    It shares the memory of what it was made from: that must not change until the parts were read.

    Args:
        name: Name under which the framework handed it over.
        item: Index in a list, 0 for a single tensor and for the entry of a list itself.
        dtype: One of the names in :mod:`attachment_kinds`.
        shape: Shape of a tensor; ``(length,)`` of bytes, text (in bytes) and lists; rows and columns of a table.
        source: The bytes.
        sha256: Their hash, where it is known already.
    """

    __slots__ = ("_checksum", "_sha256", "_source", "dtype", "item", "name", "nbytes", "shape")

    def __init__(
        self,
        name: str,
        item: int,
        dtype: str,
        shape: tuple[int, ...],
        source: ByteSource,
        sha256: bytes | None = None,
    ) -> None:
        self.name, self.item, self.dtype, self.shape = name, item, dtype, shape
        self.nbytes = source.nbytes
        self._source = source
        self._sha256 = sha256
        self._checksum: int | None = None  # of the bytes that were hashed here

    @property
    def sha256(self) -> bytes:
        """Hash of the stored bytes, 32 bytes; computed at the first look, without holding the bytes as a whole."""
        if self._sha256 is None:
            state, checksum = hashlib.sha256(), 0
            for part in self.parts(_HASHED_BYTES):
                state.update(part)
                checksum = _extended(checksum, part)
            self._sha256, self._checksum = state.digest(), checksum
        return self._sha256

    def parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield the stored bytes in order: each part has ``max_bytes``, only the last may have fewer, none is empty.

        A part stays valid after the next one was asked for. A tensor that lies in memory as it is stored is not
        copied; any other is copied a part at a time.

        Args:
            max_bytes: Size of a part, at least 16 (the widest number).
        """
        return self._source.parts(max_bytes)

    def hashed_parts(self, max_bytes: int) -> Iterator[memoryview]:
        """Yield the parts, and make sure that they are what was hashed; a checksum tells, in less time.

        Raises:
            StorageError: There were fewer or more bytes than announced, or somebody changed them meanwhile. Said after
                the last part.
        """
        written = checksum = 0
        for part in self.parts(max_bytes):
            written += part.nbytes
            checksum = _extended(checksum, part)
            yield part
            del part  # a loop's variable keeps a part, that may be a copy, while the next one is made
        if written != self.nbytes:
            raise StorageError(f"attachment {self.name!r} gave {written} bytes, where {self.nbytes} were announced")
        if self._checksum not in (None, checksum):
            raise StorageError(f"attachment {self.name!r} was changed while it was being staged")


def prepare_attachments(attachments: Mapping[str, Any]) -> list[PreparedAttachment]:
    """Return everything in a mapping of attachments, in its order, ready to be written (C97, C100).

    Kept: numpy arrays and numbers of truth values, integers, floats and complex numbers in every layout; bfloat16 and
    float8 as their bits; tensors of another library that offer ``detach`` and ``cpu``; bytes and text; Arrow tables,
    batches and arrays. A list or tuple of these is kept as a list: an entry of type ``list``, then its items.

    Raises:
        RefusedRecordError: Something cannot be kept exactly; the message names the attachment, what it is, and what
            to hand over instead. Nothing was written.
    """
    if not isinstance(attachments, Mapping):
        raise RefusedRecordError(f"attachments must be a mapping of names to tensors, not {_kind(attachments)}")
    prepared: list[PreparedAttachment] = []
    names: set[str] = set()
    for key, value in attachments.items():
        name = _checked_name(key)
        if name in names:
            raise RefusedRecordError(f"attachment name {name!r} is there twice")
        names.add(name)
        if isinstance(value, list | tuple):
            prepared.append(PreparedAttachment(name, 0, LIST, (len(value),), _NO_BYTES))
            prepared.extend(_prepared(name, f"{name!r}[{at}]", at, item) for at, item in enumerate(value))
        else:
            prepared.append(_prepared(name, repr(name), 0, value))
    return prepared


def _extended(checksum: int, part: memoryview) -> int:
    numbers = np.frombuffer(part, np.uint8)
    numbers.flags.writeable = False  # else the library takes it for bytes that may move
    return int(google_crc32c.extend(checksum, numbers))


def _checked_name(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise RefusedRecordError(f"attachment name {key!r} must be text that is not empty")
    name = str.__str__(key)  # the text itself: str() of a member of an enumeration is how it is called in the program
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise RefusedRecordError(f"attachment name {name!r} is no text that can be stored: {error}") from None
    return name


def _prepared(name: str, label: str, item: int, value: Any) -> PreparedAttachment:
    for accepts, convert in _CONVERSIONS:
        if accepts(value):
            dtype, shape, source = convert(label, value)
            return PreparedAttachment(name, item, dtype, shape, source)
    raise RefusedRecordError(f"attachment {label} {_refusal(value)}")


_Converted = tuple[str, tuple[int, ...], ByteSource]


def _from_bytes(_label: str, value: bytes | bytearray | memoryview) -> _Converted:
    view = memoryview(value)
    if not view.nbytes:
        return BYTES, (0,), _NO_BYTES
    source: ByteSource = BytesSource(view.cast("B")) if view.c_contiguous else ArraySource(np.asarray(view))
    return BYTES, (view.nbytes,), source


def _from_text(label: str, value: str) -> _Converted:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise RefusedRecordError(f"attachment {label} is no text that can be stored: {error}") from None
    return TEXT, (len(data),), BytesSource(memoryview(data))


def _from_array(label: str, value: NDArray[Any] | np.generic) -> _Converted:
    if isinstance(value, np.ma.MaskedArray):
        raise RefusedRecordError(f"attachment {label} is a masked array; hand over its data and its mask")
    array = np.asarray(value)
    name = array.dtype.name
    if name in RAW_BITS and array.dtype.type.__module__ != "numpy":
        bits = np.dtype(RAW_BITS[name])
        stored = bits.newbyteorder(">") if array.dtype.byteorder == ">" else bits
        return name, array.shape, ArraySource(array.view(stored))
    if name not in NUMPY_DTYPES:
        raise RefusedRecordError(f"attachment {label} {_refused_dtype(array.dtype)}")
    return name, array.shape, ArraySource(array)


def _from_tensor(label: str, value: Any) -> _Converted:
    name, array = tensor_bits(label, value)
    if name in RAW_BITS:
        return name, array.shape, ArraySource(array)
    return _from_array(label, array)


def _from_arrow(label: str, value: Any) -> _Converted:
    source = ArrowSource.of(label, value)
    return source.kind, source.shape, source


_ARROW: Final = (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)
_CONVERSIONS: Final[tuple[tuple[Callable[[Any], bool], Callable[[str, Any], _Converted]], ...]] = (
    (lambda value: isinstance(value, np.ndarray | np.generic), _from_array),
    (lambda value: isinstance(value, bytes | bytearray | memoryview), _from_bytes),
    (lambda value: isinstance(value, str), _from_text),
    (lambda value: isinstance(value, _ARROW), _from_arrow),
    (is_foreign_tensor, _from_tensor),
)

_DTYPE_REFUSALS: Final = {
    "O": "is an array of Python objects, which cannot be kept without pickle; hand over numbers",
    "m": "is an array of time spans; hand over its integers and keep the unit in a name",
    "M": "is an array of times; hand over its integers and keep the unit in a name",
    "U": "is an array of text; hand over a list of strings or an Arrow array",
    "S": "is an array of byte strings; hand over a list of bytes or an Arrow array",
    "T": "is an array of text; hand over a list of strings or an Arrow array",
}


def _refused_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.fields is not None:
        return f"is a structured array with the fields {', '.join(dtype.names or ())}; hand each over by its own name"
    refusal = _DTYPE_REFUSALS.get(dtype.kind)
    return refusal or f"has the element type {dtype}, which is not kept; known: {_known()}"


def _refusal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "is a mapping; hand each of its members over by its own name, such as 'outer.inner'"
    if isinstance(value, list | tuple):
        return "is a list in a list; hand over one list of tensors, or one tensor"
    if value is None:
        return "is None; leave it out"
    if isinstance(value, bool | int | float | complex):
        return f"is a Python {_kind(value)}; hand over numpy.asarray(value) with the type that should be kept"
    if "sparse" in type(value).__module__.lower() or "sparse" in type(value).__name__.lower():
        return f"is sparse ({_kind(value)}); hand over its indices and values by their own names, or a dense tensor"
    return f"is a {_kind(value)}, which is not kept; hand over a tensor, bytes, text, or an Arrow table"


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _known() -> str:
    return ", ".join(sorted({*NUMPY_DTYPES, *RAW_BITS}))
