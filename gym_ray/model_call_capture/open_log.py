"""The open log: which exchanges a writer has begun and not ended, readable after the writer's death.

``<root>/.open/<server>-<epoch>.log`` gets a line when an exchange begins, before its handler runs, and one when its
record is durable or its rollout is marked. The lines are not synced: they must survive the process, not the machine.
The writer holds an exclusive lock on its log for life, so a reader that gets the lock knows that the writer is dead.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gym_ray.errors import CaptureError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, keep_to_owner, make_directory, write_all

__all__ = [
    "OPEN_LOGS",
    "DeadLog",
    "OpenLog",
    "is_living",
    "list_logs",
    "living_open_calls",
    "log_name",
    "log_path",
    "read_open_calls",
    "take_dead",
]

OPEN_LOGS = ".open"
"""Directory of the open logs in a capture directory."""

_BEGIN, _END, _CLEARED = b"B", b"E", b"C"


def log_name(server_name: str, epoch: str) -> str:
    """Return the name of a writer's open log; characters that a file name should not hold are replaced."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', server_name)}-{epoch}.log"


def log_path(root: Path, name: str) -> Path:
    """Return where the log of that name is in a capture directory."""
    return root / OPEN_LOGS / name


def list_logs(root: Path) -> list[Path]:
    """Return the open logs of a capture directory, of living and dead writers."""
    try:
        return sorted(path for path in (root / OPEN_LOGS).iterdir() if path.suffix == ".log")
    except FileNotFoundError:
        return []


class OpenLog:
    """A living writer's log; every method may be called from any thread.

    The file has its full size from the start, so that a line is a write over old bytes, which costs the event loop a
    microsecond. No memory map, though it costs less: where the file can no longer be read, or somebody cut it, a store
    into a map kills the process.

    Args:
        root: The capture directory.
        name: From :func:`log_name`; must be new.
        calls: How the operating system is called.
        max_bytes: Size of the log; a full one is written anew with the open calls only.

    Raises:
        CaptureError: The log cannot be created or locked.
    """

    def __init__(self, root: Path, name: str, *, calls: FileCalls | None = None, max_bytes: int = 1 << 20) -> None:
        self.path = log_path(root, name)
        self._calls = calls or FileCalls()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._open: dict[str, bytes] = {}
        self._end = 0
        self._closed = False
        try:
            make_directory(self._calls, self.path.parent, OWNER_ONLY_DIRECTORY)
            self._fd, self._size = self._replace(b"")
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be created and locked: {error}") from error

    def begin(self, call_id: str, rollout_id: str) -> None:
        """Note that an exchange begins; a crash of the process from now on is not silent.

        Raises:
            OSError: The line could not be written.
        """
        line = f"B {call_id} {rollout_id}\n".encode()
        with self._lock:
            self._open[call_id] = line
            self._append(line)

    def end(self, call_ids: Iterable[str]) -> None:
        """Note that exchanges ended: each is durable, or its rollout is marked.

        Raises:
            OSError: The lines could not be written; a reader will mark these rollouts unless it finds the records.
        """
        with self._lock:
            ended = [call_id for call_id in call_ids if self._open.pop(call_id, None) is not None]
            if ended:
                self._append("".join([f"E {call_id}\n" for call_id in ended]).encode())

    def clear(self, rollout_id: str) -> None:
        """Note that a rollout begins anew, so that what is open of it now is nobody's loss after a crash.

        Raises:
            OSError: The line could not be written; after a crash a reader may mark the rollout.
        """
        suffix = f" {rollout_id}\n".encode()
        with self._lock:
            kept = {call_id: line for call_id, line in self._open.items() if not line.endswith(suffix)}
            if len(kept) < len(self._open):
                self._open = kept
                self._append(b"%s %s\n" % (_CLEARED, rollout_id.encode()))

    def close(self) -> None:
        """Give up the lock; the log is removed when nothing is open, else it stays for whoever adopts it."""
        with self._lock:
            self._closed = True
            try:
                if not self._open:
                    self._calls.unlink(str(self.path))
            finally:
                self._calls.close(self._fd)

    def _append(self, line: bytes) -> None:
        if self._closed:
            raise OSError(errno.EBADF, f"{self.path} is closed")
        if self._end + len(line) > self._size:
            self._rewrite()  # a begin is among the open calls by now, and an end is not
            return
        written = self._calls.write_at(self._fd, line, self._end)
        if written < len(line):
            raise OSError(errno.ENOSPC, f"{self.path}: {written} bytes of a line of {len(line)} were written")
        self._end += written

    def _rewrite(self) -> None:
        content = b"".join(self._open.values())
        fd, size = self._replace(content)
        old, self._fd, self._size, self._end = self._fd, fd, size, len(content)
        self._calls.close(old)

    def _replace(self, content: bytes) -> tuple[int, int]:
        """Put a new, locked file in the log's place; at no moment does its name lead to a file without a lock."""
        size = max(self._max_bytes, 2 * len(content))
        temporary = str(self.path.with_name(f".{self.path.name}.new"))
        fd = self._calls.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
        try:
            self._calls.lock_exclusive(fd, wait=True)
            self._calls.allocate(fd, size)  # so that a disk that is full later has room for every line
            write_all(self._calls, fd, content)
            self._calls.rename(temporary, str(self.path))
        except OSError:
            self._calls.close(fd)
            self._calls.unlink(temporary)
            raise
        return fd, size


def read_open_calls(content: bytes) -> dict[str, str]:
    """Return the calls that a log begins and does not end: call id to rollout id. A torn last line counts as absent."""
    open_calls: dict[str, str] = {}
    content = content.replace(b"\0", b"")  # what was not written yet; lines added later by others stand behind it
    for line in content.split(b"\n")[:-1]:
        kind, _, rest = line.partition(b" ")
        fields = rest.decode("ascii", "replace").split(" ")
        if kind == _BEGIN and len(fields) == 2:
            open_calls[fields[0]] = fields[1]
        elif kind == _END:
            open_calls.pop(fields[0], None)
        elif kind == _CLEARED:
            open_calls = {call_id: owner for call_id, owner in open_calls.items() if owner != fields[0]}
    return open_calls


def is_living(path: Path, calls: FileCalls | None = None) -> bool:
    """Return whether a log's writer lives; False when it is dead or signed off.

    Raises:
        OSError: The log cannot be read.
    """
    with take_dead(path, calls) as dead:
        return dead is None and path.exists()


@dataclass(frozen=True, slots=True)
class DeadLog:
    """The log of a dead writer; no living one can take it while we hold it.

    Attributes:
        path: Where it is.
        open_calls: Calls it began and never ended: call id to rollout id.
    """

    path: Path
    open_calls: dict[str, str]
    _fd: int
    _calls: FileCalls

    def remove(self) -> None:
        """Remove the log; whoever does must have marked its rollouts before. One that is gone is fine."""
        with suppress(FileNotFoundError):
            self._calls.unlink(str(self.path))

    def clear(self, rollout_id: str) -> None:
        """Note that a rollout's capture was cleared, so that its old calls are nobody's loss."""
        write_all(self._calls, self._fd, b"\n%s %s\n" % (_CLEARED, rollout_id.encode()))


@contextmanager
def take_dead(path: Path, calls: FileCalls | None = None) -> Iterator[DeadLog | None]:
    """Lock a log and yield what it says; None when its writer lives, or the log is gone.

    Raises:
        OSError: The log cannot be read.
    """
    calls = calls or FileCalls()
    try:
        fd = calls.open(str(path), os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        yield None
        return
    try:
        yield _read_if_dead(path, fd, calls)
    finally:
        calls.close(fd)


def _read_if_dead(path: Path, fd: int, calls: FileCalls) -> DeadLog | None:
    if not calls.lock_shared(fd, wait=False):  # shared, so that several readers find the same writer dead
        return None
    info = calls.fstat(fd)
    keep_to_owner(calls, fd, info, str(path))
    try:
        current = calls.stat(str(path))
    except FileNotFoundError:
        return None
    if current.st_ino != info.st_ino:
        return None  # its living writer wrote it anew between our open and our lock
    content = calls.pread(fd, info.st_size, 0)
    return DeadLog(path, read_open_calls(content), fd, calls)


def living_open_calls(path: Path, calls: FileCalls | None = None) -> dict[str, str] | None:
    """Return the open calls in a living writer's log as they stand; None when its writer is dead or signed off.

    Raises:
        OSError: The log cannot be read.
    """
    calls = calls or FileCalls()
    with take_dead(path, calls) as dead:
        if dead is not None:
            return None
    try:
        return read_open_calls(path.read_bytes())
    except FileNotFoundError:
        return None
