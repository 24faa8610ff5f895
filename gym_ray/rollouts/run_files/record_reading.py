"""Reads the outputs of a run record by record: in file order, in bounded memory, damage named (D51, D52, D164)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gym_ray import exact_json
from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.run_files.run_log import written_line
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["damaged_line", "iterate_records", "line_number", "lines_between"]

_CHUNK = 1 << 20


def iterate_records(
    paths: RunPaths, files: Sequence[OutputFile] = ("main",), *, validated: bool = False
) -> Iterator[tuple[Written, bytes]]:
    """Yield each record of the outputs with its place, without its line feed; blank lines are skipped.

    What a writer appends while this reads is left out, and so is a torn last line. A file that does not exist has no
    records.

    Args:
        paths: The run's files.
        files: Which outputs, one after the other.
        validated: Parse every line, so that all damage shows here. Without it only the first and the last byte of a
            line are looked at, and a caller that finds a line damaged raises :func:`damaged_line`.

    Raises:
        InputError: A line is damaged; names file and line.
        StorageError: A file cannot be read.
    """
    for file in files:
        path = paths.output_of(file)
        if not path.exists():
            continue
        for offset, line in lines_between(path, 0, path.stat().st_size):
            if not line.strip():
                continue
            whole = line[:1] == b"{" and line.rstrip()[-1:] == b"}"
            if not whole or (validated and exact_json.loads_object(line) is None):
                raise damaged_line(path, offset)
            yield written_line(file, offset, line), line


def lines_between(path: Path, start: int, end: int, *, calls: FileCalls | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes, without the line feed, of the lines of a file that begin at ``start`` and end by ``end``.

    Raises:
        StorageError: The file cannot be read.
    """
    calls, rest, offset = calls or FileCalls(), [], start
    try:
        descriptor = calls.open(str(path), os.O_RDONLY)
        try:
            while start < end and (chunk := calls.pread(descriptor, min(end - start, _CHUNK), start)):
                start += len(chunk)
                first, *others = chunk.split(b"\n")
                rest.append(first)
                for piece in others:
                    line = b"".join(rest)
                    yield offset, line
                    offset += len(line) + 1
                    rest = [piece]
        finally:
            calls.close(descriptor)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: cannot be read: {error}") from error


def line_number(path: Path, offset: int) -> int:
    """Return the number, from 1, of the line that begins at a byte; reads the file up to there.

    Raises:
        OSError: The file cannot be read.
    """
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (chunk := file.read(min(_CHUNK, offset))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


def damaged_line(path: Path, offset: int) -> InputError:
    """Return the error for a damaged line that begins at a byte; the caller raises it."""
    problem = "the line is no JSON object; resume with --salvage to set it aside, or restore the file"
    return InputError(path, line_number(path, offset), "", problem)
