"""Appends to the record and intent files of rollouts: decided and written under the rollout's lock, synced in groups.

One batch of a file is one lock, one write and one sync. What is decided here holds until the lock is given up: whether
the rollout still takes calls, and whether a record is new, a repetition or a contradiction. Nothing that grows with
the rollout is read or written again for one more record.
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
from gym_ray.token_id_capture.token_files.entry_lines import is_same_record
from gym_ray.token_id_capture.token_files.line_index import IndexCache, LineIndex, line_at
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_locks import RolloutLocks
from gym_ray.token_id_capture.token_files.rollout_state import ENTRIES_SUFFIX, INTENTS_SUFFIX, RolloutState

__all__ = ["LOST_REASON", "AppendFiles", "PendingPut", "lost_records"]

LOST_REASON: Final = "indexed_record_missing"
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
class _Session:
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
        CaptureProblem(LOST_REASON, call_id, "the index of the records has it, their file has not")
        for call_id in state.entry_digests
        if call_id not in index.offsets
    ]
    if not lost and not 0 <= state.indexed_size <= size:
        detail = f"the index covers {state.indexed_size} bytes of records, their file has {size}"
        lost.append(CaptureProblem(LOST_REASON, "", detail))
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
        self._sessions: dict[str, _Session] = {}  # a file has one batch at a time
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
            session = _Session(rollout_id, lock, stored or RolloutState(), stored is not None)
            self._refuse_early(name, session)
            self._sessions[name] = session
            return super().stage(name, lambda: self._compose(name, compose), wait=wait)
        except BaseException:
            self._sessions.pop(name, None)
            self._cache.drop(rollout_id)
            self._locks.release(lock)
            raise

    def settle(self, staged: StagedAppend, error: BaseException | None = None) -> None:
        """Learn what was written, or take it back, and unlock the rollout; see :meth:`LineFiles.settle`."""
        session = self._sessions.pop(staged.name)
        try:
            super().settle(staged, error)
            self._learn(session, staged)
        except BaseException:
            self._cache.drop(session.rollout_id)
            self._take_back(staged)
            raise
        finally:
            self._locks.release(session.lock)

    def takes_long(self, rollout_id: str) -> bool:
        """Whether an append has to read, or to begin, a rollout's files first, which no other should wait for."""
        return rollout_id not in self._cache

    def is_to_be_put(self, name: str, put: PendingPut) -> bool:
        """Decide on a record, under the lock: whether it is written, or else what ``put.error`` or ``put.twin`` says.

        A record that is there already needs no writing, frozen or not (W25).
        """
        session = self._sessions[name]
        twin = session.pending.get(put.model_call_id)
        if twin is not None:
            put.twin = twin
            if not is_same_record(twin.line, put.line):
                put.error = _conflict(put)
            return False
        offset = session.index.offsets.get(put.model_call_id)
        if offset is not None and is_same_record(line_at(self._file_calls, session.fd, offset), put.line):
            self._prove(session)
            return False
        if session.state.frozen:
            put.error = _frozen(session)
            return False
        if offset is not None:
            put.error = _conflict(put)
            return False
        session.pending[put.model_call_id] = put
        return True

    def _refuse_early(self, name: str, session: _Session) -> None:
        """Refuse what no record could change, before a file is made for it."""
        if session.state.retired:
            raise RolloutRetiredError(f"{session.rollout_id}: the rollout is retired")
        holds_records = name.endswith(ENTRIES_SUFFIX) and self._folder.size(session.rollout_id, ENTRIES_SUFFIX)
        if session.state.frozen and not holds_records:
            raise _frozen(session)

    def _put_end_in_order(self, name: str, fd: int, size: int) -> int:
        session = self._sessions[name]
        session.fd = fd
        unsynced = self._unsynced.get(name)
        if unsynced is not None:
            if (unsynced.end, unsynced.handle.inode) == (size, self._file_calls.fstat(fd).st_ino):
                self._cut(name, fd, unsynced.size, "was written, but could not be synced")
                size = unsynced.size
            del self._unsynced[name]
        if name.endswith(INTENTS_SUFFIX):
            return self._without_torn_intent(name, fd, size)
        return self._with_index(session, name, size)

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

    def _with_index(self, session: _Session, name: str, size: int) -> int:
        info = self._file_calls.fstat(session.fd)
        index = self._cache.find(session.rollout_id)
        if index is None or not index.fits(self._file_calls, session.fd, info.st_dev, info.st_ino, size):
            index = LineIndex(info.st_dev, info.st_ino)
        index.scan(self._file_calls, session.fd, size)
        index.mend(self._file_calls, session.fd, f"{self._folder.root}/{name}")
        session.index = index
        return index.end

    def _compose(self, name: str, compose: Callable[[], bytes]) -> bytes:
        session = self._sessions[name]
        is_to_be_stored = not session.is_stored or (session.state.has_index and not session.state.frozen)
        if name.endswith(ENTRIES_SUFFIX) and is_to_be_stored:
            self._store_without_index(session)
        return compose()

    def _store_without_index(self, session: _Session) -> None:
        """Store the first state of a rollout, or another writer's without its index, which grows with the rollout."""
        state, index = session.state, session.index
        lost = lost_records(state, index, index.end) if state.has_index else []
        for problem in lost:
            self._folder.add_mark(session.rollout_id, problem)
        is_marked = bool(lost) or self._folder.is_marked(session.rollout_id)
        version = state.version + index.changes(state.indexed_size) + (is_marked and not state.incomplete)
        session.state = replace(
            state,
            entry_digests={},
            indexed_size=0,
            incomplete=state.incomplete or is_marked,
            version=max(0, version - index.changes()),
        )
        self._folder.publish(session.rollout_id, session.state, is_news=False)

    def _prove(self, session: _Session) -> None:
        """Make sure that records which others wrote are durable before one of them is acknowledged."""
        if session.index.unproven:
            self._file_calls.sync_data(session.fd)
            sync_directory(self._file_calls, str(self._folder.root))
            session.index.unproven = False

    def _learn(self, session: _Session, staged: StagedAppend) -> None:
        if not staged.name.endswith(ENTRIES_SUFFIX):
            return
        index, offset = session.index, staged.offset
        for call_id, put in session.pending.items():
            index.add(call_id, put.line, offset)
            offset += len(put.line)
        if session.pending:
            index.unproven = False
        self._cache.keep(session.rollout_id, index)

    def _take_back(self, staged: StagedAppend) -> None:
        """Cut off lines that nobody may believe; where even that fails, the next append does it first."""
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


def _frozen(session: _Session) -> RolloutFrozenError:
    return RolloutFrozenError(f"{session.rollout_id}: the rollout is frozen")


def _conflict(put: PendingPut) -> RecordConflictError:
    return RecordConflictError(f"{put.rollout_id}: call {put.model_call_id!r} already has another record")
