"""Syncs many files at the same time for one Python thread, through the C library's asynchronous I/O.

A Python thread that waits for one sync must get the interpreter's lock back after it, and with a thread a file that
costs more than the sync. The C library's own threads do the same ``fdatasync`` calls in parallel and know nothing of
that lock: the Python thread waits once, and wakes to a handful of outcomes.

A success that was none would lose what somebody was told is safe. So nothing here is believed before it was tried: a
library that does not report a sync that must fail is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
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
_TRIAL_PATIENCE_S = 5.0


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class ParallelSyncs:
    """``fdatasync`` for many files at once.

    The library's threads do not survive a fork, and it does not notice. In a child of the process that made it, an
    object of this class syncs one file after the other, and another one is refused where it would wait for ever.

    Raises:
        AttributeError: The C library has no asynchronous I/O.
        OSError: The system is not a 64-bit Linux, or the library did not do what it must when it was tried.
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
        self._process = os.getpid()
        self._try_out()

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Sync the data of these files, and tell the outcomes within milliseconds; return when all are told.

        Args:
            fds: Open files.
            tell: Takes ``(index in fds, error or None)`` of the files whose sync has ended; must not raise. Whatever
                it raises comes out of here when the last sync has ended: until then the descriptors are in use.
        """
        if os.getpid() != self._process:
            for index, fd in enumerate(fds):
                tell([(index, _sync_here(fd))])
            return
        blocks = ctypes.create_string_buffer(
            _BLOCK_BYTES * len(fds)
        )  # the library writes to it until the last has ended
        running: dict[int, int] = {}
        try:
            refused = self._start_all(fds, blocks, running)
            for index in refused:  # the library had no room for them
                tell([(index, _sync_here(fds[index]))])
            while running:
                if ended := self._wait_for_some(running):
                    tell(ended)
        finally:
            while running:
                self._wait_for_some(running)

    def _try_out(self) -> None:
        """Find out whether the library reports a sync that must fail, so that its successes can be believed.

        Raises:
            OSError: It does not, or not in time.
        """
        fds = os.pipe()  # a pipe cannot be synced
        blocks = ctypes.create_string_buffer(_BLOCK_BYTES)
        running: dict[int, int] = {}
        try:
            self._start_all(fds[1:], blocks, running)
            patience_until, outcomes = time.monotonic() + _TRIAL_PATIENCE_S, list[SyncOutcome]()
            while running and time.monotonic() < patience_until:
                outcomes += self._wait_for_some(running)
            if running:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(blocks))  # for ever: the library may still write to it
        finally:
            for fd in fds:
                os.close(fd)
        if [getattr(error, "errno", None) for _, error in outcomes] != [errno.EINVAL]:
            raise OSError(errno.ENOSYS, f"asynchronous I/O does not work here: a trial ended with {outcomes}")

    def _start_all(self, fds: Sequence[int], blocks: ctypes.Array[ctypes.c_char], running: dict[int, int]) -> list[int]:
        """Let the syncs begin; note each in ``running``, by its index, and return those that the library refused."""
        base, refused = ctypes.addressof(blocks), []
        for index, fd in enumerate(fds):
            at = index * _BLOCK_BYTES
            _DESCRIPTOR.pack_into(blocks, at, fd)
            _NOTIFY.pack_into(blocks, at + _NOTIFY_AT, _SIGEV_NONE)
            running[index] = base + at
            if self._start(os.O_DSYNC, base + at):
                del running[index]
                refused.append(index)
        return refused

    def _wait_for_some(self, running: dict[int, int]) -> list[SyncOutcome]:
        """Wait a little, and take out of ``running`` what has ended."""
        self._wait(next(reversed(running.values())))
        ended = self._ended(running)
        for index, _ in ended:
            del running[index]
        return ended

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
