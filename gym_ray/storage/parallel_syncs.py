"""Syncs many files at the same time for one Python thread, through the C library's asynchronous I/O.

A Python thread that waits for one sync must get the interpreter's lock back after it, and with a thread a file that
costs more than the sync. The C library's own threads do the same ``fdatasync`` calls in parallel and know nothing of
that lock: the Python thread waits once, and wakes to a handful of outcomes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence

from gym_ray.storage.calls import SyncOutcome

__all__ = ["ParallelSyncs"]

# struct aiocb of aio(7), the same in glibc and musl on 64-bit systems: the descriptor comes first, and at 32 begins
# the struct sigevent, whose third field says how to notify. What stays zero is not used by aio_fsync.
_BLOCK_BYTES = 256
"""More than the 168 that the struct has."""
_DESCRIPTOR, _NOTIFY = struct.Struct("@i"), struct.Struct("@i")
_NOTIFY_AT = 32 + 12
_SIGEV_NONE = 1

_LOOK_AFTER_NS = 3_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class ParallelSyncs:
    """``fdatasync`` for many files at once.

    Raises:
        AttributeError: The C library has no asynchronous I/O.
        OSError: The system is not a 64-bit Linux, so the layout of the library's structures is not known.
    """

    def __init__(self) -> None:
        if os.uname().sysname != "Linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise OSError(errno.ENOSYS, "asynchronous I/O is used on 64-bit Linux only")
        # What returns at once keeps the interpreter's lock (PyDLL); what waits gives it up (CDLL).
        quick, waiting = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)
        self._start, self._error, self._end = quick.aio_fsync, quick.aio_error, quick.aio_return
        self._start.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._error.argtypes = self._end.argtypes = [ctypes.c_void_p]
        self._end.restype = ctypes.c_ssize_t
        self._suspend = waiting.aio_suspend
        self._suspend.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Sync the data of these files, and tell the outcomes within milliseconds; return when all are told.

        Args:
            fds: Open files.
            tell: Takes ``(index in fds, error or None)`` of the files whose sync has ended; must not raise, because
                the library writes to memory of ours until the last sync has ended.
        """
        if not fds:
            return
        blocks = ctypes.create_string_buffer(_BLOCK_BYTES * len(fds))
        base, refused = ctypes.addressof(blocks), []
        running: dict[int, int] = {}
        for index, fd in enumerate(fds):
            at = index * _BLOCK_BYTES
            _DESCRIPTOR.pack_into(blocks, at, fd)
            _NOTIFY.pack_into(blocks, at + _NOTIFY_AT, _SIGEV_NONE)
            if self._start(os.O_DSYNC, base + at):
                refused.append(index)
            else:
                running[index] = base + at
        for index in refused:  # the library had no room for them
            tell([(index, _sync_here(fds[index]))])
        while running:
            self._wait(next(reversed(running.values())))
            if ended := self._ended(running):
                for index, _ in ended:
                    del running[index]
                tell(ended)

    def _wait(self, block: int) -> None:
        """Wait for the sync that began last, by when most others have ended, and not long where it hangs.

        To wait for whichever ends first would wake this thread, and take the interpreter's lock, once a file.
        """
        self._suspend(ctypes.byref(ctypes.c_void_p(block)), 1, ctypes.byref(_TimeSpec(0, _LOOK_AFTER_NS)))

    def _ended(self, running: dict[int, int]) -> list[SyncOutcome]:
        ended: list[SyncOutcome] = []
        for index, block in running.items():
            number = self._error(block)
            if number != errno.EINPROGRESS:
                self._end(block)
                ended.append((index, OSError(number, os.strerror(number), "fdatasync") if number else None))
        return ended


def _sync_here(fd: int) -> Exception | None:
    try:
        os.fdatasync(fd)
    except Exception as error:  # noqa: BLE001 - boundary: the syncs that run must be waited for, whatever goes wrong here
        return error
    return None
