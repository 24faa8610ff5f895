"""The footer of a segment, and the seal before it: nothing is read from a footer whose bytes are not those written.

A Parquet footer has no checksum of its own, and pyarrow 26 ends the process when a damaged one is asked for some column
chunks. So twelve bytes stand between the last row and the footer, a mark and the CRC32C of all that follows. To any
other reader of Parquet they are a gap that nothing points to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from gym_ray.storage.store import SegmentStore
from gym_ray.storage.streams import StreamedValue

__all__ = ["DAMAGE", "FooterHolder", "SegmentFooter", "read_footer"]

_SEAL_MARK: Final = b"gr-seal1"
_CHECKSUM_BYTES: Final = 4
_SEAL_BYTES: Final = len(_SEAL_MARK) + _CHECKSUM_BYTES
_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
"""The length of the footer and the magic, which close every Parquet file."""
_PARSED_OVER_STORED: Final = 13
"""Memory that a parsed footer takes, for each of its bytes; measured."""

DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)
"""What the Parquet library raises when bytes are not what they should be."""


class FooterHolder:
    """A file for the Parquet library that passes rows on at once, and the footer only with its seal.

    Args:
        value: Where the bytes go; it is neither published nor closed here.
    """

    def __init__(self, value: StreamedValue) -> None:
        self.closed = False
        self._value = value
        self._held: bytearray | None = None

    def write(self, data: bytes) -> int:
        """Pass bytes on, or hold them back."""
        if self._held is None:
            return self._value.write(data)
        self._held += data
        return len(data)

    def hold(self) -> None:
        """Hold back what is written from now on: all rows were."""
        self._held = bytearray()

    def release(self) -> None:
        """Pass on what was held back, with its seal.

        Raises:
            OSError: The value took no more.
        """
        held = bytes(self._held or b"")
        start = len(held) - _END_BYTES - _footer_bytes(held)
        rows, footer = held[:start], held[start:]  # a library may yet write an index before the footer
        self._held = None
        self._value.write(rows + _seal(footer) + footer)

    def tell(self) -> int:
        """Return how many bytes there are."""
        return self._value.tell() + len(self._held or b"")

    def flush(self) -> None:
        """Nothing to do: rows were passed on."""

    def close(self) -> None:
        """Take no more."""
        self.closed = True


@dataclass(frozen=True, slots=True, eq=False)
class SegmentFooter:
    """A footer with the bytes that were written, read.

    Attributes:
        metadata: What it says, of type ``pyarrow.parquet.FileMetaData``.
        size: Of the whole file.
        tail: The end of the file, as much as was read.
        weight: Bytes in memory that it takes.
    """

    metadata: Any
    size: int
    tail: bytes
    weight: int


def read_footer(store: SegmentStore, name: str, tail_bytes: int) -> SegmentFooter:
    """Return the footer of a segment.

    Args:
        store: Where it lies.
        name: Its name there.
        tail_bytes: Read first; a longer footer takes a second request.

    Raises:
        StorageMissingError: There is no such segment.
        StorageError: It could not be read.
        ValueError: It is truncated, no segment, or its footer is damaged.
    """
    place = f"{store.place}/{name}"
    tail, size = store.read_tail(name, tail_bytes)
    if size < len(_MAGIC) + _END_BYTES or not tail.endswith(_MAGIC):
        raise ValueError(f"{place}: it is truncated, or no Parquet file")
    footer_bytes = _footer_bytes(tail) + _END_BYTES
    wanted = footer_bytes + _SEAL_BYTES
    if footer_bytes + len(_MAGIC) > size:
        raise ValueError(f"{place}: its footer is said to have {footer_bytes - _END_BYTES} bytes, more than the file")
    if len(tail) < wanted <= size:
        tail = store.read_range(name, size - wanted, wanted - len(tail)) + tail
    seal, footer = tail[-wanted:-footer_bytes], tail[-footer_bytes:]
    if not seal.startswith(_SEAL_MARK):
        raise ValueError(f"{place} is a Parquet file, but no segment of a staging store, or its footer is damaged")
    if seal != _seal(footer):
        raise ValueError(f"{place}: its footer is damaged: it has not the checksum that was written with it")
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
    except DAMAGE as error:
        raise ValueError(f"{place}: its footer cannot be read: {error}") from error
    return SegmentFooter(metadata, size, tail, footer_bytes * _PARSED_OVER_STORED)


def _footer_bytes(end: bytes) -> int:
    return int.from_bytes(end[-_END_BYTES : -len(_MAGIC)], "little")


def _seal(footer: bytes) -> bytes:
    return _SEAL_MARK + int(google_crc32c.value(footer)).to_bytes(_CHECKSUM_BYTES, "little")
