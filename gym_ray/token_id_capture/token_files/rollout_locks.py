"""One advisory lock a rollout, on ``<rollout>.tokens.lock``: what keeps writers, snapshots and removals apart (B63).

A lock is valid only while its file has its name. If the file is removed while somebody waits for its lock, the waiter
takes the lock of the new file instead (W36).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import WouldWaitError
from gym_ray.storage.posix import OWNER_ONLY
from gym_ray.token_id_capture.token_files.rollout_state import LOCK_SUFFIX

__all__ = ["RolloutLocks"]

_SHORTEST_POLL_S = 0.0002
_LONGEST_POLL_S = 0.005


class RolloutLocks:
    """Takes the locks of one directory; threads of one process exclude each other as processes do.

    Args:
        root: The directory.
        calls: How the operating system is called.
        timeout_s: How long to wait for another holder, whose disk may never answer.
    """

    def __init__(self, root: str, calls: FileCalls, timeout_s: float) -> None:
        self._root, self._calls, self._timeout_s = root, calls, timeout_s

    def take(self, rollout_id: str, *, wait: bool = True) -> int:
        """Take a rollout's lock for writing; creates its file.

        Returns:
            What :meth:`release` wants.

        Raises:
            WouldWaitError: ``wait`` is false, and another holds it.
            OSError: It cannot be taken, or not in time.
        """
        fd = self._take(rollout_id, os.O_RDWR | os.O_CREAT, shared=False, wait=wait)
        if fd is None:
            raise WouldWaitError(rollout_id)
        return fd

    def release(self, lock: int) -> None:
        """Give a lock up."""
        self._calls.close(lock)

    @contextmanager
    def exclusive(self, rollout_id: str) -> Iterator[None]:
        """Hold a rollout's lock for writing.

        Raises:
            OSError: As :meth:`take`.
        """
        lock = self.take(rollout_id)
        try:
            yield
        finally:
            self.release(lock)

    @contextmanager
    def shared(self, rollout_id: str) -> Iterator[None]:
        """Hold a rollout's lock for reading. Creates nothing: without the file nobody has written (W36).

        Raises:
            OSError: It cannot be taken, or not in time.
        """
        try:
            lock = self._take(rollout_id, os.O_RDONLY, shared=True, wait=True)
        except FileNotFoundError:
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                self.release(lock)

    def _take(self, rollout_id: str, flags: int, *, shared: bool, wait: bool) -> int | None:
        path = f"{self._root}/{rollout_id}{LOCK_SUFFIX}"
        deadline, pause = time.monotonic() + self._timeout_s, _SHORTEST_POLL_S
        while True:
            fd = self._calls.open(path, flags, OWNER_ONLY)
            try:
                take = self._calls.lock_shared if shared else self._calls.lock_exclusive
                taken = take(fd, wait=False)
                if taken and self._has_name(fd, path):
                    return fd
            except BaseException:
                self._calls.close(fd)
                raise
            self._calls.close(fd)
            if taken:
                continue
            if not wait:
                return None
            if time.monotonic() >= deadline:
                problem = f"another has held this lock for more than {self._timeout_s:.3g} s"
                raise OSError(errno.EAGAIN, problem, path)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)

    def _has_name(self, fd: int, path: str) -> bool:
        try:
            named = self._calls.stat(path)
        except FileNotFoundError:
            return False
        held = self._calls.fstat(fd)
        return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
