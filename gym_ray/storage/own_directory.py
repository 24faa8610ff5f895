"""A directory below one that everybody may write to, such as ``/tmp``, that is this user's alone.

Its name can be guessed, so somebody else may have been there first: with a directory of their own, or with a link to
one of ours. What is put there would then be read, changed or misplaced by others. Must never use such a directory, nor
follow a link to one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.storage.durable_files import OTHERS, OWNER_ONLY_DIRECTORY

__all__ = ["own_directory"]

_WRITE_BY_OTHERS = 0o022


def own_directory(path: Path) -> Path:
    """Return ``path``, a directory that only this user can enter; it is created where it is missing.

    One of ours that others may read, but never could write to, is closed to them.

    Args:
        path: The directory; the one that holds it exists.

    Raises:
        StorageError: Somebody else's directory, a link or something else is there, or others could write to it.
    """
    try:
        with suppress(FileExistsError):
            path.mkdir(OWNER_ONLY_DIRECTORY)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{path}: {_why_not(path, error)}; {_remedy(path)}") from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise StorageError(f"{path}: belongs to user {found.st_uid}, not to {os.geteuid()}; {_remedy(path)}")
        if found.st_mode & _WRITE_BY_OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise StorageError(f"{path}: others can write to it (mode {mode:04o}); {_remedy(path)}")
        if found.st_mode & OTHERS:
            os.fchmod(descriptor, OWNER_ONLY_DIRECTORY)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: cannot be kept to its owner: {error}; {_remedy(path)}") from error
    finally:
        os.close(descriptor)
    return path


def _why_not(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return "is a link, which somebody may have put there"
    return f"cannot be used as a directory of this user's own: {error}"


def _remedy(path: Path) -> str:
    return f"remove it, or set TMPDIR to another directory than {path.parent} for this process"
