"""Logs of 64-byte frames: durable when an append returns, whatever process dies, and read without parsing.

A frame is little-endian: crc32c of the rest (4 bytes), kind (1), file (1), version (2), attempt (4), flags (4), row
ordinal (8), offset (8), length (8), time in microseconds since 1970 (8), blake2b-128 (16). Frames that wait at the same
time share one sync.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self

import google_crc32c

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory, write_all

__all__ = ["FRAME_BYTES", "Frame", "FrameKind", "FrameLog", "read_frames"]

FRAME_BYTES = 64
_VERSION = 1
_BODY = struct.Struct("<BBHIIQQQQ16s")
_CRC = struct.Struct("<I")
_CHUNK_FRAMES = 1024


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
    def decode(cls, data: bytes) -> Frame | None:
        """Return the frame in 64 bytes, None when they are damaged or of a kind that this version does not know."""
        body = data[_CRC.size :]
        if len(data) != FRAME_BYTES or google_crc32c.value(body) != _CRC.unpack_from(data)[0]:
            return None
        code, file, version, attempt, flags, ordinal, offset, length, at_us, digest = _BODY.unpack(body)
        kind = _KINDS.get(code)
        if version != _VERSION or kind is None:
            return None
        return cls(kind, ordinal, attempt, digest, at_us, file, offset, length, flags)


def read_frames(path: Path, *, calls: FileCalls | None = None) -> Iterator[Frame]:
    """Yield the frames of a log; a torn or damaged tail is left out, since nobody was told that it is durable.

    Raises:
        StorageError: A damaged frame lies before a whole one, or the log cannot be read.
    """
    calls = calls or FileCalls()
    damaged_at: int | None = None
    for offset, data in _slices(path, calls):
        frame = Frame.decode(data)
        if frame is None:
            damaged_at = offset if damaged_at is None else damaged_at
        elif damaged_at is not None:
            raise _damage(path, damaged_at)
        else:
            yield frame


def _slices(path: Path, calls: FileCalls) -> Iterator[tuple[int, bytes]]:
    try:
        descriptor = calls.open(str(path), os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"{path}: the log cannot be read: {error}") from error
    try:
        offset = 0
        while data := calls.pread(descriptor, FRAME_BYTES * _CHUNK_FRAMES, offset):
            for at in range(0, len(data), FRAME_BYTES):
                yield offset + at, data[at : at + FRAME_BYTES]
            offset += len(data) - len(data) % FRAME_BYTES or FRAME_BYTES
    except OSError as error:
        raise StorageError(f"{path}: the log cannot be read: {error}") from error
    finally:
        calls.close(descriptor)


def _damage(path: Path, offset: int) -> StorageError:
    problem = f"the frame at byte {offset} is damaged, though later ones are whole"
    return StorageError(f"{path}: {problem}; resume with --salvage to go on without it")


class FrameLog:
    """Appends frames to a log. Open it under the run's lock; close it, or use it as a context manager.

    A torn tail of an earlier process is cut off at opening; of what lies before it, only the last 64 KiB are looked at,
    since a reader looks at all of it. After a failed write nothing more is accepted.

    Args:
        path: The log; created where it is missing.
        what: What the log is called in messages.
        calls: The seam to the operating system.

    Raises:
        StorageError: The log cannot be opened, or is damaged before its end.
    """

    def __init__(self, path: Path, what: str, *, calls: FileCalls | None = None) -> None:
        self.path, self._what, self._calls = path, what, calls or FileCalls()
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: StorageError | None = None
        self._writing = threading.Lock()
        try:
            self._descriptor = self._calls.open(str(path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"{path}: the {what} cannot be opened: {error}") from error
        try:
            end = self._end_of_frames()
            if end != self._calls.fstat(self._descriptor).st_size:
                self._calls.truncate(self._descriptor, end)
            self._calls.sync(self._descriptor)
            sync_directory(self._calls, str(path.parent))
        except OSError as error:
            self._calls.close(self._descriptor)
            raise error if isinstance(error, StorageError) else StorageError(f"{path}: {error}") from error

    def _end_of_frames(self) -> int:
        """Return where the last whole frame ends; whole frames around a damaged one are an error."""
        size = self._calls.fstat(self._descriptor).st_size
        end = size - size % FRAME_BYTES
        while end:
            start = max(0, end - FRAME_BYTES * _CHUNK_FRAMES)
            data = self._calls.pread(self._descriptor, end - start, start)
            whole = [Frame.decode(data[at : at + FRAME_BYTES]) is not None for at in range(0, end - start, FRAME_BYTES)]
            if any(whole):
                last = len(whole) - 1 - whole[::-1].index(True)
                if not all(whole[:last]):
                    raise _damage(self.path, start + FRAME_BYTES * whole.index(False))
                return start + FRAME_BYTES * (last + 1)
            end = start
        return 0

    async def append_frame(self, frame: Frame) -> None:
        """Append one frame; it is durable when this returns.

        Raises:
            StorageError: It could not be made durable.
        """
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((frame.encode(), future))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting())
        await future

    def append_frames(self, frames: Iterable[Frame]) -> None:
        """Append many frames in the calling thread, with one sync; they are durable when this returns.

        Raises:
            StorageError: They could not be made durable.
        """
        self._write(b"".join(frame.encode() for frame in frames))
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log after the write in flight; frames that still wait are refused. Safe to repeat."""
        with self._writing:
            if self._descriptor >= 0:
                self._calls.close(self._descriptor)
                self._descriptor = -1
            self._failure = self._failure or StorageError(f"{self.path}: the {self._what} is closed")

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                data = b"".join(frame for frame, _ in batch)
                if self._failure is None:
                    await asyncio.to_thread(self._write, data)
                for _, future in batch:
                    if future.done():
                        continue  # its caller was cancelled; the frame stays, and says only that a start was meant
                    if self._failure is None:
                        future.set_result(None)
                    else:
                        future.set_exception(self._failure)
        finally:
            self._writer = None

    def _write(self, data: bytes) -> None:
        with self._writing:
            if self._failure is not None:
                return
            try:
                write_all(self._calls, self._descriptor, data)
                self._calls.sync_data(self._descriptor)
            except OSError as error:
                self._failure = StorageError(f"{self.path}: a frame of the {self._what} is not durable: {error}")
