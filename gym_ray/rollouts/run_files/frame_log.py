"""Logs of 64-byte frames: durable when an append returns, whatever process dies. Waiting frames share one sync."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import (
    BLOCK_BYTES,
    FRAME_BYTES,
    Frame,
    frame_damage,
    whole_in,
)
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory, write_all

__all__ = ["FrameLog"]


class FrameLog:
    """Appends frames to a log. Open it under the run's lock; close it, or use it as a context manager.

    A torn tail of an earlier process is cut off at opening; of what lies before it, only the last 64 KiB are looked at,
    since a reader looks at all of it. After a failed write nothing more is accepted.

    Args:
        path: The log; created where it is missing.
        what: What the log is called in messages.
        calls: How the operating system is called.

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
            start = max(0, end - BLOCK_BYTES)
            _, whole = whole_in(self._calls.pread(self._descriptor, end - start, start))
            if whole.any():
                last = int(whole.nonzero()[0][-1])
                if not whole[:last].all():
                    raise frame_damage(self.path, start + FRAME_BYTES * int(whole.argmin()))
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
