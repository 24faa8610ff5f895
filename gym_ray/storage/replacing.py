"""Replaces files by what is written to them piece by piece: readers see the old content or the new, never a part.

For content that is too large to be held; :func:`~gym_ray.storage.durable_files.replace_file` takes bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gym_ray.storage.calls import FileCalls
from gym_ray.storage.durable_files import open_temporary, sync_directory

__all__ = ["replacing"]

_BUFFER_BYTES = 1 << 18
_COPY_BYTES = 1 << 20


@contextmanager
def replacing(calls: FileCalls, paths: Sequence[Path], mode: int = 0o644) -> Iterator[BinaryIO]:
    """Give a file to write to; at the end its content is durable under every path, in their order.

    What is being written stands beside each path under a name of its own, so that two machines do not meet in one.
    Where the block or a write fails, nothing has changed; where a rename fails, each file is wholly old or new.

    Args:
        calls: How the operating system is called.
        paths: The files, at least one, in existing directories.
        mode: Their permission bits, less the umask.

    Raises:
        OSError: It could not be done.
    """
    with ExitStack() as stack:
        temporaries = [_temporary(calls, path, mode, stack) for path in paths]
        (first, descriptor), copies = temporaries[0], temporaries[1:]
        with os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES, closefd=False) as out:
            yield out
            out.flush()
            calls.sync(descriptor)
        for _, copy in copies:
            _copy(calls, first, copy)
        for (temporary, _), path in zip(temporaries, paths, strict=True):
            calls.rename(temporary, str(path))
        for directory in dict.fromkeys(str(path.parent) for path in paths):
            sync_directory(calls, directory)


def _temporary(calls: FileCalls, path: Path, mode: int, stack: ExitStack) -> tuple[str, int]:
    descriptor, temporary = open_temporary(calls, path, mode)
    stack.callback(_removed, temporary)
    stack.callback(calls.close, descriptor)
    return temporary, descriptor


def _removed(temporary: str) -> None:
    with suppress(OSError):  # it took its place; or it stays hidden, and what failed is said already
        Path(temporary).unlink()


def _copy(calls: FileCalls, source: str, target: int) -> None:
    with Path(source).open("rb") as file, os.fdopen(target, "wb", closefd=False) as out:
        while piece := file.read(_COPY_BYTES):
            out.write(piece)
        out.flush()
        calls.sync(target)
