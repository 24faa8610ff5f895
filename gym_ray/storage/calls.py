"""The few operating-system calls that durability rests on, in one place.

Everything that must survive a crash goes through :class:`FileCalls`, so that a test can take its place, fail a call,
hang it, or forget what was never synced. It adds nothing to the calls and decides nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["FileCalls", "SyncOutcome"]

SyncOutcome = tuple[int, Exception | None]
"""Which of the files that were to be synced, and what went wrong; None: its bytes are on stable storage."""


class FileCalls:
    """The real thing. Every method raises ``OSError`` as the operating system does.

    Attributes:
        syncs_at_once: How many files :meth:`sync_all` syncs at the same time.
        threads: How many threads it takes to keep the disk busy with it.
    """

    syncs_at_once: int = 1
    threads: int = 16

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open a file or directory, close-on-exec."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        """Close a descriptor; gives up its locks."""
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write once; return how many bytes were taken."""
        return os.write(fd, data)

    def write_at(self, fd: int, data: bytes, offset: int) -> int:
        """Write a few bytes at an offset without moving the file position; return how many were taken."""
        return os.pwrite(fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read at an offset without moving the file position."""
        return os.pread(fd, size, offset)

    def fstat(self, fd: int) -> os.stat_result:
        """Describe an open file."""
        return os.fstat(fd)

    def stat(self, path: str) -> os.stat_result:
        """Describe the file a path leads to."""
        return os.stat(path)  # noqa: PTH116 - a str path saves building a Path on the hot path

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to ``size`` bytes."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Give a file ``size`` bytes of real space, zeros where nothing was written."""
        os.posix_fallocate(fd, 0, size)

    def change_mode(self, fd: int, mode: int) -> None:
        """Set the permission bits of an open file."""
        os.fchmod(fd, mode)

    def sync_data(self, fd: int) -> None:
        """Return once the file's bytes and its size are on stable storage."""
        os.fdatasync(fd)

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Sync the data of several files, and tell the outcomes as they come; return when all are told.

        Here one file follows the other. A file that hangs never keeps back the outcome of one that was synced.

        Args:
            fds: Open files.
            tell: Takes ``(index in fds, error or None)`` of the files whose sync has ended; must not raise.
        """
        for index, fd in enumerate(fds):
            try:
                self.sync_data(fd)
            except Exception as error:  # noqa: BLE001 - boundary: every file has its outcome, whatever went wrong
                tell([(index, error)])
            else:
                tell([(index, None)])

    def sync(self, fd: int) -> None:
        """Return once the file, or the directory's entries, are on stable storage."""
        os.fsync(fd)

    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        """Take the advisory lock for writing; False when another holds it and ``wait`` is false."""
        return self._flock(fd, fcntl.LOCK_EX, wait)

    def lock_shared(self, fd: int, *, wait: bool) -> bool:
        """Take the advisory lock for reading; False when a writer holds it and ``wait`` is false."""
        return self._flock(fd, fcntl.LOCK_SH, wait)

    def _flock(self, fd: int, kind: int, wait: bool) -> bool:
        try:
            fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if not wait and error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, fd: int) -> None:
        """Give up the advisory lock."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; fails when the name exists."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target in one step."""
        Path(source).replace(target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        Path(path).unlink()

    def makedirs(self, path: str, mode: int = 0o777) -> None:
        """Create a directory with its parents, which ``mode`` is not for; an existing one is fine."""
        Path(path).mkdir(mode, parents=True, exist_ok=True)
