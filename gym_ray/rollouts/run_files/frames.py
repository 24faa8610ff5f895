"""The 64-byte frames of a run's logs, one by one and in blocks.

A frame is little-endian: crc32c of the rest (4 bytes), kind (1), file (1), version (2), attempt (4), flags (4), row
ordinal (8), offset (8), length (8), time in microseconds since 1970 (8), blake2b-128 (16). A resume reads two frames
for each finished rollout, so that it reads them in blocks and makes objects of none.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls

__all__ = ["BLOCK_BYTES", "FRAME_BYTES", "Frame", "FrameKind", "frame_damage", "read_blocks", "read_frames", "whole_in"]

FRAME_BYTES = 64
BLOCK_BYTES = 1024 * FRAME_BYTES
"""What is read of a log at a time."""

_VERSION = 1
_BODY = struct.Struct("<BBHIIQQQQ16s")
_CRC = struct.Struct("<I")
_FIELDS = np.dtype(
    [
        ("crc", "<u4"),
        ("kind", "u1"),
        ("file", "u1"),
        ("version", "<u2"),
        ("attempt", "<u4"),
        ("flags", "<u4"),
        ("ordinal", "<u8"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("at_us", "<u8"),
        ("digest", "V16"),
    ]
)


class FrameKind(IntEnum):
    """What a frame says about an attempt."""

    STARTED = 1
    CANCELLED = 2
    FINISHED = 3


_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        kind: What happened.
        ordinal: Row in the materialised inputs.
        attempt: Attempt of that row in the run, from 0.
        digest: 16 bytes.
        at_us: Microseconds since 1970.
        file, offset, length: A place in an output, 0 where the kind has none.
        flags: What a failure says of further tries.
    """

    kind: FrameKind
    ordinal: int
    attempt: int
    digest: bytes
    at_us: int
    file: int = 0
    offset: int = 0
    length: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """Return the frame's 64 bytes."""
        body = _BODY.pack(
            self.kind,
            self.file,
            _VERSION,
            self.attempt,
            self.flags,
            self.ordinal,
            self.offset,
            self.length,
            self.at_us,
            self.digest,
        )
        return _CRC.pack(google_crc32c.value(body)) + body

    @classmethod
    def of(cls, entry: NDArray[Any]) -> Frame:
        """Return one entry of a block of frames as an object."""
        _, kind, file, _, attempt, flags, ordinal, offset, length, at_us, digest = entry.item()
        return cls(_KINDS[kind], ordinal, attempt, bytes(digest), at_us, file, offset, length, flags)


def whole_in(data: bytes) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the frames in ``data``, which begins with one, and which of them are whole and of a known kind.

    Their fields are those of :class:`Frame`. Bytes behind the last full 64 are left out.
    """
    frames = np.frombuffer(data, _FIELDS, len(data) // FRAME_BYTES)
    value, skipped = google_crc32c.value, _CRC.size
    ends = range(FRAME_BYTES, FRAME_BYTES * len(frames) + 1, FRAME_BYTES)
    sums = np.array([value(data[end - FRAME_BYTES + skipped : end]) for end in ends], np.uint32)
    known = (frames["version"] == _VERSION) & np.isin(frames["kind"], list(_KINDS))
    return frames, known & (frames["crc"] == sums)


def read_blocks(path: Path, *, calls: FileCalls | None = None) -> Iterator[NDArray[Any]]:
    """Yield the frames of a log in blocks of at most 1,024, none empty; see :func:`whole_in` for their fields.

    A torn or damaged tail is left out, since nobody was told that it is durable.

    Raises:
        StorageError: A damaged frame lies before a whole one, or the log cannot be read.
    """
    damaged_at: int | None = None
    for start, data in _blocks_of_bytes(path, calls or FileCalls()):
        frames, whole = whole_in(data)
        if damaged_at is None:
            leading = len(whole) if whole.all() else int(whole.argmin())
            if leading:
                yield frames[:leading]
            if leading == len(whole):
                continue
            damaged_at, whole = start + FRAME_BYTES * leading, whole[leading:]
        if whole.any():
            raise frame_damage(path, damaged_at)


def read_frames(path: Path, *, calls: FileCalls | None = None) -> Iterator[Frame]:
    """Yield the frames of a log one by one; see :func:`read_blocks`.

    Raises:
        StorageError: A damaged frame lies before a whole one, or the log cannot be read.
    """
    for block in read_blocks(path, calls=calls):
        yield from map(Frame.of, block)


def _blocks_of_bytes(path: Path, calls: FileCalls) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of stretches of a log that begin with a frame and hold at least one."""
    try:
        descriptor = calls.open(str(path), os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"{path}: the log cannot be read: {error}") from error
    try:
        offset = 0
        while len(data := calls.pread(descriptor, BLOCK_BYTES, offset)) >= FRAME_BYTES:
            yield offset, data
            offset += len(data) - len(data) % FRAME_BYTES
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: the log cannot be read: {error}") from error
    finally:
        calls.close(descriptor)


def frame_damage(path: Path, offset: int) -> StorageError:
    """Return the error for a damaged frame before whole ones; the caller raises it."""
    problem = f"the frame at byte {offset} is damaged, though later ones are whole"
    return StorageError(f"{path}: {problem}; resume with --salvage to go on without it")
