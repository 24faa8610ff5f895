"""Which holder of an output's lock a process works for, so that nothing writes for one that is gone (D46, D58).

Joiners live in processes of their own and may outlive their collector: for the seconds that a cluster takes to notice,
or for as long as their machine stands still. The lock is free by then, and the next collector has found out what is
done. A record that came behind its back would give a row two results. So each holder of the lock writes a name of its
term into the lock file before it looks at any output, and whoever appends to an output compares it under that output's
file lock: what is appended before the look is found by it, and what comes later is refused.

Behind the name stands how many bytes count of what the holder called back (``revoked_tries`` beside this). They begin
with a piece of the name: what a holder writes there that is gone, and does not know it, is told apart.
"""

from __future__ import annotations

import os
import threading
import uuid

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.revoked_tries import JoinTry, RevokedTries
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls

__all__ = ["RunTerm", "begin_term"]

_OFFSET = 200
"""Where it stands in the lock file, behind what is said there of the holder."""
_BYTES = 32
_SEAL_BYTES = 8
_COUNT_BYTES = 16


def begin_term(lock: int) -> None:
    """Name a new term in a lock file that the caller holds.

    Raises:
        OSError: It cannot be written.
    """
    name = uuid.uuid4().hex.encode("ascii")
    os.pwrite(lock, name + _counted(name, 0), _OFFSET)


def _counted(name: bytes, size: int) -> bytes:
    return name[:_SEAL_BYTES] + b"%0*d" % (_COUNT_BYTES, size)


class RunTerm:
    """The term in which this was made; thread-safe.

    Args:
        paths: The run's files.
        calls: How the operating system is called to call tries back.

    Raises:
        StorageError: The lock file cannot be read.
    """

    def __init__(self, paths: RunPaths, *, calls: FileCalls | None = None) -> None:
        self._paths, self._calls = paths, calls or FileCalls()
        self._name = self._current()[:_BYTES]
        self._revoked = RevokedTries(paths.revoked / f"{self._name.decode('ascii', 'replace')}.jsonl", self._calls)
        self._revoking = threading.Lock()

    def check(self) -> None:
        """Return while nobody else has taken the lock; what was called back until now is known then.

        Raises:
            StorageError: Somebody has, or the lock file, or what was called back, cannot be read.
        """
        self._revoked.read_up_to(self._counting())

    def check_try(self, one: JoinTry) -> None:
        """Return when a try was not called back; call it behind :meth:`check`, under the same file lock.

        Raises:
            StorageError: It was.
        """
        self._revoked.check(one)

    def revoke(self, one: JoinTry) -> None:
        """Call a try back: once this returns, neither it nor an earlier one of its attempt can store anything.

        Only the holder of the lock may.

        Raises:
            StorageError: It could not be made durable, so that no other joiner may be asked; or somebody else has
                taken the lock.
        """
        with self._revoking:
            size = self._counting()
            try:
                size = self._revoked.write(one, size)
                descriptor = self._calls.open(str(self._paths.lock), os.O_RDWR)
                try:
                    self._calls.write_at(descriptor, _counted(self._name, size), _OFFSET + _BYTES)
                    self._calls.sync_data(descriptor)
                finally:
                    self._calls.close(descriptor)
            except OSError as error:
                raise StorageError(
                    f"{self._paths.revoked}: a join of {one.rollout_id} cannot be called back: {error}"
                ) from error
            self._counting()

    def _counting(self) -> int:
        """Return how many bytes count of what was called back."""
        current = self._current()
        name, said = current[:_BYTES], current[_BYTES:]
        if name != self._name:
            raise StorageError(
                f"{self._paths.output}: another collector has taken over this output; nothing was written for the "
                "earlier one"
            )
        if not said:
            return 0  # a run that nobody locked, or locked before tries could be called back
        if said[:_SEAL_BYTES] != name[:_SEAL_BYTES] or not said[_SEAL_BYTES:].isdigit():
            raise StorageError(
                f"{self._paths.lock}: does not say which tries of joins were called back ({said!r}); end other "
                "collectors of this output and resume; nothing was written"
            )
        return int(said[_SEAL_BYTES:])

    def _current(self) -> bytes:
        """Read the file by its name each time, so that a replaced one is not taken for the one that was opened."""
        try:
            descriptor = os.open(self._paths.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""  # the files of a run that nobody locked
        except OSError as error:
            raise StorageError(f"{self._paths.lock}: cannot be read: {error}") from error
        try:
            return os.pread(descriptor, _BYTES + _SEAL_BYTES + _COUNT_BYTES, _OFFSET)
        except OSError as error:
            raise StorageError(f"{self._paths.lock}: cannot be read: {error}") from error
        finally:
            os.close(descriptor)
