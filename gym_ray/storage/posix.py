"""A POSIX directory as a store: a hidden sibling file, fsync, one atomic link or rename, fsync of the directory.

The obvious ways lose: a plain write exposes half a file, and exclusive open followed by a write lets a reader see an
empty one. Names that begin with a dot are ours while they are being written; they are never listed.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path, PurePosixPath

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.calls import FileCalls

__all__ = ["PosixStore", "make_directory", "sync_directory", "write_all"]


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


def make_directory(calls: FileCalls, path: Path) -> None:
    """Create a directory with its parents, each entry durable.

    Raises:
        OSError: It could not be done.
    """
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    calls.makedirs(str(path))
    for created in missing:
        sync_directory(calls, str(created.parent))


class PosixStore:
    """Implements :class:`gym_ray.storage.store.Store` below one directory.

    Args:
        root: Directory; created when the first value is put there, never by a read.
        calls: The seam to the operating system.
        mode: Permission bits of the files.
    """

    def __init__(self, root: Path, *, calls: FileCalls | None = None, mode: int = 0o644) -> None:
        self.root = root
        self._calls = calls or FileCalls()
        self._mode = mode

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value; see the contract."""
        path = self._path(name)
        try:
            temporary = self._write_temporary(path, data)
            try:
                self._calls.rename(temporary, str(path))
            except OSError:
                self._calls.unlink(temporary)
                raise
            sync_directory(self._calls, str(path.parent))
        except OSError as error:
            raise StorageError(f"cannot publish {path}: {error}") from error

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name; see the contract."""
        path = self._path(name)
        try:
            temporary = self._write_temporary(path, data)
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

    def _write_temporary(self, path: Path, data: bytes) -> str:
        make_directory(self._calls, path.parent)
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(8)}"))
        fd = self._calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        try:
            write_all(self._calls, fd, data)
            self._calls.sync(fd)
        except OSError:
            self._calls.unlink(temporary)
            raise
        finally:
            self._calls.close(fd)
        return temporary
