"""Appends of ledger lines in batches: one lock, one write and one sync for each file, many files at the same time.

Under a file's lock everything that other processes wrote is read first, so whether a line is new, a replay or a
conflict is decided against all of it. A line that could not be synced is cut off again before anybody else can look.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gym_ray.errors import CaptureError, RecordConflictError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.line_files import LineFiles, StagedAppend
from gym_ray.storage.posix import sync_directory
from gym_ray.token_id_capture.staging.ledger.cached_file import FileCache
from gym_ray.token_id_capture.staging.ledger.ledger_lines import LedgerLine, commit_line, line_of
from gym_ray.token_id_capture.staging.ledger.retirement import LEDGER_SUFFIX, LedgerRemoval
from gym_ray.token_id_capture.staging.ledger.rollout_rows import Addition, RolloutRows

__all__ = ["LedgerAppends", "PendingLine"]

_log = logging.getLogger(__name__)
_LONG_CONVERSATION: Final = 256
"""Hashing more items than these takes so long that no other rollout should wait for it."""


class PendingLine:
    """One line that waits to be written; a :class:`~gym_ray.storage.group_commit.CommitItem`.

    Args:
        rollout_id: Its rollout, checked.
        what: What it is, for messages; names the call, and the staging key where there is one.
        make_row: Returns its columns; runs on a commit thread, once.
        items: How many items of a conversation that hashes.
        files: Where it goes.

    Attributes:
        file_name: Its file.
        line: What it says, once it is encoded.
        done: Ends when the line is durable or need not be; raises why it is not.
        error: Why it is not.
        twin: An equal line of the same batch, whose outcome it shares.
        is_late: The rollout is retired, so it is dropped (C231).
        takes_long: Whether no other file should wait for it.
    """

    def __init__(
        self, rollout_id: str, what: str, make_row: Callable[[], dict[str, Any]], items: int, files: LedgerAppends
    ) -> None:
        self.rollout_id, self.file_name = rollout_id, rollout_id + LEDGER_SUFFIX
        self.takes_long = items > _LONG_CONVERSATION
        self.line: LedgerLine | None = None
        self.error: Exception | None = None
        self.twin: PendingLine | None = None
        self.is_late = False
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # who stops waiting does not stop the append
        self._what, self._make_row, self._files = what, make_row, files

    def encode(self) -> bytes:
        """Return the line."""
        row = self._make_row()
        data = commit_line(row)
        self.line = line_of(row, self.file_name, data)
        return data

    def wanted(self) -> bool:
        """Return whether the line is new; asked under the file's lock."""
        return self._files.is_to_be_kept(self)

    def committed(self, offset: int, length: int) -> None:
        """Take note that the line is durable; where it stands is no matter here."""

    def failed(self, error: Exception) -> None:
        """Take note of why it may not be durable."""
        self.error = error

    def tell(self) -> None:
        """End :attr:`done`."""
        error = self.error or (self.twin.error if self.twin is not None else None)
        if self.is_late:
            _log.warning("%s: the rollout is retired, so %s is dropped", self.rollout_id, self._what)
        if error is None:
            self.done.set_result(None)
        elif isinstance(error, RecordConflictError):
            self.done.set_exception(RecordConflictError(f"{self.file_name}: {error}"))
        else:
            outcome = CaptureError(f"{self.file_name}: {self._what} could not be kept: {error}")
            outcome.__cause__ = error
            self.done.set_exception(outcome)


@dataclass(slots=True)
class _Batch:
    """What is known of a file while its lock is held for one batch of lines."""

    rows: RolloutRows
    fd: int
    is_retired: bool
    pending: dict[bytes, PendingLine] = field(default_factory=dict)
    rows_of: dict[str, PendingLine] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    is_proved: bool = False


class LedgerAppends(LineFiles):
    """The ledger files of a directory; what :class:`~gym_ray.storage.group_commit.GroupCommit` writes to.

    Args:
        root: Existing directory.
        calls: How the operating system is called.
        removal: Knows which rollouts are retired.
        cache: Knows what was read of them.
    """

    def __init__(self, root: Path, calls: FileCalls, removal: LedgerRemoval, cache: FileCache) -> None:
        super().__init__(root, calls=calls, before_append=self._look)
        self._directory_path, self._file_calls = root, calls
        self._removal, self._cache = removal, cache
        self._batches: dict[str, _Batch] = {}  # a file has one batch at a time

    def is_to_be_kept(self, pending: PendingLine) -> bool:
        """Decide, under the lock, whether a line is to be written; if not, say why in ``pending``."""
        batch, line = self._batches[pending.file_name], pending.line
        assert line is not None
        if batch.is_retired:
            pending.is_late = True
            return False
        pending.twin = batch.pending.get(line.sameness)
        if pending.twin is not None:
            return False
        try:
            if batch.rows.judge(line) is Addition.REPLAY:
                self._prove(batch)
                return False
            _refuse_rival(batch, line)
        except (RecordConflictError, OSError) as error:
            pending.error = error
            return False
        batch.pending[line.sameness] = pending
        if line.lookup is None:
            batch.failed.add(line.model_call_id)
        else:
            batch.rows_of[line.model_call_id] = pending
        return True

    def stage(self, name: str, compose: Callable[[], bytes], *, wait: bool) -> StagedAppend:
        """Do as :meth:`LineFiles.stage`, and keep nothing of an append that failed."""
        try:
            return super().stage(name, compose, wait=wait)
        except BaseException:
            self._batches.pop(name, None)
            raise

    def settle(self, staged: StagedAppend, error: BaseException | None = None) -> None:
        """Cut off what could not be synced, or remove the empty file of a retired rollout; then unlock.

        Raises:
            Exception: As :meth:`LineFiles.settle`.
        """
        batch = self._batches.pop(staged.name)
        if error is not None and staged.end > staged.size:
            self._take_back(staged)
        elif batch.is_retired and staged.size == 0:
            self._remove_empty(staged.name)
        super().settle(staged, error)

    def _look(self, name: str, fd: int, size: int) -> int:
        """Read what is new, cut off the half line of a killed writer, and see whether the rollout is retired."""
        rollout_id = name.removesuffix(LEDGER_SUFFIX)
        with self._cache.held(rollout_id) as cached:
            rows, end = cached.refresh_open(self._file_calls, fd), cached.end
        if end < size:
            self._file_calls.truncate(fd, end)
            _log.warning(
                "%s/%s: the last %d bytes are half a line that nobody was told of, and were cut off",
                self._directory_path,
                name,
                size - end,
            )
        is_retired = end == 0 and self._removal.is_fenced(rollout_id)  # C235
        self._batches[name] = _Batch(rows, fd, is_retired)
        return end

    def _prove(self, batch: _Batch) -> None:
        """Make sure that what is in the file is durable: who wrote it may have been killed before it was."""
        if not batch.is_proved:
            self._file_calls.sync_data(batch.fd)
            sync_directory(self._file_calls, str(self._directory_path))
            batch.is_proved = True

    def _take_back(self, staged: StagedAppend) -> None:
        try:
            self._file_calls.truncate(staged.handle.fd, staged.size)
        except OSError as error:
            _log.error("%s: what could not be synced could not be cut off again: %s", staged.name, error)

    def _remove_empty(self, name: str) -> None:
        try:
            self._file_calls.unlink(os.fspath(self._directory_path / name))
        except OSError as error:
            _log.warning("%s/%s: an empty file could not be removed: %s", self._directory_path, name, error)


def _refuse_rival(batch: _Batch, line: LedgerLine) -> None:
    """Compare a row with lines of its own batch, which are not in the file yet."""
    if line.lookup is None:
        return
    if line.model_call_id in batch.failed:
        raise RecordConflictError(f"call {line.model_call_id!r} failed already, so it gets no row")
    if line.model_call_id in batch.rows_of:
        raise RecordConflictError(f"call {line.model_call_id!r} has another row already")
