"""One file of whole lines that several processes append to (D46, D50).

A line is appended under an exclusive file lock and synced before the caller is told. What a killed process left half
written was never acknowledged to anybody: the next writer completes it if it is a whole record that lacks its line
feed, and cuts it off if not, so that every reader finds only whole lines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.lock_wait import lock_in_time
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import write_all

__all__ = ["RecordFile"]

_CHUNK = 1 << 16


class RecordFile:
    """An open output. It must exist; threads and processes may append at once.

    Args:
        path: The file.
        calls: How the operating system is called.
        check: Called under the file lock before anything is done; what it raises leaves the file as it is.
        lock_timeout_s: How long to wait for the file lock; None for as long as others append one after the other, since
            who asks again and again would come last.

    Raises:
        StorageError: The file is missing or cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        calls: FileCalls,
        check: Callable[[], None] = lambda: None,
        *,
        lock_timeout_s: float | None = None,
    ) -> None:
        self.path, self._calls, self._check, self._lock_timeout_s = path, calls, check, lock_timeout_s
        self._threads = threading.Lock()
        self._acknowledged = 0  # where the last record ends that was stored or found here; the file never gets shorter
        try:
            self._fd = calls.open(str(path), os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise StorageError(f"{path}: the output cannot be opened: {error}") from error

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self._fd >= 0:
            self._calls.close(self._fd)
            self._fd = -1

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._calls.fstat(self._fd).st_size

    def repair(self) -> int:
        """Complete or cut a torn tail (D50), and return the file's size; all of it is durable when this returns.

        Raises:
            StorageError: The file cannot be read, changed or synced.
        """
        with self._locked():
            size = self._repair_tail()
            try:
                self._calls.sync_data(self._fd)
            except OSError as error:
                raise StorageError(f"{self.path}: cannot be synced: {error}") from error
            self._acknowledged = max(self._acknowledged, size)
        return size

    def append(self, line: bytes, *, allowed: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Append a record and its line feed; durable when this returns.

        Args:
            line: The record.
            allowed: Called under the file lock behind the check of all appends; what it raises keeps the record out.

        Returns:
            Offset and length, line feed included.

        Raises:
            StorageError: It could not be stored; the file is as long as before, or the message says from where on its
                bytes are void.
            ValueError: ``line`` holds a line feed.
        """
        if b"\n" in line:
            raise ValueError("a record is one line; it holds a line feed")
        with self._locked():
            allowed()
            start = self._repair_tail()
            try:
                write_all(self._calls, self._fd, line + b"\n")
                self._calls.sync_data(self._fd)
            except OSError as error:
                self._cut_back(start, error)
                raise StorageError(f"{self.path}: a record could not be stored: {error}") from error
            self._acknowledged = start + len(line) + 1
        return start, len(line) + 1

    def find(self, wanted: Callable[[bytes], bool], since: int) -> tuple[int, int] | None:
        """Return offset and length of the first wanted record behind ``since``, durable; None without one.

        Raises:
            StorageError: The file cannot be read or synced.
        """
        with self._locked():
            try:
                end = self._repair_tail()
                for offset, line in self._lines(min(since, end), end):
                    if wanted(line):
                        self._calls.sync_data(self._fd)
                        self._acknowledged = max(self._acknowledged, offset + len(line) + 1)
                        return offset, len(line) + 1
            except OSError as error:
                raise StorageError(f"{self.path}: {error}") from error
        return None

    @contextmanager
    def held(self, *, allowed: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep the file's lock for something beside the file that only one process may do; see :meth:`append`.

        Raises:
            StorageError: The file cannot be locked, or was replaced.
        """
        with self._locked():
            allowed()
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:  # the file lock belongs to the open file, which this process's threads share
            try:
                if self._lock_timeout_s is None:
                    self._calls.lock_exclusive(self._fd, wait=True)
                else:
                    lock_in_time(self.path, self._fd, self._calls, timeout_s=self._lock_timeout_s)
            except OSError as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(f"{self.path}: the file cannot be locked: {error}") from error
            try:
                self._check_same_file()
                self._check()
                yield
            finally:
                self._calls.unlock(self._fd)

    def _check_same_file(self) -> None:
        try:
            same = os.path.samestat(self._calls.fstat(self._fd), self._calls.stat(str(self.path)))
        except FileNotFoundError:
            same = False
        if not same:
            raise StorageError(f"{self.path}: the file was moved or replaced since this run began; nothing was written")
        if self.size() < self._acknowledged:
            raise StorageError(
                f"{self.path}: the file was cut to {self.size()} bytes, though this run had stored "
                f"{self._acknowledged}; records are lost, and nothing was written"
            )

    def _cut_back(self, size: int, cause: OSError) -> None:
        try:
            self._calls.truncate(self._fd, size)
            self._calls.sync_data(self._fd)
        except OSError as error:
            message = f"{self.path}: a record could not be stored ({cause}) nor its beginning removed ({error})"
            raise StorageError(f"{message}; bytes from {size} on are void") from cause

    def _repair_tail(self) -> int:
        """Make the file end with a whole line and return its size (D50); the caller holds the lock."""
        size = self.size()
        if size == 0 or self._calls.pread(self._fd, 1, size - 1) == b"\n":
            return size
        start = self._after_last_line_feed(size)
        try:
            if exact_json.loads_object(self._read(start, size)) is not None:
                write_all(self._calls, self._fd, b"\n")
                size += 1
            else:
                self._calls.truncate(self._fd, start)
                size = start
            self._calls.sync_data(self._fd)
        except OSError as error:
            raise StorageError(f"{self.path}: the half line at byte {start} cannot be repaired: {error}") from error
        return size

    def _after_last_line_feed(self, size: int) -> int:
        end = size
        while end > 0:
            start = max(0, end - _CHUNK)
            at = self._calls.pread(self._fd, end - start, start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
        return 0

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end and (part := self._calls.pread(self._fd, min(end - start, 1 << 26), start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _lines(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        rest: list[bytes] = []  # pieces of a line that spans chunks, joined once
        offset = start
        while start < end:
            chunk = self._calls.pread(self._fd, min(end - start, 1 << 20), start)
            if not chunk:
                return
            start += len(chunk)
            first, *others = chunk.split(b"\n")
            rest.append(first)
            for piece in others:
                line = b"".join(rest)
                yield offset, line
                offset += len(line) + 1
                rest = [piece]
