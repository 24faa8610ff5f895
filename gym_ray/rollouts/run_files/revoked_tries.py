"""Calls back tries of joins, so that no attempt gets two records from joiners that do not know of each other.

A joiner may be cut off with a join in hand, or live on after its node was given up. Before another joiner is asked, the
collector says here that the earlier try may store nothing any more. Whoever appends looks under the file lock of what
it appends to, and the later try looks for the record under the same lock afterwards: either it finds the record of the
earlier try, or that record can never come.

The lines are in a file of their own. How many bytes of it count stands in the lock file, which every append reads
anyway, so that tries which were never called back cost nothing. Must never take what it cannot read for "nothing was
called back".
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import make_directory, sync_directory

__all__ = ["JoinTry", "RevokedTries"]


@dataclass(frozen=True, slots=True)
class JoinTry:
    """One try to join one attempt.

    Attributes:
        rollout_id: Capture key of the attempt.
        number: Grows from each try of the attempt to the next.
    """

    rollout_id: str
    number: int


class RevokedTries:
    """The tries that the collector of one term called back; thread-safe.

    Args:
        path: Their file; it is missing until the first one is called back.
        calls: How the operating system is called.
    """

    def __init__(self, path: Path, calls: FileCalls) -> None:
        self._path, self._calls = path, calls
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._last: dict[str, int] = {}  # number of the last try of an attempt that was called back

    def read_up_to(self, size: int) -> None:
        """Know what the first ``size`` bytes say; nothing is read that was read before.

        Raises:
            StorageError: They cannot be read, so that nobody knows which tries may go on.
        """
        if size == self._read_bytes:
            return
        with self._lock:
            if size <= self._read_bytes:
                return  # another thread was faster
            for line in self._read(self._read_bytes, size).splitlines():
                said = exact_json.loads_object(line) or {}
                rollout_id, number = said.get("rollout_id"), said.get("number")
                if not isinstance(rollout_id, str) or not isinstance(number, int):
                    raise self._unknown(f"a line is damaged: {line[:80]!r}")
                self._last[rollout_id] = max(number, self._last.get(rollout_id, number))
            self._read_bytes = size

    def _read(self, start: int, end: int) -> bytes:
        try:
            descriptor = self._calls.open(str(self._path), os.O_RDONLY)
            try:
                data = self._calls.pread(descriptor, end - start, start)
            finally:
                self._calls.close(descriptor)
        except OSError as error:
            raise self._unknown(str(error)) from error
        if len(data) != end - start or not data.endswith(b"\n"):
            raise self._unknown(f"it ends before byte {end}")
        return data

    def _unknown(self, problem: str) -> StorageError:
        return StorageError(
            f"{self._path}: which tries of joins were called back cannot be read ({problem}); nothing was written"
        )

    def check(self, one: JoinTry) -> None:
        """Return when a try may still store its record, as far as :meth:`read_up_to` has read.

        Raises:
            StorageError: It was called back.
        """
        with self._lock:
            last = self._last.get(one.rollout_id)
        if last is not None and one.number <= last:
            raise StorageError(
                f"{one.rollout_id}: try {one.number} of its join was called back, another joiner has the attempt; "
                "nothing was written for it"
            )

    def write(self, one: JoinTry, at: int) -> int:
        """Write that a try is called back, and return the file's new size; durable, but not in force until that counts.

        Args:
            one: The try; those before it are called back with it.
            at: Bytes that count so far; what a killed process left behind them is written over.

        Raises:
            OSError: It could not be written.
        """
        line = exact_json.dumps({"rollout_id": one.rollout_id, "number": one.number}) + b"\n"
        if at == 0:
            make_directory(self._calls, self._path.parent)
        descriptor = self._calls.open(str(self._path), os.O_RDWR | os.O_CREAT)
        try:
            if self._calls.write_at(descriptor, line, at) != len(line):
                raise OSError(f"{self._path}: only a part of a line was taken")
            self._calls.sync_data(descriptor)
        finally:
            self._calls.close(descriptor)
        if at == 0:
            sync_directory(self._calls, str(self._path.parent))
        return at + len(line)
