"""Writes the outputs of a run anew and puts them in the place of the old ones, so that a crash leaves old or new."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.recovery import drop_index
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import replace_file, sync_directory, write_all

__all__ = ["NewOutput", "swap"]

_BUFFER_BYTES = 1 << 20
_INDEX_MODE = 0o644


class NewOutput:
    """The new content of one output, beside the old one until it takes its place.

    Args:
        path: The output; a link is followed, so that it still leads there.
        calls: How the operating system is called.

    Raises:
        StorageError: There is no room for it.
    """

    def __init__(self, path: Path, calls: FileCalls) -> None:
        self.path, self._calls = path.resolve(), calls
        self._temporary = self.path.with_name(f".{self.path.name}.rejoin.tmp")
        self._buffer, self._size = bytearray(), 0
        try:
            mode = calls.stat(str(self.path)).st_mode & 0o777
            self._fd = calls.open(str(self._temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        except OSError as error:
            raise StorageError(f"{self._temporary}: cannot be created: {error}") from error

    def append(self, line: bytes) -> int:
        """Take a line without its line feed; returns its offset.

        Raises:
            StorageError: It cannot be written.
        """
        offset = self._size
        self._buffer += line
        self._buffer += b"\n"
        self._size += len(line) + 1
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()
        return offset

    def _flush(self) -> None:
        try:
            write_all(self._calls, self._fd, bytes(self._buffer))
        except OSError as error:
            raise StorageError(f"{self._temporary}: cannot be written: {error}") from error
        self._buffer.clear()

    def sync(self) -> None:
        """Make the content durable; its place is still the old one's.

        Raises:
            StorageError: It cannot be done.
        """
        self._flush()
        try:
            self._calls.sync(self._fd)
        except OSError as error:
            raise StorageError(f"{self._temporary}: cannot be synced: {error}") from error

    def take_place(self) -> None:
        """Replace the old content.

        Raises:
            OSError: It cannot be done.
        """
        self._calls.rename(str(self._temporary), str(self.path))
        sync_directory(self._calls, str(self.path.parent))

    def close(self) -> None:
        """Close the file and remove it where it did not take its place; safe to repeat."""
        if self._fd >= 0:
            self._calls.close(self._fd)
            self._fd = -1
            with suppress(OSError):  # taken its place, or left for the next one, which begins it anew
                self._temporary.unlink(missing_ok=True)


def swap(
    paths: RunPaths, outputs: Iterable[NewOutput], index: bytes | None, stale_facts: Iterable[Path], calls: FileCalls
) -> None:
    """Put new outputs in the place of the old ones; durable when it returns. The run's lock is held.

    The index goes first and comes back last: an index of other outputs would be worse than none, which a resume builds
    again. At every moment each output is wholly the old or the new one.

    Args:
        paths: The run's files.
        outputs: The new outputs, synced.
        index: All frames of the new outputs; None when not every record has one, so that a resume builds the index.
        stale_facts: Facts of the old outputs; a cache that nothing would believe any more.
        calls: How the operating system is called.

    Raises:
        StorageError: It cannot be done; what is there is whole, and joining again finishes it.
    """
    drop_index(paths, calls)
    try:
        for output in outputs:
            output.take_place()
        if index is not None:
            replace_file(calls, paths.index, index, _INDEX_MODE)
        for path in stale_facts:
            with suppress(FileNotFoundError):
                calls.unlink(str(path))
    except OSError as error:
        raise StorageError(f"{paths.output}: the joined records cannot take their place: {error}") from error
