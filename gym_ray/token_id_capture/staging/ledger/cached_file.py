"""One rollout's ledger file as far as it was read: only what was appended since is read again (C204).

Another process may have replaced, cut or removed the file in the meantime. A file system gives an inode's number to a
new file, so the last lines that were read must still be there; else everything is read anew. An end without a line
feed is an append that has not ended, or never will: nobody was told that it is there, and it is not read.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

from gym_ray.errors import DamagedRecordError
from gym_ray.storage.calls import FileCalls
from gym_ray.token_id_capture.staging.ledger.ledger_lines import read_line
from gym_ray.token_id_capture.staging.ledger.retirement import LEDGER_SUFFIX
from gym_ray.token_id_capture.staging.ledger.rollout_rows import RolloutRows

__all__ = ["CachedFile", "FileCache", "numbered_lines"]

_log = logging.getLogger(__name__)
_STEP: Final = 1 << 20
_COMPARED: Final = 2048
"""Bytes before the end that must still be there: at least the keys and digests of a row, or a dozen failures."""
_MAX_ROWS: Final = 65_536
_ROLLOUT_WEIGHT: Final = 2
"""What a rollout costs beside its rows, in rows."""


class CachedFile:
    """What is known of one ledger file; its lock is held by whoever looks or refreshes.

    Args:
        path: The file, which need not exist.

    Attributes:
        lock: Serialises the threads of this process; whoever holds it waits for no file lock.
        rows: What the file says.
        end: How many bytes were read, whole lines all.
    """

    __slots__ = ("_changed_ns", "_identity", "_lines", "_path", "_tail", "end", "lock", "rows")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lock = threading.Lock()
        self.rows, self.end = RolloutRows(), 0
        self._identity, self._changed_ns, self._lines, self._tail = (0, 0), -1, 0, b""

    def refresh(self, calls: FileCalls) -> RolloutRows:
        """Read what is new by the file's name; a missing file has no rows.

        Raises:
            OSError: It could not be read, or the whole directory is missing.
        """
        try:
            info = self._path.stat()
            if self._is_as_read(info):
                return self.rows
            fd = calls.open(str(self._path), os.O_RDONLY)
        except FileNotFoundError:
            self._path.parent.stat()  # without its directory, nobody can say that there is no file
            self._forget((0, 0))
            return self.rows
        try:
            return self.refresh_open(calls, fd)
        finally:
            calls.close(fd)

    def refresh_open(self, calls: FileCalls, fd: int) -> RolloutRows:
        """Read what is new in the open file.

        Raises:
            OSError: It could not be read.
        """
        info = os.fstat(fd)  # the times are needed, which ``calls`` may leave out
        if self._is_as_read(info):
            return self.rows
        if (info.st_dev, info.st_ino) != self._identity or info.st_size < self.end or not self._ends_as_read(calls, fd):
            self._forget((info.st_dev, info.st_ino))
        self._take(_read(calls, fd, self.end, info.st_size))
        self._changed_ns = info.st_ctime_ns
        return self.rows

    def _is_as_read(self, info: os.stat_result) -> bool:
        identity = (info.st_dev, info.st_ino)
        return (identity, info.st_size, info.st_ctime_ns) == (self._identity, self.end, self._changed_ns)

    def _ends_as_read(self, calls: FileCalls, fd: int) -> bool:
        return calls.pread(fd, len(self._tail), self.end - len(self._tail)) == self._tail

    def _forget(self, identity: tuple[int, int]) -> None:
        self.rows, self.end = RolloutRows(), 0
        self._identity, self._changed_ns, self._lines, self._tail = identity, -1, 0, b""

    def _take(self, data: bytes) -> None:
        for number, line in numbered_lines(BytesIO(data), self._lines):
            place = f"{self._path.name}:{number}"
            try:
                read = read_line(line, place)
                if read is not None:
                    self.rows.add(read)
            except DamagedRecordError as error:
                self.rows.damaged.append(place)
                _log.error("the ledger in %s is damaged, so nothing of its rollout can be used: %s", self._path, error)
            self._lines = number
        taken = data.rfind(b"\n") + 1
        self._tail = (self._tail + data[max(0, taken - _COMPARED) : taken])[-_COMPARED:]
        self.end += taken


class FileCache:
    """What is known of the ledger files of a directory; the rollouts that were asked for longest ago are forgotten.

    Args:
        root: The directory.
        max_rows: Rows of all rollouts that are held.
    """

    def __init__(self, root: Path, max_rows: int = _MAX_ROWS) -> None:
        self._root, self._max_rows = root, max_rows
        self._lock = threading.Lock()
        self._files: OrderedDict[str, CachedFile] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0

    @contextmanager
    def held(self, rollout_id: str) -> Iterator[CachedFile]:
        """Give a rollout's file, which no other thread of this process looks at meanwhile."""
        with self._lock:
            cached = self._files.get(rollout_id)
            if cached is None:
                cached = self._files[rollout_id] = CachedFile(self._root / (rollout_id + LEDGER_SUFFIX))
            self._files.move_to_end(rollout_id)
        with cached.lock:
            try:
                yield cached
            finally:  # a file that could not be read is held all the same
                self._weigh(rollout_id, cached)

    def drop(self, rollout_ids: Iterable[str]) -> None:
        """Forget rollouts."""
        with self._lock:
            for rollout_id in rollout_ids:
                self._forget(rollout_id)

    def __len__(self) -> int:
        """Return how many rollouts are held."""
        return len(self._files)

    def _weigh(self, rollout_id: str, cached: CachedFile) -> None:
        weight = _ROLLOUT_WEIGHT + cached.rows.weight
        with self._lock:
            if self._files.get(rollout_id) is not cached:
                return
            self._weight += weight - self._weights.get(rollout_id, 0)
            self._weights[rollout_id] = weight
            while self._weight > self._max_rows and len(self._files) > 1:
                self._forget(next(iter(self._files)))

    def _forget(self, rollout_id: str) -> None:
        self._files.pop(rollout_id, None)
        self._weight -= self._weights.pop(rollout_id, 0)


def numbered_lines(data: Iterable[bytes], before: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a binary file without their ends, and their numbers; ``before`` lines stand in front."""
    for number, line in enumerate(data, before + 1):
        if line.endswith(b"\n"):
            yield number, line[:-1]


def _read(calls: FileCalls, fd: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        piece = calls.pread(fd, min(_STEP, end - start), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
