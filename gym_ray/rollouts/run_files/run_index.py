"""The index of a run: one 64-byte frame for each durable record, written only after the record (D52, D161, D164).

It says where the record of an attempt lies, so that a resume or a report need not parse the outputs. It holds nothing
that the outputs do not: when it is missing or disagrees with them, it is built again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frame_log import FrameLog
from gym_ray.rollouts.run_files.frames import Frame, FrameKind, read_blocks
from gym_ray.rollouts.run_paths import OutputFile, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["FILES", "IndexLog", "finished_frame", "read_index", "read_index_blocks", "written_of"]

FILES: tuple[OutputFile, ...] = ("main", "failures")
"""The outputs in the order of their numbers in frames."""


def finished_frame(ordinal: int, attempt: int, written: Written) -> Frame:
    """Return the frame of a durable record."""
    file = FILES.index(written.file)
    return Frame(
        FrameKind.FINISHED,
        ordinal,
        attempt,
        written.digest,
        time.time_ns() // 1000,
        file,
        written.offset,
        written.length,
        written.flags,
    )


def written_of(frame: Frame) -> Written:
    """Return the place that a frame of the index names."""
    return Written(FILES[frame.file], frame.offset, frame.length, frame.digest, frame.flags)


def read_index(path: Path, *, calls: FileCalls | None = None) -> Iterator[Frame]:
    """Yield the frames of an index in the order of their writing.

    Raises:
        StorageError: A frame is damaged or is none of an index.
    """
    for block in read_index_blocks(path, calls=calls):
        yield from map(Frame.of, block)


def read_index_blocks(path: Path, *, calls: FileCalls | None = None) -> Iterator[NDArray[Any]]:
    """Yield the frames of an index in blocks, see :func:`~gym_ray.rollouts.run_files.frames.read_blocks`.

    Raises:
        StorageError: A frame is damaged or is none of an index.
    """
    for block in read_blocks(path, calls=calls):
        foreign = (block["kind"] != FrameKind.FINISHED) | (block["file"] >= len(FILES))
        if foreign.any():
            raise StorageError(f"{path}: a frame for row {block['ordinal'][foreign][0]} says nothing of a record")
        yield block


class IndexLog(FrameLog):
    """Appends frames to a run's index; see :class:`~gym_ray.rollouts.run_files.frame_log.FrameLog`."""

    def __init__(self, path: Path, *, calls: FileCalls | None = None) -> None:
        super().__init__(path, "index", calls=calls)

    async def append(self, ordinal: int, attempt: int, written: Written) -> None:
        """Append the frame of a record that is durable; the frame is durable when this returns.

        Raises:
            StorageError: It could not be made durable. The record is; the next resume finds it by reading the output.
        """
        await self.append_frame(finished_frame(ordinal, attempt, written))
