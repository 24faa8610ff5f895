"""Which bytes of an output the index accounts for, and whether it can be believed (D164)."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import Frame
from gym_ray.rollouts.run_files.run_log import line_digest
from gym_ray.storage.calls import FileCalls

__all__ = ["Coverage"]

_LARGEST_CHECKED = 512 * 1024
"""A last record up to this size is compared with its digest; of a larger one only the ends are looked at."""


class Coverage:
    """Gathers the places that frames name in one output: 16 bytes each, while a run is taken up again."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._lengths = array("Q")
        self._last: Frame | None = None

    def add(self, frame: Frame) -> None:
        """Take in a frame."""
        self._offsets.append(frame.offset)
        self._lengths.append(frame.length)
        self._look_at(frame)

    def add_block(self, frames: NDArray[Any]) -> None:
        """Take in many frames, see :func:`~gym_ray.rollouts.run_files.frames.read_blocks`."""
        if not len(frames):
            return
        self._offsets.frombytes(frames["offset"].tobytes())
        self._lengths.frombytes(frames["length"].tobytes())
        last = len(frames) - 1 - int(frames["offset"][::-1].argmax())
        self._look_at(Frame.of(frames[last]))

    def _look_at(self, frame: Frame) -> None:
        if self._last is None or frame.offset >= self._last.offset:
            self._last = frame

    def holes(self, size: int) -> list[tuple[int, int]] | None:
        """Return the stretches of a file of ``size`` bytes that no frame names; None when the frames are wrong."""
        if not self._offsets:
            return [(0, size)] if size else []
        offsets, lengths = np.frombuffer(self._offsets, np.uint64), np.frombuffer(self._lengths, np.uint64)
        if int(lengths.min()) == 0 or int(lengths.max()) > size or int(offsets.max()) > size:
            return None
        order = np.argsort(offsets, kind="stable")
        starts = offsets[order]
        ends = starts + lengths[order]
        if int(ends.max()) > size or bool((ends[:-1] > starts[1:]).any()):
            return None
        edges_from = np.concatenate(([np.uint64(0)], ends))
        edges_to = np.concatenate((starts, [np.uint64(size)]))
        gaps = edges_to > edges_from
        return [(int(a), int(b)) for a, b in zip(edges_from[gaps], edges_to[gaps], strict=True)]

    def last_is_there(self, path: Path, calls: FileCalls) -> bool:
        """Whether the file still holds, where the frames say, the last of the records that they name.

        Raises:
            StorageError: The file cannot be read.
        """
        frame = self._last
        if frame is None:
            return True
        try:
            descriptor = calls.open(str(path), os.O_RDONLY)
            try:
                if frame.offset and calls.pread(descriptor, 1, frame.offset - 1) != b"\n":
                    return False
                if frame.length > _LARGEST_CHECKED or not any(frame.digest):
                    return calls.pread(descriptor, 1, frame.offset + frame.length - 1) == b"\n"
                line = calls.pread(descriptor, frame.length, frame.offset)
            finally:
                calls.close(descriptor)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error}") from error
        return line[-1:] == b"\n" and line_digest(line[:-1]) == frame.digest
