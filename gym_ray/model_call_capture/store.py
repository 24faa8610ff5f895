"""``CaptureStore``: the files of a capture directory, one ``<rollout id>.capture.jsonl`` per rollout attempt (A §7).

The file is the only truth. Reading creates nothing; clearing truncates and never unlinks, because a writer may hold
the file open. What is written here can be read by its owner only.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.lines import CaptureSnapshot, iterate_lines, parse_lines
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import LineFiles
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, keep_to_owner, make_directory, sync_directory

__all__ = ["CAPTURE_SUFFIX", "INCOMPLETE_SUFFIX", "CaptureStore", "capture_file_name", "encode_line"]

CAPTURE_SUFFIX = ".capture.jsonl"
INCOMPLETE_SUFFIX = ".capture.incomplete"

_LONGEST_POLL_S = 0.05


def capture_file_name(rollout_id: str) -> str:
    """Return the name of a rollout's capture file.

    Raises:
        RolloutIdError: The id cannot be a file name here (A26).
    """
    return check_rollout_id(rollout_id) + CAPTURE_SUFFIX


def encode_line(exchange: dict[str, Any]) -> bytes:
    """Return one record as a line: compact JSON and a line feed (A66).

    Raises:
        ValueError: The record nests deeper than JSON can follow.
    """
    return exact_json.dumps(exchange) + b"\n"


class CaptureStore:
    """A capture directory. Safe for any number of threads and processes at once.

    Args:
        root: The directory; created with its parents by the first write.
        calls: How the operating system is called.
        lock_timeout_s: How long reading and clearing wait for an append in progress, which a disk may never end.
    """

    def __init__(self, root: str | Path, *, calls: FileCalls | None = None, lock_timeout_s: float = 30.0) -> None:
        self.root = Path(root)
        self._calls = calls or FileCalls()
        self._lock_timeout_s = lock_timeout_s

    def path_for(self, rollout_id: str) -> Path:
        """Return the path of a rollout's capture file (A62).

        Raises:
            RolloutIdError: The id cannot be a file name here.
        """
        return self.root / capture_file_name(rollout_id)

    def incomplete_path_for(self, rollout_id: str) -> Path:
        """Return the path of the marker that says a record was lost (A63).

        Raises:
            RolloutIdError: The id cannot be a file name here.
        """
        return self.root / f"{check_rollout_id(rollout_id)}{INCOMPLETE_SUFFIX}"

    def mark_incomplete(self, rollout_id: str) -> None:
        """Mark a rollout as having lost a record; durable when it returns, and it stays until cleared (A56, A69).

        Raises:
            RolloutIdError: The id cannot be a file name here.
            CaptureError: The marker could not be made durable.
        """
        path = self.incomplete_path_for(rollout_id)
        try:
            make_directory(self._calls, self.root, OWNER_ONLY_DIRECTORY)
            fd = self._calls.open(str(path), os.O_WRONLY | os.O_CREAT, OWNER_ONLY)
            try:
                keep_to_owner(self._calls, fd, self._calls.fstat(fd), str(path))
            finally:
                self._calls.close(fd)
            sync_directory(self._calls, str(self.root))
        except OSError as error:
            raise CaptureError(f"{path}: cannot mark the rollout incomplete: {error}") from error

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether a rollout is marked as having lost a record.

        Raises:
            RolloutIdError: The id cannot be a file name here.
        """
        return self.incomplete_path_for(rollout_id).exists()

    def record(self, rollout_id: str, exchange: dict[str, Any]) -> None:
        """Append one record; it is durable, and readable by any process, when this returns (A65).

        Raises:
            RolloutIdError: The id cannot be a file name here.
            CaptureError: The record could not be kept; the file holds no part of it.
        """
        name = capture_file_name(rollout_id)
        try:
            line = encode_line(exchange)
            make_directory(self._calls, self.root, OWNER_ONLY_DIRECTORY)
            files = LineFiles(self.root, calls=self._calls, max_handles=1)
            try:
                files.append(name, line)
            finally:
                files.close()
        except (OSError, ValueError) as error:
            raise CaptureError(f"{self.root / name}: the record could not be kept: {error}") from error

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """Return every record in append order; a missing file gives none (A70a). Waits for an append in progress.

        Raises:
            RolloutIdError: The id cannot be a file name here.
            CaptureError: A line is damaged or not an object, or the file cannot be read; names the file and the line.
        """
        path = self.path_for(rollout_id)
        exchanges = []
        for index, line in iterate_lines(self._read_bytes(path) or b""):
            try:
                exchange = exact_json.loads(line)
            except ValueError as error:
                raise CaptureError(f"{path}: record {index} is damaged (JSON decode error): {error}") from error
            if not isinstance(exchange, dict):
                raise CaptureError(f"{path}: record {index} is not a JSON object")
            exchanges.append(exchange)
        return exchanges

    def read_available(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Return the readable records with their line index, and the number of damaged lines (A70b).

        Raises:
            RolloutIdError: The id cannot be a file name here.
            CaptureError: The file cannot be read.
        """
        return parse_lines(self._read_bytes(self.path_for(rollout_id)) or b"")

    def snapshot(self, rollout_id: str) -> CaptureSnapshot:
        """Return the file's bytes, read under the lock, and the marker; what cannot be read is said, not raised.

        Raises:
            RolloutIdError: The id cannot be a file name here.
        """
        path, error = self.path_for(rollout_id), None
        try:
            data = self._read_bytes(path)
        except CaptureError as unreadable:
            data, error = None, str(unreadable)
        # The marker is looked at last: a writer that failed in between has set it by now.
        return CaptureSnapshot(data=data, incomplete=self.is_incomplete(rollout_id), error=error)

    def clear(self, rollout_id: str) -> None:
        """Empty a rollout's capture before its attempt is dispatched; durable when it returns (A83).

        The file is truncated under the writers' lock and its marker removed; missing files are fine.

        Raises:
            RolloutIdError: The id cannot be a file name here.
            CaptureError: It could not be done.
        """
        path, marker = self.path_for(rollout_id), self.incomplete_path_for(rollout_id)
        try:
            self._truncate(path)
            if marker.exists():
                self._calls.unlink(str(marker))
                sync_directory(self._calls, str(self.root))
        except OSError as error:
            raise CaptureError(f"{path}: an earlier capture cannot be cleared: {error}") from error

    def _truncate(self, path: Path) -> None:
        try:
            fd = self._calls.open(str(path), os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            keep_to_owner(self._calls, fd, self._calls.fstat(fd), str(path))
            self._lock_in_time(lambda: self._calls.lock_exclusive(fd, wait=False))
            self._calls.truncate(fd, 0)
            self._calls.sync(fd)
        finally:
            self._calls.close(fd)

    def _read_bytes(self, path: Path) -> bytes | None:
        try:
            with self._shared(path) as fd:
                size = self._calls.fstat(fd).st_size
                return b"".join(self._blocks(fd, size))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CaptureError(f"{path}: cannot be read: {error}") from error

    def _blocks(self, fd: int, size: int) -> Iterator[bytes]:
        offset = 0
        while offset < size:
            block = self._calls.pread(fd, size - offset, offset)
            if not block:
                return
            yield block
            offset += len(block)

    @contextmanager
    def _shared(self, path: Path) -> Iterator[int]:
        fd = self._calls.open(str(path), os.O_RDONLY)
        try:
            self._lock_in_time(lambda: self._calls.lock_shared(fd, wait=False))
            yield fd
        finally:
            self._calls.close(fd)

    def _lock_in_time(self, try_lock: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + self._lock_timeout_s, 0.001
        while not try_lock():
            if time.monotonic() >= deadline:
                raise OSError(errno.EAGAIN, f"a writer has held its lock for more than {self._lock_timeout_s:.3g} s")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_POLL_S)
