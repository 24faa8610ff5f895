"""A large file on its way into a directory: piece by piece into a hidden sibling, then whole under its name."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

from gym_ray.errors import StorageError, StorageExistsError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.durable_files import is_same_file, open_temporary, sync_directory, write_all
from gym_ray.storage.streams import StreamedValue

__all__ = ["NO_HARD_LINKS", "PosixStream", "name_file", "remove_temporary"]

NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What a file system without hard links answers."""

_GATHERED = 256 * 1024
"""Smaller pieces are written together, in bytes; an encoder writes many of a few bytes."""
_COMPARED = 1024 * 1024
_log = logging.getLogger(__name__)


def name_file(calls: FileCalls, temporary: str, path: str) -> None:
    """Give a written file its name, which must not exist, take its hidden one away, and make that durable.

    When this raises, the name is not the file's, and the hidden one may be left to the caller.

    Raises:
        FileExistsError: The name is another file's.
        OSError: It could not be done.
    """
    try:
        calls.link(temporary, path)
    except FileExistsError:
        if not is_same_file(calls, temporary, path):  # a server whose answer was lost is asked again by the system
            raise
    try:
        with contextlib.suppress(FileNotFoundError):  # the same of this one
            calls.unlink(temporary)
        sync_directory(calls, str(Path(path).parent))
    except OSError:
        calls.unlink(path)
        raise


def remove_temporary(calls: FileCalls, temporary: str) -> None:
    """Remove the hidden name of a file, if it is there; one that cannot be removed is logged, and left to a sweep."""
    try:
        calls.unlink(temporary)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("cannot remove %s, which a sweep will: %s", temporary, error)


class PosixStream(StreamedValue):
    """A file of a :class:`gym_ray.storage.posix.PosixStore` that is being written.

    Args:
        path: The file that it becomes; its directory exists.
        calls: How the operating system is called.
        mode: Permission bits, less the umask.

    Raises:
        OSError: It could not be begun.
    """

    def __init__(self, path: Path, calls: FileCalls, mode: int) -> None:
        super().__init__()
        self._path, self._calls = path, calls
        self._gathered = bytearray()
        self._fd: int | None = None
        self._temporary: str | None = None
        self._fd, self._temporary = open_temporary(calls, path, mode)

    def _take(self, view: memoryview) -> None:
        try:
            if len(self._gathered) + len(view) < _GATHERED:
                self._gathered += view
                return
            self._flush()
            write_all(self._calls, self._open_fd(), view)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def _flush(self) -> None:
        if self._gathered:
            write_all(self._calls, self._open_fd(), bytes(self._gathered))
            self._gathered.clear()

    def _open_fd(self) -> int:
        assert self._fd is not None
        return self._fd

    def _publish(self) -> None:
        assert self._temporary is not None
        try:
            self._flush()
            self._calls.sync(self._open_fd())
            self._close_fd()
            self._give_name(self._temporary)
        except FileExistsError as error:
            raise StorageExistsError(f"{self._path} exists") from error
        except OSError as error:
            raise StorageError(f"cannot publish {self._path}: {error}") from error
        self._remove_temporary()

    def _give_name(self, temporary: str) -> None:
        path = str(self._path)
        try:
            name_file(self._calls, temporary, path)
            self._temporary = None
        except FileExistsError:
            self._take_as_ours(temporary, path)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            self._rename(temporary, path)

    def _rename(self, temporary: str, path: str) -> None:
        """Take the name where there are no hard links: two writers of one name cannot be told apart there."""
        if self._path.exists():
            self._take_as_ours(temporary, path)
            return
        self._calls.rename(temporary, path)
        self._temporary = None
        sync_directory(self._calls, str(self._path.parent))

    def _take_as_ours(self, temporary: str, path: str) -> None:
        """Let another writer's file of the same bytes stand for this one; that writer may die before it is durable.

        Raises:
            FileExistsError: It has other bytes.
        """
        if not _same_bytes(temporary, path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        fd = self._calls.open(path, os.O_RDONLY)
        try:
            self._calls.sync(fd)
        finally:
            self._calls.close(fd)
        sync_directory(self._calls, str(self._path.parent))

    def _close_fd(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._calls.close(fd)

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            temporary, self._temporary = self._temporary, None
            remove_temporary(self._calls, temporary)

    def _discard(self) -> None:
        self._gathered.clear()
        with contextlib.suppress(OSError):  # what it could not write is discarded anyway
            self._close_fd()
        self._remove_temporary()


def _same_bytes(one: str, other: str) -> bool:
    with Path(one).open("rb") as first, Path(other).open("rb") as second:
        if os.fstat(first.fileno()).st_size != os.fstat(second.fileno()).st_size:
            return False
        while block := first.read(_COMPARED):
            if block != second.read(_COMPARED):
                return False
    return True
