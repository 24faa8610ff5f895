"""Changes to a rollout as a whole: marks, snapshots, retirement, removal; each under the rollout's lock and durable.

Safety rests on the order of writes. A mark is written to its own file first and to the lifecycle second; a mark that is
missing in the lifecycle moves the version when it is found. A rollout is retired before its records are removed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gym_ray.errors import CaptureError, RolloutFrozenError, RolloutIdError, RolloutRetiredError
from gym_ray.token_id_capture.one_buffer import in_one_buffer
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot
from gym_ray.token_id_capture.token_files.line_index import IndexCache, LineIndex, ScannedEntries
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_locks import RolloutLocks
from gym_ray.token_id_capture.token_files.rollout_reader import all_problems, opened
from gym_ray.token_id_capture.token_files.rollout_state import (
    ENTRIES_SUFFIX,
    INCOMPLETE_SUFFIX,
    INTENTS_SUFFIX,
    LOCK_SUFFIX,
    STATE_SUFFIX,
    RolloutState,
    check_store_rollout_id,
)

__all__ = ["RolloutLifecycle"]


class RolloutLifecycle:
    """The lifecycle of every rollout of a directory.

    Args:
        folder: The directory.
        locks: Its locks.
        cache: Indices of record files.
    """

    def __init__(self, folder: RolloutFolder, locks: RolloutLocks, cache: IndexCache) -> None:
        self._folder, self._locks, self._cache = folder, locks, cache

    def mark(self, rollout_id: str, mark: CaptureProblem) -> None:
        """Mark a rollout incomplete; the version moves (B65).

        Raises:
            RolloutRetiredError: The rollout is retired.
            CaptureError: The mark is not durable.
        """
        with self._changing(rollout_id, "marked incomplete") as state:
            self._folder.add_mark(rollout_id, mark)
            self._folder.publish(rollout_id, replace(state, incomplete=True, version=state.version + 1))

    def withdraw(self, rollout_id: str, model_call_id: str) -> None:
        """Take a begun call back (W23).

        Raises:
            RolloutRetiredError: The rollout is retired.
            RolloutFrozenError: A snapshot was taken already, and told of the call.
            CaptureError: It could not be done.
        """
        with self._changing(rollout_id, "rid of a withdrawn call") as state:
            if state.frozen:
                raise RolloutFrozenError(f"{rollout_id}: the rollout is frozen; call {model_call_id!r} stays in it")
            self._folder.remove_intent(rollout_id, model_call_id)

    def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Close a rollout for new calls and return what it holds (B67); damage is named, not raised (W39).

        Raises:
            RolloutRetiredError: The rollout is retired.
            CaptureError: A file could not be read or written.
        """
        with self._changing(rollout_id, "frozen") as stored:
            state, found = self._with_marks(rollout_id, stored), ScannedEntries(rollout_id)
            index, size = self._scan(found, prove=not state.frozen)
            if not state.frozen:
                state = replace(state, frozen=True, snapshot_id=uuid.uuid4().hex, version=state.version + 1)
            if state is not stored:
                self._folder.publish(rollout_id, state)
            else:
                self._folder.prove()  # whoever froze it may have ended before that was durable
            problems = all_problems(self._folder, state, found, index, size)
            version = state.version + index.changes(state.indexed_size)
        entries = in_one_buffer(found.entries)
        return TokenCaptureSnapshot(rollout_id, entries, bool(problems), state.snapshot_id, version, problems=problems)

    def drop(self, rollout_id: str, snapshot_id: str, version: int) -> bool:
        """Retire a rollout and remove its records, if nothing changed since the snapshot (B70).

        Raises:
            CaptureError: It could not be done; the records are there, or the rollout is retired.
        """
        if not self._holds_anything(rollout_id, "dropped"):
            return False
        with self._locked(rollout_id, "dropped"):
            stored = self._folder.state(rollout_id)
            if not stored.frozen or stored.snapshot_id != snapshot_id:
                return False
            if stored.retired:
                if stored.version != version:
                    return False
                self._folder.prove()
            else:
                state = self._with_marks(rollout_id, stored)
                if state is not stored:
                    self._folder.publish(rollout_id, state)
                current = state.version + self._index(rollout_id).changes(state.indexed_size)
                if current != version:
                    return False
                retired = replace(state, retired=True, entry_digests={}, indexed_size=0, version=current)
                self._folder.publish(rollout_id, retired)
            self._cache.drop(rollout_id)
            self._folder.remove(rollout_id, ENTRIES_SUFFIX, INTENTS_SUFFIX, INCOMPLETE_SUFFIX)
            return True

    def delete(self, rollout_id: str) -> None:
        """Remove everything of a rollout but its lock; it is new then (B71).

        Raises:
            CaptureError: It could not be done.
        """
        if not self._holds_anything(rollout_id, "deleted"):
            return
        with self._locked(rollout_id, "deleted"):
            self._cache.drop(rollout_id)
            self._folder.remove(rollout_id, ENTRIES_SUFFIX, STATE_SUFFIX, INTENTS_SUFFIX, INCOMPLETE_SUFFIX)

    def sweep_retired(self, older_than_s: float) -> int:
        """Remove what is left of rollouts that were retired longer ago (B72); returns how many.

        Raises:
            CaptureError: It could not be done.
        """
        swept, latest = 0, time.time() - older_than_s
        for path in sorted(self._folder.root.glob(f"*{STATE_SUFFIX}")):
            try:
                rollout_id = check_store_rollout_id(path.name.removesuffix(STATE_SUFFIX))
            except RolloutIdError:
                continue  # not one of ours
            with self._told(rollout_id, "swept"):
                swept += self._is_old(path, latest) and self._sweep(rollout_id, path, latest)
        return swept

    def _is_old(self, path: Path, latest: float) -> bool:
        try:
            return path.stat().st_mtime < latest
        except FileNotFoundError:
            return False

    def _sweep(self, rollout_id: str, path: Path, latest: float) -> bool:
        if not self._folder.state(rollout_id).retired:
            return False
        with self._locked(rollout_id, "swept"):
            if not self._folder.state(rollout_id).retired or not self._is_old(path, latest):
                return False
            leftovers = ENTRIES_SUFFIX, INTENTS_SUFFIX, INCOMPLETE_SUFFIX, STATE_SUFFIX
            # The lock goes last; who waits for it looks at its name again (W36).
            self._folder.remove(rollout_id, *leftovers, LOCK_SUFFIX)
            return True

    @contextmanager
    def _changing(self, rollout_id: str, what: str) -> Iterator[RolloutState]:
        """Hold a live rollout's lock, and give its lifecycle."""
        with self._locked(rollout_id, what):
            state = self._folder.state(rollout_id)
            if state.retired:
                raise RolloutRetiredError(f"{rollout_id}: the rollout is retired")
            yield state

    def _holds_anything(self, rollout_id: str, what: str) -> bool:
        """Whether there is anything to lock a rollout for; a lock makes a file (W36)."""
        with self._told(rollout_id, what):
            return self._folder.holds_anything(rollout_id)

    @contextmanager
    def _locked(self, rollout_id: str, what: str) -> Iterator[None]:
        with self._told(rollout_id, what), self._locks.exclusive(rollout_id):
            yield

    @contextmanager
    def _told(self, rollout_id: str, what: str) -> Iterator[None]:
        """Raise what the system refuses as what could not be done."""
        path = self._folder.root / check_store_rollout_id(rollout_id)
        try:
            yield
        except OSError as error:
            raise CaptureError(f"{path}: the rollout could not be {what}: {error}") from error

    def _with_marks(self, rollout_id: str, state: RolloutState) -> RolloutState:
        """Return a lifecycle that has the marks (W18): a writer may have died between writing the two files."""
        if state.incomplete or not self._folder.is_marked(rollout_id):
            return state
        return replace(state, incomplete=True, version=state.version + 1)

    def _scan(self, found: ScannedEntries, *, prove: bool) -> tuple[LineIndex, int]:
        """Read all records, put their file's end in order, and return their index and the size of the file."""
        calls, index = self._folder.calls, LineIndex()
        with opened(self._folder, found.rollout_id, os.O_RDWR) as fd:
            if fd is None:
                return index, 0
            info = calls.fstat(fd)
            index.device, index.inode = info.st_dev, info.st_ino
            index.scan(calls, fd, info.st_size, found)
            index.mend(calls, fd, self._folder.path(found.rollout_id, ENTRIES_SUFFIX))
            if prove:
                calls.sync_data(fd)
        self._cache.keep(found.rollout_id, index)
        return index, index.end

    def _index(self, rollout_id: str) -> LineIndex:
        """Return the index of a rollout's records, read on from what is known."""
        calls, index = self._folder.calls, self._cache.find(rollout_id) or LineIndex()
        with opened(self._folder, rollout_id) as fd:
            if fd is None:
                return LineIndex()
            info = calls.fstat(fd)
            if not index.fits(calls, fd, info.st_dev, info.st_ino, info.st_size):
                index = LineIndex(info.st_dev, info.st_ino)
            index.scan(calls, fd, info.st_size)
        self._cache.keep(rollout_id, index)
        return index
