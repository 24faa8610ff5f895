"""The names under which attachments are stored, and the bytes that each name stands for.

Writer and reader share these tables and nothing else. A name is part of the stored format: it may be added to, never
given another meaning.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

__all__ = [
    "ARROW_ARRAY",
    "ARROW_CHUNKED_ARRAY",
    "ARROW_COLUMN",
    "ARROW_KINDS",
    "ARROW_RECORD_BATCH",
    "ARROW_TABLE",
    "BYTES",
    "LIST",
    "NUMPY_DTYPES",
    "RAW_BITS",
    "TEXT",
    "storage_dtype",
]

BYTES: Final = "bytes"
TEXT: Final = "str"
LIST: Final = "list"
"""The entry that precedes the items of a list and says how many they are; it has no bytes of its own."""

ARROW_TABLE: Final = "arrow:table"
ARROW_RECORD_BATCH: Final = "arrow:record_batch"
ARROW_ARRAY: Final = "arrow:array"
ARROW_CHUNKED_ARRAY: Final = "arrow:chunked_array"
ARROW_KINDS: Final = frozenset({ARROW_TABLE, ARROW_RECORD_BATCH, ARROW_ARRAY, ARROW_CHUNKED_ARRAY})
ARROW_COLUMN: Final = "value"
"""Name of the only column of an Arrow stream that holds an array."""

NUMPY_DTYPES: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)
RAW_BITS: Final = MappingProxyType(
    {
        "bfloat16": "<u2",
        "float8_e3m4": "|u1",
        "float8_e4m3": "|u1",
        "float8_e4m3b11fnuz": "|u1",
        "float8_e4m3fn": "|u1",
        "float8_e4m3fnuz": "|u1",
        "float8_e5m2": "|u1",
        "float8_e5m2fnuz": "|u1",
        "float8_e8m0fnu": "|u1",
    }
)
"""Numbers that numpy has no type for: stored as their bits, under their own names."""


def storage_dtype(name: str) -> np.dtype[np.generic] | None:
    """Return the little-endian numpy type that holds the elements of a named type; ``None`` for what is no tensor."""
    if name in RAW_BITS:
        return np.dtype(RAW_BITS[name])
    return np.dtype(name).newbyteorder("<") if name in NUMPY_DTYPES else None
