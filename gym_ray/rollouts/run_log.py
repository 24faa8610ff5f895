"""The two outputs of a run, as joiners write them and readers find them again (D37, D46, D52)."""

from __future__ import annotations

import os

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import RolloutIdError, StorageError
from gym_ray.rollouts.record_file import RecordFile
from gym_ray.rollouts.run_paths import OutputFile, OutputMark, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["RunOutputs", "read_record"]


class RunOutputs:
    """Appends records to the outputs of a run that has begun. Close it, or use it as a context manager.

    Args:
        paths: The run's files.
        calls: The seam to the operating system.

    Raises:
        StorageError: An output is missing or cannot be opened.
    """

    def __init__(self, paths: RunPaths, *, calls: FileCalls | None = None) -> None:
        self.paths = paths
        self._files: dict[OutputFile, RecordFile] = {}
        try:
            for file in ("main", "failures"):
                self._files[file] = RecordFile(paths.output_of(file), calls or FileCalls())
        except StorageError:
            self.close()
            raise

    def __enter__(self) -> RunOutputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both outputs; safe to repeat."""
        for file in self._files.values():
            file.close()

    def mark(self) -> OutputMark:
        """Return the sizes of both outputs now: what is appended later lies behind them."""
        return OutputMark(self._files["main"].size(), self._files["failures"].size())

    def append(self, file: OutputFile, line: bytes) -> Written:
        """Append one JSON object, without a line feed; the record is durable when this returns.

        Raises:
            StorageError: The record could not be stored.
            ValueError: ``line`` holds a line feed.
        """
        return Written(file, *self._files[file].append(line))

    def find(self, rollout_id: str, since: OutputMark) -> Written | None:
        """Return where the record of exactly this attempt lies, if an append behind ``since`` stored it.

        A joiner that does not know whether an earlier try got through asks this first, so that no attempt has two
        records.

        Raises:
            StorageError: An output cannot be read or synced.
        """
        for name, file in self._files.items():
            found = file.find(lambda line: _id_of(line) == rollout_id, since.of(name))
            if found is not None:
                return Written(name, *found)
        return None


def read_record(paths: RunPaths, written: Written) -> bytes:
    """Return the bytes of one stored record without its line feed.

    Raises:
        StorageError: The file is gone, or holds no whole record there.
    """
    path = paths.output_of(written.file)
    try:
        with path.open("rb") as file:
            data = os.pread(file.fileno(), written.length, written.offset)
    except OSError as error:
        raise StorageError(f"{path}: a record cannot be read: {error}") from error
    if len(data) != written.length or not data.endswith(b"\n"):
        raise StorageError(f"{path}: no whole record of {written.length} bytes at offset {written.offset}")
    return data[:-1]


def _id_of(line: bytes) -> str | None:
    try:
        return derive_rollout_id(exact_json.loads_object(line))
    except RolloutIdError:
        return None
