"""Files that are whole and durable, or not there at all.

A hidden sibling is written and synced, takes its name by one atomic link or rename, and the directory is synced. The
obvious ways lose: a plain write exposes half a file, and exclusive open followed by a write lets a reader see an empty
one. Names that begin with a dot are ours while they are being written.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from pathlib import Path

from gym_ray.storage.calls import FileCalls

__all__ = [
    "OTHERS",
    "OWNER_ONLY",
    "OWNER_ONLY_DIRECTORY",
    "TEMPORARY_NAME",
    "is_same_file",
    "keep_to_owner",
    "make_directory",
    "open_temporary",
    "replace_file",
    "sync_directory",
    "write_all",
    "write_temporary",
]

OWNER_ONLY, OWNER_ONLY_DIRECTORY = 0o600, 0o700
"""Permission bits of what nobody else may read."""

OTHERS = 0o077
TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\..", re.DOTALL)
"""What the name of a file that is being written begins with."""
_NAME_KEPT = 60
"""Characters of a name that its temporary sibling shows: with more, the longest names would have none that fits."""
_log = logging.getLogger(__name__)


def write_all(calls: FileCalls, fd: int, data: bytes | memoryview) -> None:
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
        calls: How the operating system is called.
        fd: The open file.
        info: What ``fstat`` says of it.
        path: Its path, for the log.
    """
    if not info.st_mode & OTHERS or info.st_uid != os.geteuid():
        return
    try:
        calls.change_mode(fd, OWNER_ONLY)
    except OSError as error:
        _log.warning("%s can be read by others, and that cannot be changed: %s", path, error)


def make_directory(calls: FileCalls, path: Path, mode: int = 0o777) -> None:
    """Create a directory with its parents, each entry durable.

    Args:
        calls: How the operating system is called.
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
        calls: How the operating system is called.
        path: The file.
        data: Its new bytes.
        mode: Its permission bits, less the umask.
        sync_name: Make sure that the new file is the one that a crash leaves; else it may be the old one.

    Raises:
        OSError: It could not be done; the old file, if any, is intact, or the new one stands whole in its place.
    """
    temporary = write_temporary(calls, path, data, mode)
    try:
        calls.rename(temporary, str(path))
    except OSError:
        calls.unlink(temporary)
        raise
    if sync_name:
        sync_directory(calls, str(path.parent))


def open_temporary(calls: FileCalls, path: Path, mode: int) -> tuple[int, str]:
    """Create the hidden sibling that a file is written to; return its descriptor and path.

    Raises:
        OSError: It could not be created.
    """
    temporary = str(path.with_name(f".{secrets.token_hex(8)}.{path.name[:_NAME_KEPT]}"))
    return calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), temporary


def write_temporary(calls: FileCalls, path: Path, data: bytes, mode: int) -> str:
    """Write ``data``, durably, to a hidden sibling of a path, and return where.

    Raises:
        OSError: It could not be done; nothing is left.
    """
    fd, temporary = open_temporary(calls, path, mode)
    try:
        write_all(calls, fd, data)
        calls.sync(fd)
    except OSError:
        calls.unlink(temporary)
        raise
    finally:
        calls.close(fd)
    return temporary


def is_same_file(calls: FileCalls, one: str, other: str) -> bool:
    """Return whether two paths lead to one file.

    Raises:
        OSError: One of them could not be looked at.
    """
    first, second = calls.stat(one), calls.stat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
