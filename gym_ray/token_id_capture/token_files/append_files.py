"""Appends to the record and intent files of rollouts, in batches: one lock, one write and one sync for each file.

Under the lock it is decided whether the rollout still takes calls, and whether a record is new, a repetition of a
stored one or a conflict with it. One more record costs the same however long the rollout is: nothing that grows with
it is read or written again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gym_ray.errors import RecordConflictError, RolloutFrozenError, RolloutRetiredError
from gym_ray.storage.line_files import LineFiles, StagedAppend
from gym_ray.storage.posix import sync_directory
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import INDEXED_RECORD_MISSING
from gym_ray.token_id_capture.token_files.entry_lines import is_same_record
from gym_ray.token_id_capture.token_files.line_index import IndexCache, LineIndex, line_at
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_locks import RolloutLocks
from gym_ray.token_id_capture.token_files.rollout_state import ENTRIES_SUFFIX, INTENTS_SUFFIX, RolloutState

__all__ = ["AppendFiles", "PendingPut", "lost_records"]

_TAIL_BYTES: Final = 4096
_log = logging.getLogger(__name__)


class PendingPut(Protocol):
    """A record that waits to be written.

    Attributes:
        rollout_id: Its rollout.
        model_call_id: Its call.
        line: The record as a line.
        error: Why it was refused.
        twin: An equal record of the same batch, whose outcome it shares.
    """

    rollout_id: str
    model_call_id: str
    line: bytes
    error: Exception | None
    twin: PendingPut | None


@dataclass(slots=True)
class _Batch:
    """What is known of a rollout while its lock is held for one batch of one file."""

    rollout_id: str
    lock: int
    state: RolloutState
    is_stored: bool
    fd: int = -1
    index: LineIndex = field(default_factory=LineIndex)
    pending: dict[str, PendingPut] = field(default_factory=dict)


def lost_records(state: RolloutState, index: LineIndex, size: int) -> list[CaptureProblem]:
    """Return what another writer's index has and the file has not; ``index`` covers the file of ``size`` bytes."""
    lost = [
        CaptureProblem(INDEXED_RECORD_MISSING, call_id, "the index of the records has it, their file has not")
        for call_id in state.entry_digests
        if call_id not in index.offsets
    ]
    if not lost and not 0 <= state.indexed_size <= size:
        detail = f"the index covers {state.indexed_size} bytes of records, their file has {size}"
        lost.append(CaptureProblem(INDEXED_RECORD_MISSING, "", detail))
    return lost


class AppendFiles(LineFiles):
    """The record and intent files of a directory; what :class:`~gym_ray.storage.group_commit.GroupCommit` writes to.

    Args:
        folder: The directory's other files.
        locks: The rollouts' locks.
        cache: Indices of record files.
        max_handles: Open files kept for the next append.
    """

    def __init__(self, folder: RolloutFolder, locks: RolloutLocks, cache: IndexCache, max_handles: int = 128) -> None:
        super().__init__(folder.root, calls=folder.calls, max_handles=max_handles, before_append=self._put_end_in_order)
        self._folder, self._locks, self._cache = folder, locks, cache
        self._file_calls = folder.calls
        self._batches: dict[str, _Batch] = {}  # a file has one batch at a time
        self._unsynced: dict[str, StagedAppend] = {}

    def stage(self, name: str, compose: Callable[[], bytes], *, wait: bool) -> StagedAppend:
        """Lock the rollout and write; see :meth:`LineFiles.stage`.

        Raises:
            RolloutRetiredError: The rollout takes nothing any more.
            RolloutFrozenError: It takes no new calls; whether a record is new is decided one by one.
        """
        rollout_id = _rollout_of(name)
        lock = self._locks.take(rollout_id, wait=wait)
        try:
            stored = self._folder.stored_state(rollout_id)
            batch = _Batch(rollout_id, lock, stored or RolloutState(), stored is not None)
            self._refuse_early(name, batch)
            self._batches[name] = batch
            return super().stage(name, lambda: self._compose(name, compose), wait=wait)
        except BaseException:
            self._batches.pop(name, None)
            self._cache.drop(rollout_id)
            self._locks.release(lock)
            raise

    def settle(self, staged: StagedAppend, error: BaseException | None = None) -> None:
        """Index what was written, or cut it off again, and unlock the rollout; see :meth:`LineFiles.settle`."""
        batch = self._batches.pop(staged.name)
        try:
            super().settle(staged, error)
            self._learn(batch, staged)
        except BaseException:
            self._cache.drop(batch.rollout_id)
            self._take_back(staged)
            raise
        finally:
            self._locks.release(batch.lock)

    def takes_long(self, rollout_id: str) -> bool:
        """Whether an append must first read or create a rollout's files; other rollouts should not wait for that."""
        return rollout_id not in self._cache

    def is_to_be_put(self, name: str, put: PendingPut) -> bool:
        """Decide, under the lock, whether a record is to be written; if not, set ``put.error`` or ``put.twin``.

        A record that is stored already is not written again, whether or not the rollout is frozen (W25).
        """
        batch = self._batches[name]
        twin = batch.pending.get(put.model_call_id)
        if twin is not None:
            put.twin = twin
            if not is_same_record(twin.line, put.line):
                put.error = _conflict(put)
            return False
        offset = batch.index.offsets.get(put.model_call_id)
        if offset is not None and is_same_record(line_at(self._file_calls, batch.fd, offset), put.line):
            self._prove(batch)
            return False
        if batch.state.frozen:
            put.error = _frozen(batch)
            return False
        if offset is not None:
            put.error = _conflict(put)
            return False
        batch.pending[put.model_call_id] = put
        return True

    def _refuse_early(self, name: str, batch: _Batch) -> None:
        """Refuse the batch where that does not depend on its records, before a file is created for it."""
        if batch.state.retired:
            raise RolloutRetiredError(f"{batch.rollout_id}: the rollout is retired")
        holds_records = name.endswith(ENTRIES_SUFFIX) and self._folder.size(batch.rollout_id, ENTRIES_SUFFIX)
        if batch.state.frozen and not holds_records:
            raise _frozen(batch)

    def _put_end_in_order(self, name: str, fd: int, size: int) -> int:
        batch = self._batches[name]
        batch.fd = fd
        unsynced = self._unsynced.get(name)
        if unsynced is not None:
            if (unsynced.end, unsynced.handle.inode) == (size, self._file_calls.fstat(fd).st_ino):
                self._cut(name, fd, unsynced.size, "was written, but could not be synced")
                size = unsynced.size
            del self._unsynced[name]
        if name.endswith(INTENTS_SUFFIX):
            return self._without_torn_intent(name, fd, size)
        return self._with_index(batch, name, size)

    def _without_torn_intent(self, name: str, fd: int, size: int) -> int:
        end, look = size, 1
        while end and (tail := self._file_calls.pread(fd, min(look, end), max(0, end - look))):
            feed = tail.rfind(b"\n")
            end = end - len(tail) + feed + 1
            if feed >= 0:
                break
            look = _TAIL_BYTES
        if end < size:
            self._cut(name, fd, end, "was cut short")
        return end

    def _with_index(self, batch: _Batch, name: str, size: int) -> int:
        info = self._file_calls.fstat(batch.fd)
        index = self._cache.find(batch.rollout_id)
        if index is None or not index.fits(self._file_calls, batch.fd, info.st_dev, info.st_ino, size):
            index = LineIndex(info.st_dev, info.st_ino)
        index.scan(self._file_calls, batch.fd, size)
        index.mend(self._file_calls, batch.fd, f"{self._folder.root}/{name}")
        batch.index = index
        return index.end

    def _compose(self, name: str, compose: Callable[[], bytes]) -> bytes:
        batch = self._batches[name]
        is_to_be_stored = not batch.is_stored or (batch.state.has_index and not batch.state.frozen)
        if name.endswith(ENTRIES_SUFFIX) and is_to_be_stored:
            self._store_without_index(batch)
        return compose()

    def _store_without_index(self, batch: _Batch) -> None:
        """Store the first state of a rollout, or another writer's without its index, which grows with the rollout."""
        state, index = batch.state, batch.index
        lost = lost_records(state, index, index.end) if state.has_index else []
        for problem in lost:
            self._folder.add_mark(batch.rollout_id, problem)
        is_marked = bool(lost) or self._folder.is_marked(batch.rollout_id)
        version = state.version + index.changes(state.indexed_size) + (is_marked and not state.incomplete)
        batch.state = replace(
            state,
            entry_digests={},
            indexed_size=0,
            incomplete=state.incomplete or is_marked,
            version=max(0, version - index.changes()),
        )
        self._folder.publish(batch.rollout_id, batch.state, is_news=False)

    def _prove(self, batch: _Batch) -> None:
        """Sync records that another writer appended, before one of them is acknowledged here."""
        if batch.index.unproven:
            self._file_calls.sync_data(batch.fd)
            sync_directory(self._file_calls, str(self._folder.root))
            batch.index.unproven = False

    def _learn(self, batch: _Batch, staged: StagedAppend) -> None:
        if not staged.name.endswith(ENTRIES_SUFFIX):
            return
        index, offset = batch.index, staged.offset
        for call_id, put in batch.pending.items():
            index.add(call_id, put.line, offset)
            offset += len(put.line)
        if batch.pending:
            index.unproven = False
        self._cache.keep(batch.rollout_id, index)

    def _take_back(self, staged: StagedAppend) -> None:
        """Cut off lines that may not be durable; if that fails, the next append does it before it writes."""
        if staged.end == staged.size:
            return
        path = f"{self._folder.root}/{staged.name}"
        try:
            fd = self._file_calls.open(path, os.O_RDWR)
            try:
                if self._file_calls.fstat(fd).st_size == staged.end:
                    self._cut(staged.name, fd, staged.size, "could not be synced")
            finally:
                self._file_calls.close(fd)
        except OSError as error:
            _log.error("%s: an append that may not be durable cannot be cut off: %s", path, error)
            self._unsynced[staged.name] = staged

    def _cut(self, name: str, fd: int, size: int, why: str) -> None:
        _log.warning("%s/%s: what follows byte %d %s; it is cut off", self._folder.root, name, size, why)
        self._file_calls.truncate(fd, size)


def _rollout_of(name: str) -> str:
    suffix = ENTRIES_SUFFIX if name.endswith(ENTRIES_SUFFIX) else INTENTS_SUFFIX
    return name.removesuffix(suffix)  # one only: a rollout's own id may end like a file's name


def _frozen(batch: _Batch) -> RolloutFrozenError:
    return RolloutFrozenError(f"{batch.rollout_id}: the rollout is frozen")


def _conflict(put: PendingPut) -> RecordConflictError:
    return RecordConflictError(f"{put.rollout_id}: call {put.model_call_id!r} already has another record")
