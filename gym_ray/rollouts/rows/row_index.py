"""Where each materialised row lies, in a file that is mapped and not read: a row costs no memory, and no second scan.

The file is little-endian: a header of 64 bytes (magic 8, version 4, crc32c of what follows 4, rows 8, bytes of the
materialised file 8, its sha256 32), then 12 bytes a row: its offset (8) and the crc32c of its line without the line
feed (4). It can always be built again from the rows.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from gym_ray.errors import InputError

__all__ = ["RowIndex", "write_row_index"]

_MAGIC = b"gr-rows\n"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
_FACTS = struct.Struct("<QQ32s")
_ENTRY = struct.Struct("<QI")
_HEADER_BYTES = _HEADER.size + _FACTS.size
_CHUNK = 1 << 20


class RowIndex:
    """A mapped index. Close it.

    Args:
        file: The index, open; it may be closed afterwards.

    Attributes:
        size: Bytes of the materialised file.
        sha256: Its digest, hexadecimal.

    Raises:
        ValueError: The file is no whole index of this version.
    """

    def __init__(self, file: BinaryIO) -> None:
        header = file.read(_HEADER_BYTES)
        if len(header) != _HEADER_BYTES:
            raise ValueError("the header is cut off")
        magic, version, crc = _HEADER.unpack_from(header)
        facts = header[_HEADER.size :]
        if magic != _MAGIC or version != _VERSION or google_crc32c.value(facts) != crc:
            raise ValueError("the header is damaged or of another version")
        digest: bytes
        self._rows, self.size, digest = _FACTS.unpack(facts)
        self.sha256: str = digest.hex()
        expected = _HEADER_BYTES + _ENTRY.size * self._rows
        if file.seek(0, 2) != expected:
            raise ValueError(f"the file has not the {expected} bytes of {self._rows} rows")
        self._map = mmap.mmap(file.fileno(), expected, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Unmap; safe to repeat."""
        self._map.close()

    def __len__(self) -> int:
        return int(self._rows)

    def row(self, ordinal: int) -> tuple[int, int, int]:
        """Return offset, bytes with the line feed, and crc32c of one row; the caller checks the range of ``ordinal``.

        The number of bytes is 0 where the index itself is damaged.
        """
        at = _HEADER_BYTES + _ENTRY.size * ordinal
        offset, crc = _ENTRY.unpack_from(self._map, at)
        end = self.size if ordinal + 1 == self._rows else _ENTRY.unpack_from(self._map, at + _ENTRY.size)[0]
        return offset, end - offset if offset < end <= self.size else 0, crc


def write_row_index(rows: Path, out: BinaryIO) -> None:
    """Scan a materialised file and write its index to ``out``, which is flushed and not synced.

    Raises:
        InputError: The file cannot be read, or is cut off in the middle of its last row.
        OSError: ``out`` cannot be written.
    """
    out.seek(0)
    out.write(bytes(_HEADER_BYTES))
    digest, count, size = hashlib.sha256(), 0, 0
    for chunk_of_lines in _lines(rows, digest):
        entries = []
        for line in chunk_of_lines:
            entries.append(_ENTRY.pack(size, google_crc32c.value(line)))
            size += len(line) + 1
        count += len(entries)
        out.write(b"".join(entries))
    facts = _FACTS.pack(count, size, digest.digest())
    out.seek(0)
    out.write(_HEADER.pack(_MAGIC, _VERSION, google_crc32c.value(facts)) + facts)
    out.flush()


def _lines(rows: Path, digest: hashlib._Hash) -> Iterator[list[bytes]]:
    rest: list[bytes] = []
    count = 0
    try:
        with rows.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                first, *others = chunk.split(b"\n")
                rest.append(first)
                if others:
                    lines = [b"".join(rest), *others[:-1]]
                    count += len(lines)
                    yield lines
                    rest = [others[-1]]
    except OSError as error:
        raise InputError(rows, 0, "", f"cannot read the materialised rows: {error.strerror or error}") from error
    if any(rest):
        raise InputError(rows, count + 1, "", "the file is cut off here; start the run afresh")
