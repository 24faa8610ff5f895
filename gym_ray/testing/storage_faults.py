"""File calls that misbehave on request: fail, hang, forget what was never synced, or write down their order.

``kill -9`` cannot show a missing sync, because the page cache outlives the process. :class:`ForgetfulCalls` can: what
it gives back after the "crash" is only what was synced, names included.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from gym_ray.storage.calls import FileCalls

__all__ = ["FaultyCalls", "ForgetfulCalls", "LocklessCalls", "RecordingCalls"]


class LocklessCalls(FileCalls):
    """A file system without advisory locks."""

    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        """Fail."""
        del fd, wait
        raise OSError(errno.ENOLCK, "no locks")


class _PathCalls(FileCalls):
    """Knows the path of every open file."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open and remember the path."""
        fd = super().open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Close and forget the path."""
        self._paths.pop(fd, None)
        super().close(fd)

    def path_of(self, fd: int) -> str:
        """Return the path an open file was opened by."""
        return self._paths[fd]


class FaultyCalls(_PathCalls):
    """Fails or holds calls on chosen files.

    Args:
        only: Says of a path whether faults apply to it.

    Attributes:
        write_error: Raised by writes, after ``bytes_before_error`` bytes went through.
        open_error: Raised by opens.
        sync_gate: Syncs of file data wait for this event; None lets them pass.
        syncs_waiting: Set when a sync has come to the gate.
    """

    def __init__(self, only: Callable[[str], bool] = lambda path: path.endswith(".capture.jsonl")) -> None:
        super().__init__()
        self._only = only
        self.write_error: OSError | None = None
        self.open_error: OSError | None = None
        self.bytes_before_error = 0
        self.sync_gate: threading.Event | None = None
        self.syncs_waiting = threading.Event()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open, unless opens are to fail."""
        if self.open_error is not None and self._only(path):
            raise self.open_error
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write, as far as writes are to go through."""
        if self.write_error is None or not self._only(self.path_of(fd)):
            return super().write(fd, data)
        if self.bytes_before_error:
            written = super().write(fd, memoryview(data)[: self.bytes_before_error])
            self.bytes_before_error = 0
            return written
        raise self.write_error

    def sync_data(self, fd: int) -> None:
        """Sync, once the gate is open."""
        gate = self.sync_gate
        if gate is not None and self._only(self.path_of(fd)):
            self.syncs_waiting.set()
            gate.wait()
        super().sync_data(fd)


class RecordingCalls(_PathCalls):
    """Writes down the order of the calls that durability rests on.

    Attributes:
        log: ``(what, file name)`` in order: ``write``, ``sync_data``, ``sync``, ``lock``, ``unlock``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, str]] = []

    def _note(self, what: str, fd: int) -> None:
        self.log.append((what, Path(self.path_of(fd)).name))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Note, then write."""
        self._note("write", fd)
        return super().write(fd, data)

    def sync_data(self, fd: int) -> None:
        """Sync, then note that it is done."""
        super().sync_data(fd)
        self._note("sync_data", fd)

    def sync(self, fd: int) -> None:
        """Sync, then note that it is done."""
        super().sync(fd)
        self._note("sync", fd)

    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        """Lock, then note it."""
        taken = super().lock_exclusive(fd, wait=wait)
        self._note("lock", fd)
        return taken

    def unlock(self, fd: int) -> None:
        """Note, then unlock."""
        self._note("unlock", fd)
        super().unlock(fd)


class ForgetfulCalls(_PathCalls):
    """Works on the real directory, and remembers what a power cut would leave of it.

    A file's bytes count when the file was synced; a name counts when its directory was synced after the name was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}

    def sync_data(self, fd: int) -> None:
        """Sync, and count the file's bytes as kept."""
        super().sync_data(fd)
        self._keep_content(fd)

    def sync(self, fd: int) -> None:
        """Sync, and count a file's bytes or a directory's names as kept."""
        super().sync(fd)
        path = self.path_of(fd)
        if not Path(path).is_dir():
            self._keep_content(fd)
            return
        with os.scandir(path) as entries:
            names = {entry.name: entry.inode() for entry in entries if entry.is_file()}
        with self._lock:
            self._names[path] = names

    def _keep_content(self, fd: int) -> None:
        info = self.fstat(fd)
        reader = os.open(self.path_of(fd), os.O_RDONLY)
        try:
            content = os.pread(reader, info.st_size, 0)
        finally:
            os.close(reader)
        with self._lock:
            self._contents[info.st_ino] = content

    def after_power_cut(self, directory: Path) -> dict[str, bytes]:
        """Return the files of a directory as a power cut at this moment would leave them: name to bytes."""
        with self._lock:
            names = self._names.get(str(directory), {})
            return {name: self._contents.get(inode, b"") for name, inode in names.items()}
