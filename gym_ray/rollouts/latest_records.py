"""Reads the record that counts of each row: the last line of its key wins, older ones stay in the file (D52, D56)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.rollouts.index_coverage import Coverage
from gym_ray.rollouts.record_reading import damaged_line, iterate_records
from gym_ray.rollouts.row_keys import key_of
from gym_ray.rollouts.run_index import FILES, read_index
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["latest_records"]


def latest_records(
    paths: RunPaths, files: Sequence[OutputFile] = ("main",), *, validated: bool = False
) -> Iterator[tuple[Written, bytes]]:
    """Yield of each output the last record of each key, in file order; see :func:`iterate_records`.

    Which lines are older is read from the index where it names every record, at eight bytes a row; else each line is
    parsed, and the keys of an output are held while it is read.

    Args:
        paths: The run's files.
        files: Which outputs, one after the other; a key counts in each on its own.
        validated: Parse every line that is yielded.

    Raises:
        InputError: A line is damaged; names file and line.
        StorageError: A file cannot be read.
    """
    for file in files:
        older = _older_by_index(paths, file)
        if older is None:
            older = _older_by_key(paths, file)
        for written, line in iterate_records(paths, (file,), validated=validated):
            if written.offset not in older:
                yield written, line


def _older_by_index(paths: RunPaths, file: OutputFile) -> set[int] | None:
    """Return the offsets of records that later ones replace; None when the index does not name all records."""
    path, older, coverage = paths.output_of(file), set[int](), Coverage()
    behind_last = array("Q")  # by row: one more than the offset of its last record, 0 for none
    if not paths.index.exists() or not path.exists():
        return None
    try:
        for frame in read_index(paths.index):
            if FILES[frame.file] != file:
                continue
            coverage.add(frame)
            if frame.ordinal >= len(behind_last):
                behind_last.extend(bytes(1024 + frame.ordinal - len(behind_last)))
            before = behind_last[frame.ordinal]
            behind_last[frame.ordinal] = max(before, frame.offset + 1)
            if before:
                older.add(min(before - 1, frame.offset))
        whole = coverage.holes(path.stat().st_size) == [] and coverage.last_is_there(path, FileCalls())
    except StorageError:
        return None  # a reader can do without the index; the next resume says what is wrong with it
    return older if whole else None


def _older_by_key(paths: RunPaths, file: OutputFile) -> set[int]:
    last: dict[str, int] = {}
    older: set[int] = set()
    for written, line in iterate_records(paths, (file,)):
        record = exact_json.loads_object(line)
        if record is None:
            raise damaged_line(paths.output_of(file), written.offset)
        key = key_of(record)
        if key is not None:
            if key in last:
                older.add(last[key])
            last[key] = written.offset
    return older
