"""A POSIX directory as a store: a hidden sibling file, fsync, one atomic link or rename, fsync of the directory.

The obvious ways lose: a plain write exposes half a file, and exclusive open followed by a write lets a reader see an
empty one. Names that begin with a dot are ours while they are being written; they are never listed.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path, PurePosixPath

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.calls import FileCalls

__all__ = [
    "OWNER_ONLY",
    "OWNER_ONLY_DIRECTORY",
    "PosixStore",
    "keep_to_owner",
    "make_directory",
    "replace_file",
    "sync_directory",
    "write_all",
]

OWNER_ONLY, OWNER_ONLY_DIRECTORY = 0o600, 0o700
"""Permission bits of what nobody else may read."""

_OTHERS = 0o077
_NAME_KEPT = 60
"""Characters of a name that its temporary sibling shows: with more, the longest names would have none that fits."""
_log = logging.getLogger(__name__)


def write_all(calls: FileCalls, fd: int, data: bytes) -> None:
    """Write every byte of ``data``; one system call unless the system takes less.

    Raises:
        OSError: A write failed; the bytes before it may be in the file.
    """
    written = calls.write(fd, data)
    while written < len(data):
        written += calls.write(fd, memoryview(data)[written:])


def sync_directory(calls: FileCalls, path: str) -> None:
    """Make the entries of a directory durable.

    Raises:
        OSError: It could not be done.
    """
    fd = calls.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        calls.sync(fd)
    finally:
        calls.close(fd)


def keep_to_owner(calls: FileCalls, fd: int, info: os.stat_result, path: str) -> None:
    """Take an open file's permissions from everybody but its owner, if that is us.

    A file system that has no permissions cannot; that is logged, and the file used as it is.

    Args:
        calls: The seam to the operating system.
        fd: The open file.
        info: What ``fstat`` says of it.
        path: Its path, for the log.
    """
    if not info.st_mode & _OTHERS or info.st_uid != os.geteuid():
        return
    try:
        calls.change_mode(fd, OWNER_ONLY)
    except OSError as error:
        _log.warning("%s can be read by others, and that cannot be changed: %s", path, error)


def make_directory(calls: FileCalls, path: Path, mode: int = 0o777) -> None:
    """Create a directory with its parents, each entry durable.

    Args:
        calls: The seam to the operating system.
        path: The directory; one that exists is left as it is.
        mode: Its permission bits, less the umask; parents that are missing get the usual ones.

    Raises:
        OSError: It could not be done.
    """
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    calls.makedirs(str(path), mode)
    for created in missing:
        sync_directory(calls, str(created.parent))


def replace_file(calls: FileCalls, path: Path, data: bytes, mode: int, *, sync_name: bool = True) -> None:
    """Put ``data`` under a path in an existing directory, replacing what was there; durable when it returns.

    A reader sees the old or the new file, never a mix, also after a crash.

    Args:
        calls: The seam to the operating system.
        path: The file.
        data: Its new bytes.
        mode: Its permission bits, less the umask.
        sync_name: Make sure that the new file is the one that a crash leaves; else it may be the old one.

    Raises:
        OSError: It could not be done; the old file, if any, is intact, or the new one stands whole in its place.
    """
    temporary = _write_temporary(calls, path, data, mode)
    try:
        calls.rename(temporary, str(path))
    except OSError:
        calls.unlink(temporary)
        raise
    if sync_name:
        sync_directory(calls, str(path.parent))


def _write_temporary(calls: FileCalls, path: Path, data: bytes, mode: int) -> str:
    temporary = str(path.with_name(f".{secrets.token_hex(8)}.{path.name[:_NAME_KEPT]}"))
    fd = calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(calls, fd, data)
        calls.sync(fd)
    except OSError:
        calls.unlink(temporary)
        raise
    finally:
        calls.close(fd)
    return temporary


class PosixStore:
    """Implements :class:`gym_ray.storage.store.Store` below one directory.

    Args:
        root: Directory; created when the first value is put there, never by a read.
        calls: The seam to the operating system.
        mode: Permission bits of the files; directories of files for their owner only are that, too.
    """

    def __init__(self, root: Path, *, calls: FileCalls | None = None, mode: int = 0o644) -> None:
        self.root = root
        self._calls = calls or FileCalls()
        self._mode = mode
        self._directory_mode = 0o777 if mode & _OTHERS else OWNER_ONLY_DIRECTORY

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value; see the contract."""
        path = self._path(name)
        try:
            make_directory(self._calls, path.parent, self._directory_mode)
            replace_file(self._calls, path, data, self._mode)
        except OSError as error:
            raise StorageError(f"cannot publish {path}: {error}") from error

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name; see the contract."""
        path = self._path(name)
        try:
            make_directory(self._calls, path.parent, self._directory_mode)
            temporary = _write_temporary(self._calls, path, data, self._mode)
            try:
                self._calls.link(temporary, str(path))
            finally:
                self._calls.unlink(temporary)
            sync_directory(self._calls, str(path.parent))
        except FileExistsError as error:
            raise StorageExistsError(f"{path} exists") from error
        except OSError as error:
            raise StorageError(f"cannot create {path}: {error}") from error

    def list(self, prefix: str = "") -> list[str]:
        """Return published names; see the contract. A directory that does not exist lists nothing.

        Raises:
            StorageError: A directory could not be read.
        """

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise StorageError(f"cannot list {self.root}: {error}") from error

        base = self.root / PurePosixPath(prefix).parent if "/" in prefix else self.root
        names = []
        for folder, folders, files in os.walk(base, onerror=refuse):
            folders[:] = [entry for entry in folders if not entry.startswith(".")]
            for entry in files:
                name = (Path(folder) / entry).relative_to(self.root).as_posix()
                if not entry.startswith(".") and name.startswith(prefix):
                    names.append(name)
        return sorted(names)

    def read(self, name: str) -> bytes:
        """Return a value; see the contract."""
        path = self._path(name)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise StorageMissingError(f"{path} does not exist") from error
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error

    def delete(self, name: str) -> None:
        """Remove a value; see the contract."""
        path = self._path(name)
        try:
            self._calls.unlink(str(path))
            sync_directory(self._calls, str(path.parent))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error

    def sync_dir(self, name: str = "") -> None:
        """Make a directory's entries durable; see the contract."""
        path = self._path(name) if name else self.root
        try:
            sync_directory(self._calls, str(path))
        except OSError as error:
            raise StorageError(f"cannot sync {path}: {error}") from error

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or any(part.startswith(".") for part in parts):
            raise StorageError(f"{name!r} cannot be a name here: relative, no part may begin with a dot")
        return self.root.joinpath(*parts)
