"""A POSIX directory as a store; names that begin with a dot are never listed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gym_ray.errors import StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.durable_files import (
    OTHERS,
    OWNER_ONLY,
    OWNER_ONLY_DIRECTORY,
    TEMPORARY_NAME,
    keep_to_owner,
    make_directory,
    replace_file,
    sync_directory,
    write_all,
    write_temporary,
)
from gym_ray.storage.names import check_range, is_shown, name_parts
from gym_ray.storage.posix_stream import NO_HARD_LINKS, PosixStream, name_file, remove_temporary

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


class PosixStore:
    """Implements :class:`gym_ray.storage.store.SegmentStore` below one directory.

    Args:
        root: Directory; created when the first value is put there, never by a read.
        calls: How the operating system is called.
        mode: Permission bits of the files; directories of files for their owner only are that, too, from the root on.
    """

    def __init__(self, root: Path, *, calls: FileCalls | None = None, mode: int = 0o644) -> None:
        self.root = root
        self._calls = calls or FileCalls()
        self._mode = mode
        self._directory_mode = 0o777 if mode & OTHERS else OWNER_ONLY_DIRECTORY
        self._exclusive: bool | None = None
        self._made: set[Path] = set()

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.root)

    @property
    def exclusive(self) -> bool:
        """Whether the file system has hard links; see the contract."""
        if self._exclusive is None:
            self._exclusive = self._probe()
        return self._exclusive

    def _probe(self) -> bool:
        name = self.root / f"probe-{secrets.token_hex(8)}"
        try:
            self._make_directory(self.root)
            temporary = write_temporary(self._calls, name, b"", self._mode)
            second = f"{temporary}.2"
            try:
                self._calls.link(temporary, second)
                self._calls.unlink(second)
            except OSError as error:
                if error.errno not in NO_HARD_LINKS:
                    raise
                return False
            finally:
                self._calls.unlink(temporary)
        except OSError as error:
            raise StorageError(f"cannot find out whether {self.root} has hard links: {error}") from error
        return True

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value; see the contract."""
        path = self._path(name)
        try:
            self._make_directory(path.parent)
            replace_file(self._calls, path, data, self._mode)
        except OSError as error:
            raise StorageError(f"cannot publish {path}: {error}") from error

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name; see the contract."""
        path = self._path(name)
        try:
            self._make_directory(path.parent)
            temporary = write_temporary(self._calls, path, data, self._mode)
            try:
                name_file(self._calls, temporary, str(path))
            except OSError:
                remove_temporary(self._calls, temporary)
                raise
        except FileExistsError as error:
            raise StorageExistsError(f"{path} exists") from error
        except OSError as error:
            raise StorageError(f"cannot create {path}: {error}") from error

    def stream(self, name: str) -> PosixStream:
        """Begin a value; see the contract."""
        path = self._path(name)
        try:
            self._make_directory(path.parent)
            return PosixStream(path, self._calls, self._mode)
        except OSError as error:
            raise StorageError(f"cannot begin {path}: {error}") from error

    def sweep_temporary(self, older_than_s: float) -> list[str]:
        """Remove what killed writers left half-written, and return its paths, sorted.

        Args:
            older_than_s: Files changed more recently may belong to a writer that lives.

        Raises:
            StorageError: A directory could not be read, or a file not removed.
        """
        before, removed = time.time() - older_than_s, []
        for folder, entry in self._walk(self.root):
            path = os.path.join(folder, entry)  # noqa: PTH118 - millions of names
            if TEMPORARY_NAME.match(entry) and self._is_older(path, before):
                try:
                    self._calls.unlink(path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StorageError(f"cannot remove {path}: {error}") from error
                removed.append(path)
        return sorted(removed)

    def list(self, prefix: str = "") -> list[str]:
        """Return published names; see the contract. A directory that does not exist lists nothing.

        Raises:
            StorageError: A directory could not be read.
        """
        folder = prefix.rpartition("/")[0]
        if folder and not is_shown(folder):  # no name begins so, and it might lead out of the store
            return []
        names = []
        for place, entry in self._walk(self.root / folder):
            name = (Path(place) / entry).relative_to(self.root).as_posix()
            if not entry.startswith(".") and name.startswith(prefix):
                names.append(name)
        return sorted(names)

    def _walk(self, base: Path) -> Iterator[tuple[str, str]]:
        def refuse(error: OSError) -> None:
            if isinstance(error, FileNotFoundError):
                return
            if isinstance(error, NotADirectoryError) and self.root.is_dir():  # nothing is below a value
                return
            raise StorageError(f"cannot list {self.root}: {error}") from error

        for folder, folders, files in os.walk(base, onerror=refuse):
            folders[:] = [entry for entry in folders if not entry.startswith(".")]
            for entry in files:
                yield folder, entry

    def read(self, name: str) -> bytes:
        """Return a value; see the contract."""
        path = self._path(name)
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise StorageMissingError(f"{path} does not exist") from error
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error

    def size(self, name: str) -> int:
        """Return the size of a value in bytes; see the contract."""
        with self._reading(name) as fd:
            return self._calls.fstat(fd).st_size

    def exists(self, name: str) -> bool:
        """Return whether a value has this name; see the contract."""
        path = self._path(name)
        try:
            return stat.S_ISREG(self._calls.stat(str(path)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(f"cannot look for {path}: {error}") from error

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a value; see the contract."""
        check_range(name, start, length)
        with self._reading(name) as fd:
            return self._read_at(fd, start, length)

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Return the end of a value and its size; see the contract."""
        check_range(name, 0, length)
        with self._reading(name) as fd:
            size = self._calls.fstat(fd).st_size
            start = max(0, size - length)
            return self._read_at(fd, start, size - start), size

    def _read_at(self, fd: int, start: int, length: int) -> bytes:
        first = self._calls.pread(fd, length, start)
        if len(first) in (0, length):
            return first
        pieces, got = [first], len(first)
        while got < length and (piece := self._calls.pread(fd, length - got, start + got)):
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        path = self._path(name)
        try:
            fd = self._calls.open(str(path), os.O_RDONLY)
            try:
                if not stat.S_ISREG(self._calls.fstat(fd).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "is no file", str(path))
                yield fd
            finally:
                self._calls.close(fd)
        except (FileNotFoundError, NotADirectoryError) as error:
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

    def _is_older(self, path: str, before: float) -> bool:
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(info.st_mode) and info.st_mtime < before

    def close(self) -> None:
        """Do nothing: nothing is kept open."""

    def _make_directory(self, path: Path) -> None:
        """Create a directory of the store; its entry, and that of each directory between it and the root, is durable.

        One that is there may be another process's that has not come to make it durable, so each is synced once here.
        """
        if path in self._made and path.is_dir():
            return
        inner = path.relative_to(self.root).parts
        for level in range(len(inner) + 1):
            folder = self.root.joinpath(*inner[:level])
            if folder in self._made and folder.is_dir():
                continue
            make_directory(self._calls, folder, self._directory_mode)
            sync_directory(self._calls, str(folder.parent))
            self._made.add(folder)

    def _path(self, name: str) -> Path:
        return self.root.joinpath(*name_parts(name))
