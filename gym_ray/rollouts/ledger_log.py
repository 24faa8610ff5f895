"""The durable half of the ledger: a 64-byte frame says that an attempt started, before anybody may run it.

A frame is little-endian: crc32c of the rest (4 bytes), kind (1), file (1), version (2), attempt (4), reserved (4), row
ordinal (8), offset (8), length (8), time in microseconds since 1970 (8), blake2b-128 (16). Started and cancelled frames
have no place in a file; their digest is that of the rollout id, so that a reader can tell that rows and frames belong
together. Frames that wait at the same time share one sync.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import google_crc32c

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory, write_all

__all__ = ["FRAME_BYTES", "Frame", "FrameKind", "LedgerLog", "read_frames", "rollout_digest"]

FRAME_BYTES = 64
_VERSION = 1
_BODY = struct.Struct("<BBHIIQQQQ16s")
_CRC = struct.Struct("<I")


class FrameKind(IntEnum):
    """What a frame says about an attempt."""

    STARTED = 1
    CANCELLED = 2


_KINDS = frozenset(int(kind) for kind in FrameKind)


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
    """

    kind: FrameKind
    ordinal: int
    attempt: int
    digest: bytes
    at_us: int
    file: int = 0
    offset: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """Return the frame's 64 bytes."""
        body = _BODY.pack(
            self.kind,
            self.file,
            _VERSION,
            self.attempt,
            0,
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
        kind, file, version, attempt, _, ordinal, offset, length, at_us, digest = _BODY.unpack(body)
        if version != _VERSION or kind not in _KINDS:
            return None
        return cls(FrameKind(kind), ordinal, attempt, digest, at_us, file, offset, length)


def rollout_digest(rollout_id: str) -> bytes:
    """Return the 16 bytes that stand for a rollout id in a frame."""
    return hashlib.blake2b(rollout_id.encode("utf-8"), digest_size=16).digest()


def read_frames(path: Path) -> Iterator[Frame]:
    """Yield the frames of a log; a torn or damaged tail is left out, since nobody was told that it is durable.

    Raises:
        StorageError: A damaged frame lies before a whole one.
    """
    damaged_at: int | None = None
    with path.open("rb") as file:
        offset = 0
        while data := file.read(FRAME_BYTES):
            frame = Frame.decode(data)
            if frame is None:
                damaged_at = offset if damaged_at is None else damaged_at
            elif damaged_at is not None:
                raise StorageError(f"{path}: the frame at byte {damaged_at} is damaged, though later ones are whole")
            else:
                yield frame
            offset += FRAME_BYTES


class LedgerLog:
    """Appends frames to a run's ledger. Open it under the run's lock; close it, or use it as a context manager.

    A torn tail of an earlier process is cut off at opening. After a failed write nothing more is accepted.

    Raises:
        StorageError: The log cannot be opened, or is damaged before its end.
    """

    def __init__(self, path: Path, *, calls: FileCalls | None = None) -> None:
        self._path, self._calls = path, calls or FileCalls()
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: StorageError | None = None
        self._writing = threading.Lock()
        try:
            self._descriptor = self._calls.open(str(path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"{path}: the ledger cannot be opened: {error}") from error
        try:
            self._calls.truncate(self._descriptor, FRAME_BYTES * sum(1 for _ in read_frames(path)))
            self._calls.sync(self._descriptor)
            sync_directory(self._calls, str(path.parent))
        except OSError as error:
            self._calls.close(self._descriptor)
            raise error if isinstance(error, StorageError) else StorageError(f"{path}: {error}") from error

    async def append(self, kind: FrameKind, ordinal: int, attempt: int, rollout_id: str) -> None:
        """Append one frame; it is durable when this returns.

        Raises:
            StorageError: It could not be made durable; the attempt must not be dispatched.
        """
        if self._failure is not None:
            raise self._failure
        frame = Frame(kind, ordinal, attempt, rollout_digest(rollout_id), time.time_ns() // 1000)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((frame.encode(), future))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting())
        await future

    def __enter__(self) -> LedgerLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log after the write in flight; frames that still wait are refused. Safe to repeat."""
        with self._writing:
            if self._descriptor >= 0:
                self._calls.close(self._descriptor)
                self._descriptor = -1
            self._failure = self._failure or StorageError(f"{self._path}: the ledger is closed")

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
                self._failure = StorageError(f"{self._path}: an attempt could not be made durable: {error}")
