"""Which holder of an output's lock a process works for, so that nothing writes for one that is gone (D46, D58).

Joiners live in processes of their own and may outlive their collector: for the seconds that a cluster takes to notice,
or for as long as their machine stands still. The lock is free by then, and the next collector has found out what is
done. A record that came behind its back would give a row two results. So each holder of the lock writes a name of its
term into the lock file before it looks at any output, and whoever appends to an output compares it under that output's
file lock: what is appended before the look is found by it, and what comes later is refused.
"""

from __future__ import annotations

import os
import uuid

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["RunTerm", "begin_term"]

_OFFSET = 200
"""Where it stands in the lock file, behind what is said there of the holder."""
_BYTES = 32


def begin_term(lock: int) -> None:
    """Name a new term in a lock file that the caller holds.

    Raises:
        OSError: It cannot be written.
    """
    os.pwrite(lock, uuid.uuid4().hex.encode("ascii"), _OFFSET)


class RunTerm:
    """The term in which this was made.

    Args:
        paths: The run's files.

    Raises:
        StorageError: The lock file cannot be read.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._name = self._current()

    def check(self) -> None:
        """Return while nobody else has taken the lock.

        Raises:
            StorageError: Somebody has, or the lock file cannot be read.
        """
        if self._current() != self._name:
            raise StorageError(
                f"{self._paths.output}: another collector has taken over this output; nothing was written for the "
                "earlier one"
            )

    def _current(self) -> bytes:
        """Read the file by its name each time, so that a replaced one is not taken for the one that was opened."""
        try:
            descriptor = os.open(self._paths.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""  # the files of a run that nobody locked
        except OSError as error:
            raise StorageError(f"{self._paths.lock}: cannot be read: {error}") from error
        try:
            return os.pread(descriptor, _BYTES, _OFFSET)
        except OSError as error:
            raise StorageError(f"{self._paths.lock}: cannot be read: {error}") from error
        finally:
            os.close(descriptor)
