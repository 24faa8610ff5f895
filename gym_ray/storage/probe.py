"""Finds out, before anything is promised about a directory, whether files in it can be written, synced and locked."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import OWNER_ONLY, OWNER_ONLY_DIRECTORY, make_directory, write_all

__all__ = ["check_directory"]


def check_directory(root: Path, calls: FileCalls) -> None:
    """Create a directory if need be, and write, sync and lock a file in it; nothing of the file is left.

    Raises:
        StorageError: The path is relative, cannot be created or written, or its locks fail or lock nothing.
    """
    if not root.is_absolute():
        raise StorageError(f"{root}: the directory must be an absolute path")
    path = str(root / f".probe-{secrets.token_hex(8)}")
    try:
        make_directory(calls, root, OWNER_ONLY_DIRECTORY)
        fd = calls.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    except OSError as error:
        raise StorageError(f"{root}: the directory cannot be written: {error}") from error
    try:
        _check_file(root, path, fd, calls)
    finally:
        calls.close(fd)
        calls.unlink(path)


def _check_file(root: Path, path: str, fd: int, calls: FileCalls) -> None:
    try:
        write_all(calls, fd, b"{}\n")
        calls.sync_data(fd)
    except OSError as error:
        raise StorageError(f"{root}: the directory cannot be written: {error}") from error
    remedy = "use a file system with advisory locks (on NFS, mount without nolock)"
    try:
        calls.lock_exclusive(fd, wait=False)
        second = calls.open(path, os.O_RDWR)
        try:
            both = calls.lock_exclusive(second, wait=False)
        finally:
            calls.close(second)
    except OSError as error:
        raise StorageError(f"{root}: files cannot be locked here: {error}; {remedy}") from error
    if both:
        raise StorageError(f"{root}: a lock here does not keep a second writer out; {remedy}")
