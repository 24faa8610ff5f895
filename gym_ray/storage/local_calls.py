"""The same calls on a local disk, where fewer of them cost a switch of threads.

Python gives its lock up around every system call and then waits to get it back, which costs a thread switch. A lock
that is tried, a name that is looked up and a line that is written over old bytes take a microsecond in a local file
system's memory and wait for no disk or network, so these keep it. Many files are synced at the same time for one
thread: their writes go to memory, so no file waits there for another. On any other file system all of these may wait,
and :func:`file_calls_for` leaves them alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from gym_ray.storage.calls import FileCalls, SyncOutcome
from gym_ray.storage.parallel_syncs import ParallelSyncs

__all__ = ["LocalFileCalls", "file_calls_for"]

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"})
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How a mount point's blanks, line ends and backslashes are written there."""

# statx(2): what it is asked for, and where the answer stands in its buffer.
_AT_FDCWD, _BASIC_STATS, _STATX_BYTES = -100, 0x7FF, 256
_LINKS_TO_MODE, _INODE_AND_SIZE, _DEVICE = (struct.Struct(form) for form in ("=IIIH", "=QQ", "=II"))
_LINKS_AT, _INODE_AT, _DEVICE_AT = 16, 32, 136


class LocalFileCalls(FileCalls):
    """:class:`FileCalls` for a local file system.

    Raises:
        AttributeError: The C library lacks one of the calls.
        OSError: One of the calls does not work on this system.
    """

    syncs_at_once = 32
    threads = 3
    """One writes while another waits for its syncs; with more, each wakes up for fewer files."""

    def __init__(self) -> None:
        self._syncs = ParallelSyncs()
        library = ctypes.PyDLL(None, use_errno=True)  # unlike CDLL, it keeps the interpreter's lock
        self._try_flock, self._statx, self._pwrite = library.flock, library.statx, library.pwrite
        self._try_flock.argtypes = [ctypes.c_int, ctypes.c_int]
        self._statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
        self._pwrite.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64]
        self._pwrite.restype = ctypes.c_ssize_t
        self.stat("/")  # some sandboxes forbid it, and every append needs it

    def stat(self, path: str) -> os.stat_result:
        """Describe the file a path leads to; its times are left out."""
        buffer = ctypes.create_string_buffer(_STATX_BYTES)
        if self._statx(_AT_FDCWD, os.fsencode(path), 0, _BASIC_STATS, buffer):
            raise _error(path)
        links, uid, gid, mode = _LINKS_TO_MODE.unpack_from(buffer, _LINKS_AT)
        inode, size = _INODE_AND_SIZE.unpack_from(buffer, _INODE_AT)
        device = os.makedev(*_DEVICE.unpack_from(buffer, _DEVICE_AT))
        return os.stat_result((mode, inode, device, links, uid, gid, size, 0, 0, 0))

    def write_at(self, fd: int, data: bytes, offset: int) -> int:
        """Write a few bytes at an offset without moving the file position; return how many were taken."""
        while (written := self._pwrite(fd, data, len(data), offset)) < 0:
            error = _error("pwrite")
            if not isinstance(error, InterruptedError):
                raise error
        return int(written)

    def _flock(self, fd: int, kind: int, wait: bool) -> bool:
        if wait:
            return super()._flock(fd, kind, wait)
        if self._try_flock(fd, kind | fcntl.LOCK_NB) == 0:
            return True
        error = _error("flock")
        if isinstance(error, BlockingIOError):
            return False
        raise error

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Sync the data of several files at the same time, and tell the outcomes as they come."""
        if len(fds) == 1:
            super().sync_all(fds, tell)  # one thread waits for one file: nothing to gain
        else:
            self._syncs.sync_all(fds, tell)

    def unlock(self, fd: int) -> None:
        """Give up the advisory lock."""
        if self._try_flock(fd, fcntl.LOCK_UN):
            raise _error("flock")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


def file_calls_for(directory: Path) -> FileCalls:
    """Return the calls that suit the file system of a directory, which need not exist yet."""
    if _file_system(directory) in _LOCAL:
        try:
            return LocalFileCalls()
        except (OSError, AttributeError):
            return FileCalls()  # a C library without them; the plain calls do the same
    return FileCalls()


def _file_system(directory: Path) -> str:
    """Return the type of the mount that holds a directory, "" when that cannot be told."""
    path = directory.resolve()
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    kind, longest = "", -1
    for line in lines:
        fields = line.split()
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and depth >= longest:  # a later mount covers an earlier one at its place
            kind, longest = fields[fields.index("-") + 1], depth
    return kind
