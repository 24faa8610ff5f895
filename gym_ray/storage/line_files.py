"""Durable appends of whole lines to many files of one directory that other processes append to and read as well.

The unit is a run of complete lines. It is in the file whole or not at all: written under the file's advisory lock,
cut back when a write fails half-way, and put on a line of its own when a killed writer left half a line behind.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_ray.storage.calls import FileCalls, SyncOutcome
from gym_ray.storage.posix import OWNER_ONLY, keep_to_owner, sync_directory, write_all

__all__ = ["LineFiles", "StagedAppend", "WouldWaitError"]

_log = logging.getLogger(__name__)
_KNOWN_ENTRIES = 16_384


class WouldWaitError(Exception):
    """Another process holds the file's lock; the append has not begun."""


@dataclass(slots=True)
class _Handle:
    fd: int
    device: int
    inode: int
    directory_syncs: int
    """Syncs of the directory that had begun when the file was opened; a later one covers its name."""
    clean_end: int = -1
    """File size behind our own last append, which ended in a line feed; -1 when unknown."""


@dataclass(slots=True)
class StagedAppend:
    """Lines that are in their file and may not be durable yet. The file's lock is held until they are settled.

    Attributes:
        name: File name.
        offset: Where the first of the lines begins.
        size: File size before the append.
        end: File size behind it; equal to ``size`` when there was nothing to write.
    """

    name: str
    offset: int
    size: int
    end: int
    handle: _Handle


class _DirectorySync:
    """Syncs one directory for many callers: a sync that begins after a caller's own change serves that caller too."""

    def __init__(self, path: str, calls: FileCalls) -> None:
        self._path, self._calls = path, calls
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0

    def begun(self) -> int:
        """Return how many syncs have begun; ask after a change, and give it to :meth:`sync`."""
        return self._begun

    def sync(self, begun_before: int) -> None:
        """Return once the change that ``begun_before`` was asked after is durable.

        Raises:
            OSError: It could not be done.
        """
        with self._lock:
            if self._ended > begun_before:
                return
            self._begun += 1
            number = self._begun
            sync_directory(self._calls, self._path)
            self._ended = number


class LineFiles:
    """Appends to ``<root>/<name>``; every method may be called from several threads.

    The files are for their owner only, whatever the umask; looser ones of ours are tightened when they are opened.

    Args:
        root: Existing directory.
        calls: How the operating system is called.
        max_handles: Open files kept for the next append; the oldest is closed first.
        before_append: Given the name, descriptor and size of a file under its lock, before anything is composed. It
            may cut the file, and returns the size that is left.
    """

    def __init__(
        self,
        root: Path,
        *,
        calls: FileCalls | None = None,
        max_handles: int = 256,
        before_append: Callable[[str, int, int], int] | None = None,
    ) -> None:
        self._root = str(root)
        self._calls = calls or FileCalls()
        self._max_handles = max_handles
        self._before_append = before_append
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._durable_entries: OrderedDict[str, int] = OrderedDict()
        self._sync_failed: set[str] = set()
        self._lock = threading.Lock()
        self._directory = _DirectorySync(self._root, self._calls)

    def append(self, name: str, data: bytes, *, wait: bool = True) -> int:
        """Append ``data``, one or more whole lines, and return the offset of its first byte; durable then (A65-A69).

        Args:
            name: File name; the file is created when missing, and found again when it was replaced.
            data: Ends in a line feed.
            wait: Wait for the file's lock when another holds it.

        Raises:
            WouldWaitError: ``wait`` is false and another holds the lock.
            OSError: It could not be done; the file holds no part of ``data``, or the whole of it unsynced.
        """
        return self.append_composed(name, lambda: data, wait=wait)

    def append_composed(self, name: str, compose: Callable[[], bytes], *, wait: bool = True) -> int:
        """Append what ``compose`` returns, asked under the file's lock; nothing is written or synced for no bytes.

        Whoever empties the file takes the same lock, so what ``compose`` knows of the emptying is not out of date
        when its bytes are in the file. Otherwise as :meth:`append`.

        Raises:
            WouldWaitError: ``wait`` is false and another holds the lock; ``compose`` was not asked.
            OSError: As :meth:`append`.
        """
        staged, problem = self.stage(name, compose, wait=wait), None
        try:
            if staged.end > staged.size:
                self._calls.sync_data(staged.handle.fd)
        except BaseException as error:  # noqa: BLE001 - settling gives up the lock, and raises it
            problem = error
        self.settle(staged, problem)
        return staged.offset

    def stage(self, name: str, compose: Callable[[], bytes], *, wait: bool) -> StagedAppend:
        """Do the first half of :meth:`append_composed`: lock and write. Whoever gets the result settles it.

        Raises:
            WouldWaitError: As :meth:`append_composed`.
            OSError: As :meth:`append_composed`.
        """
        handle = self._take(name)
        while True:
            try:
                locked = self._calls.lock_exclusive(handle.fd, wait=wait)
                size = self._size_if_current(name, handle) if locked else None
                if size is not None:
                    if self._before_append is not None:
                        size = self._before_append(name, handle.fd, size)
                    return self._write_locked(name, handle, compose(), size)
            except BaseException:
                self._calls.close(handle.fd)  # gives up the lock, whatever went wrong
                raise
            if not locked:
                self._give_back(name, handle)
                raise WouldWaitError(name)
            self._calls.close(handle.fd)
            handle = self._open(name)

    def sync_all(self, staged: Sequence[StagedAppend], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Sync what was staged in distinct files, several at a time, and tell the outcomes as they come.

        Args:
            staged: Appends that wrote something.
            tell: Settles each append whose outcome it is told, by its index in ``staged``; must not raise.
        """
        self._calls.sync_all([append.handle.fd for append in staged], tell)

    @property
    def syncs_at_once(self) -> int:
        """How many files :meth:`sync_all` syncs at the same time."""
        return self._calls.syncs_at_once

    def settle(self, staged: StagedAppend, error: BaseException | None = None) -> None:
        """Do the last part of an append after its sync: make a new file's name durable, give up the lock.

        Args:
            staged: The append.
            error: What went wrong with its sync.

        Raises:
            Exception: ``error``, or what went wrong here; the lines may not be durable then. The lock is given up.
        """
        handle = staged.handle
        if error is not None:
            with self._lock:
                self._sync_failed.add(staged.name)
            self._calls.close(handle.fd)
            raise error
        try:
            if staged.end > staged.size:
                self._settle_name(staged)
                handle.clean_end = staged.end
                if self._sync_failed:
                    with self._lock:
                        self._sync_failed.discard(staged.name)
            self._calls.unlock(handle.fd)
        except BaseException:
            self._calls.close(handle.fd)
            raise
        self._give_back(staged.name, handle)

    def close(self) -> None:
        """Close the kept files; an append after this opens its file anew."""
        with self._lock:
            handles = list(self._handles.values())
            self._handles.clear()
        for handle in handles:
            self._calls.close(handle.fd)

    def _take(self, name: str) -> _Handle:
        with self._lock:
            handle = self._handles.pop(name, None)
        return handle or self._open(name)

    def _open(self, name: str) -> _Handle:
        path = f"{self._root}/{name}"
        fd = self._calls.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
        try:
            info = self._calls.fstat(fd)
            keep_to_owner(self._calls, fd, info, path)
        except OSError:
            self._calls.close(fd)
            raise
        return _Handle(fd, info.st_dev, info.st_ino, self._directory.begun())

    def _give_back(self, name: str, handle: _Handle) -> None:
        surplus = None
        with self._lock:
            if name in self._handles:
                surplus = handle
            else:
                self._handles[name] = handle
                if len(self._handles) > self._max_handles:
                    _, surplus = self._handles.popitem(last=False)
        if surplus is not None:
            self._calls.close(surplus.fd)

    def _size_if_current(self, name: str, handle: _Handle) -> int | None:
        """Return the file's size, or None when the name leads to another file by now."""
        try:
            info = self._calls.stat(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        if info.st_ino != handle.inode or info.st_dev != handle.device:
            return None
        return info.st_size

    def _write_locked(self, name: str, handle: _Handle, data: bytes, size: int) -> StagedAppend:
        if not data:
            return StagedAppend(name, size, size, size, handle)
        offset = size
        if size and size != handle.clean_end and self._may_end_torn(name, handle, size):
            data = b"\n" + data
            offset += 1
        handle.clean_end = -1
        try:
            write_all(self._calls, handle.fd, data)
        except BaseException:
            self._cut_back(name, handle, size)
            raise
        return StagedAppend(name, offset, size, size + len(data), handle)

    def _may_end_torn(self, name: str, handle: _Handle, size: int) -> bool:
        """Whether what follows needs a line feed of its own.

        After a failed sync the kernel may have given up what it shows at the end of the file, line feed and all.
        """
        return name in self._sync_failed or self._calls.pread(handle.fd, 1, size - 1) != b"\n"

    def _settle_name(self, staged: StagedAppend) -> None:
        """A name is durable only after its directory is; another writer's unfinished creation counts as ours."""
        handle = staged.handle
        if staged.size == 0 or self._durable_entries.get(staged.name) != handle.inode:
            self._directory.sync(handle.directory_syncs)
            self._remember_entry(staged.name, handle.inode)

    def _cut_back(self, name: str, handle: _Handle, size: int) -> None:
        try:
            self._calls.truncate(handle.fd, size)
        except OSError as error:
            # The next append begins on a fresh line, so the torn one costs only itself.
            _log.warning("%s/%s: a failed append could not be cut back to %d bytes: %s", self._root, name, size, error)

    def _remember_entry(self, name: str, inode: int) -> None:
        with self._lock:
            self._durable_entries[name] = inode
            if len(self._durable_entries) > _KNOWN_ENTRIES:
                self._durable_entries.popitem(last=False)
