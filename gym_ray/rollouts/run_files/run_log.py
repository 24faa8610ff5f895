"""The two outputs of a run, as joiners write them and readers find them again (D37, D46, D52)."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import RolloutIdError, StorageError
from gym_ray.rollouts.row_states.failure_classes import failure_flags
from gym_ray.rollouts.run_files.record_file import RecordFile
from gym_ray.rollouts.run_files.revoked_tries import JoinTry
from gym_ray.rollouts.run_files.run_term import RunTerm
from gym_ray.rollouts.run_paths import OutputFile, OutputMark, RunPaths, Written
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import sync_directory

__all__ = ["RunOutputs", "line_digest", "read_record", "written_line"]


def line_digest(line: bytes) -> bytes:
    """Return the blake2b-128 of a record's line without its line feed."""
    return hashlib.blake2b(line, digest_size=16).digest()


def written_line(file: OutputFile, offset: int, line: bytes, *, flags: int | None = None) -> Written:
    """Return the place of a line that lies at ``offset``, without its line feed in ``line``.

    Args:
        file: The output.
        offset: First byte.
        line: The record.
        flags: Flags of a failure; None to read them from the record.
    """
    if flags is None:
        flags = failure_flags(exact_json.loads_object(line) or {}) if file == "failures" else 0
    return Written(file, offset, len(line) + 1, line_digest(line), flags)


class RunOutputs:
    """Appends records to the outputs of a run that has begun, until another collector takes the run's lock.

    What is appended for a try of a join that was called back is refused, see :meth:`revoke`. Close it, or use it as a
    context manager.

    Args:
        paths: The run's files.
        calls: How the operating system is called.

    Raises:
        StorageError: An output is missing or cannot be opened.
    """

    def __init__(self, paths: RunPaths, *, calls: FileCalls | None = None) -> None:
        self.paths, self._calls = paths, calls or FileCalls()
        self._term = RunTerm(paths, calls=self._calls)
        self._files: dict[OutputFile, RecordFile] = {}
        self._sources: RecordFile | None = None
        self._opening = threading.Lock()
        try:
            for file in ("main", "failures"):
                self._files[file] = RecordFile(paths.output_of(file), self._calls, self._term.check)
        except StorageError:
            self.close()
            raise

    def __enter__(self) -> RunOutputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; safe to repeat."""
        for file in self._files.values():
            file.close()
        if self._sources is not None:
            self._sources.close()

    def mark(self) -> OutputMark:
        """Return the sizes of both outputs now: what is appended later lies behind them."""
        return OutputMark(self._files["main"].size(), self._files["failures"].size())

    def append(
        self, file: OutputFile, line: bytes, *, flags: int | None = None, of_try: JoinTry | None = None
    ) -> Written:
        """Append one JSON object, without a line feed; the record is durable when this returns.

        Args:
            file: Which output.
            line: The record.
            flags: Flags of a failure, see :func:`~gym_ray.rollouts.row_states.failure_classes.failure_flags`;
                None to read them from the record.
            of_try: Whose record it is; None where no other process can have the attempt.

        Raises:
            StorageError: The record could not be stored, or the try was called back.
            ValueError: ``line`` holds a line feed.
        """
        offset, _ = self._files[file].append(line, allowed=self._allowed(of_try))
        return written_line(file, offset, line, flags=flags)

    def append_source(self, line: bytes, *, of_try: JoinTry | None = None) -> None:
        """Append what a reply itself brought as evidence; durable when this returns.

        Append it before the record that was built from it: a source without a record does no harm.

        Raises:
            StorageError: It could not be stored, or the try was called back.
            ValueError: ``line`` holds a line feed.
        """
        with self._opening:
            if self._sources is None:
                self._sources = self._open_sources()
        self._sources.append(line, allowed=self._allowed(of_try))

    def alone(self, of_try: JoinTry | None) -> AbstractContextManager[None]:
        """Keep what is beside the outputs to this process and this try while it is changed.

        Raises:
            StorageError: The output cannot be locked, or the try was called back.
        """
        return self._files["main"].held(allowed=self._allowed(of_try))

    def _allowed(self, of_try: JoinTry | None) -> Callable[[], None]:
        return _anybody if of_try is None else functools.partial(self._term.check_try, of_try)

    def revoke(self, one: JoinTry) -> None:
        """Call a try of a join back: once this returns, neither it nor an earlier one can store anything.

        What it stored before that, :meth:`find` finds in any process. Only the collector that holds the run's lock may.

        Raises:
            StorageError: It could not be made durable; no other joiner may have the attempt then.
        """
        self._term.revoke(one)

    def _open_sources(self) -> RecordFile:
        path = self.paths.sources
        try:
            self._calls.close(self._calls.open(str(path), os.O_RDWR | os.O_CREAT))
            sync_directory(self._calls, str(path.parent))
        except OSError as error:
            raise StorageError(f"{path}: cannot be created: {error}") from error
        return RecordFile(path, self._calls, self._term.check)

    def find(self, rollout_id: str, since: OutputMark) -> Written | None:
        """Return where the record of exactly this attempt lies, if an append behind ``since`` stored it.

        A joiner that does not know whether an earlier try got through asks this first, so that no attempt has two
        records; the earlier try was called back before.

        Raises:
            StorageError: An output cannot be read or synced.
        """
        last = b""

        def wanted(line: bytes) -> bool:
            nonlocal last
            last = line
            return _id_of(line) == rollout_id

        for name, file in self._files.items():
            found = file.find(wanted, since.of(name))
            if found is not None:
                return written_line(name, found[0], last)
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


def _anybody() -> None:
    """Keep nobody out."""


def _id_of(line: bytes) -> str | None:
    try:
        return derive_rollout_id(exact_json.loads_object(line))
    except RolloutIdError:
        return None
