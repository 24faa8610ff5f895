"""Waits a while for a file lock that its holder should give back in a moment, and says what to do when it does not.

A process that stands still, stopped or swapped out, keeps its locks. Who starts a run must be told of it, and not wait
for a process that nobody looks at.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls

__all__ = ["LOCK_TIMEOUT_S", "lock_in_time"]

LOCK_TIMEOUT_S = 30.0
"""Holders keep a lock for one write and one sync."""

_LONGEST_POLL_S = 0.05
_LOCKS = Path("/proc/locks")


def lock_in_time(path: Path, descriptor: int, calls: FileCalls, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Take a file's exclusive lock.

    Args:
        path: The file, for the message.
        descriptor: The open file.
        calls: How the operating system is called.
        timeout_s: How long to wait for it.

    Raises:
        StorageError: Another process has kept it; names the file and, where this machine knows it, the process.
        OSError: The file cannot be locked.
    """
    deadline, pause_s = time.monotonic() + timeout_s, 0.001
    while not calls.lock_exclusive(descriptor, wait=False):
        if time.monotonic() >= deadline:
            raise StorageError(
                f"{path}: {_holder(descriptor)} has held the lock of this file for more than {timeout_s:.3g} s; "
                "if it is stopped, let it go on (kill -CONT) or end it, and start again"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)


def _holder(descriptor: int) -> str:
    """Return what the kernel says of the lock's holder; one on another machine is not known here.

    The device is compared as well: a wrong name would have an innocent process ended.
    """
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = _LOCKS.read_text().splitlines()
    except OSError:
        return "another process"  # a system without such a list, which the message can do without
    for fields in map(str.split, locks):
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
            return f"process {fields[4]}"
    return "another process, perhaps on another machine,"
