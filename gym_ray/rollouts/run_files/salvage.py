"""Takes lines out of an output that are no records, and keeps them aside; the file is replaced whole or not at all.

The order: the lines are kept, durably; the new file is written beside the old one; the index goes; the new file takes
the name. Whatever moment a crash chooses, there is one output, and an index only if it is the output's own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import whole_in
from gym_ray.rollouts.run_files.record_reading import lines_between
from gym_ray.rollouts.run_files.recovery import DamagedLine, drop_index
from gym_ray.rollouts.run_files.run_log import line_digest
from gym_ray.rollouts.run_paths import OutputFile, RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import replace_file, sync_directory, write_all

__all__ = ["damaged_frames", "replace_lines", "set_damaged_lines_aside", "take_damaged_frames_out"]

_log = logging.getLogger(__name__)
_BATCH_BYTES = 1 << 20
_MODE = 0o644


def replace_lines(paths: RunPaths, file: OutputFile, lines: Iterable[bytes], *, calls: FileCalls | None = None) -> None:
    """Write an output anew and drop the index; a crash leaves the old output or the new one. The run's lock is held.

    A joiner that still has the old file open can store nothing more: it finds that its file was replaced.

    Args:
        paths: The run's files.
        file: Which output.
        lines: All its lines without line feeds; read to the end before anything changes.
        calls: How the operating system is called.

    Raises:
        StorageError: It cannot be written; the old output is as it was.
    """
    calls, path = calls or FileCalls(), paths.output_of(file).resolve()  # a link still leads there afterwards
    temporary = path.with_name(f".{path.name}.anew.tmp")
    try:
        descriptor = calls.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            calls.change_mode(descriptor, calls.stat(str(path)).st_mode & 0o777)
            for batch in _batches(lines):
                write_all(calls, descriptor, batch)
            calls.sync(descriptor)
        finally:
            calls.close(descriptor)
        drop_index(paths, calls)
        calls.rename(str(temporary), str(path))
        for directory in (paths.directory, path.parent):
            sync_directory(calls, str(directory))
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written anew: {error}") from error


def _batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held += (line, b"\n")
        size += len(line)
        if size >= _BATCH_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def set_damaged_lines_aside(
    paths: RunPaths, damaged: Sequence[DamagedLine], *, calls: FileCalls | None = None
) -> list[str]:
    """Move lines from the outputs to the run's ``damaged`` directory and return one sentence about each.

    Raises:
        StorageError: A file cannot be read or written; no line is lost.
    """
    calls, told = calls or FileCalls(), list[str]()
    for file in dict.fromkeys(line.file for line in damaged):
        path = paths.output_of(file)
        gone = {line.offset: line for line in damaged if line.file == file}
        for line in gone.values():
            kept = _keep(paths, path, line, calls)
            told.append(f"{path}: the line at byte {line.offset} {line.problem}; it was moved to {kept}")
        size = calls.stat(str(path)).st_size
        kept_lines = (data for offset, data in lines_between(path, 0, size, calls=calls) if offset not in gone)
        replace_lines(paths, file, kept_lines, calls=calls)
    for sentence in told:
        _log.warning("%s", sentence)
    return told


def _keep(paths: RunPaths, path: Path, line: DamagedLine, calls: FileCalls) -> Path:
    (data,) = (data for _, data in lines_between(path, line.offset, line.offset + line.length, calls=calls))
    return _put_aside(paths, f"{line.file}-{line.offset}-{line_digest(data).hex()[:12]}.line", data, calls)


def _put_aside(paths: RunPaths, name: str, data: bytes, calls: FileCalls) -> Path:
    kept = paths.damaged / name
    try:
        calls.makedirs(str(paths.damaged))
        sync_directory(calls, str(paths.directory))
        replace_file(calls, kept, data, _MODE)
    except OSError as error:
        raise StorageError(f"{kept}: a damaged line cannot be kept: {error}") from error
    return kept


def take_damaged_frames_out(path: Path, paths: RunPaths, *, calls: FileCalls | None = None) -> None:
    """Replace a log by its whole frames; what it was is kept in the run's ``damaged`` directory.

    Raises:
        StorageError: A file cannot be read or written.
    """
    calls = calls or FileCalls()
    try:
        data = path.read_bytes()
        _put_aside(paths, f"{path.name}-{line_digest(data).hex()[:12]}", data, calls)
        frames, whole = whole_in(data)
        replace_file(calls, path, frames[whole].tobytes(), _MODE)
    except OSError as error:
        raise StorageError(f"{path}: damaged frames cannot be taken out: {error}") from error


def damaged_frames(path: Path) -> int:
    """Return how many frames of a log are damaged and lie before a whole one.

    Raises:
        StorageError: The log cannot be read.
    """
    try:
        _, whole = whole_in(path.read_bytes())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error
    behind_last = int(whole.nonzero()[0].max(initial=-1)) + 1
    return behind_last - int(whole.sum())
