"""``TokenCaptureStore``: the token records of a directory, one JSON line a call, as sink and as source (B60-B73).

A record that was acknowledged survives the end of every process and a power cut; what was lost, or may have been, is
named in the snapshot. Any number of threads and processes can write and read the files at once, and each continues what
another one wrote.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from gym_ray.errors import CaptureError, DamagedRecordError, RecordConflictError, StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.group_commit import GroupCommit
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.storage.posix import OWNER_ONLY_DIRECTORY, make_directory
from gym_ray.storage.probe import check_directory
from gym_ray.token_id_capture.one_buffer import in_one_buffer
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CallOutcome, CaptureProblem, TokenCaptureSnapshot
from gym_ray.token_id_capture.reasons import CONFLICTING_RECORD, MARKED_INCOMPLETE, UNTRAINABLE
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.token_files.append_files import AppendFiles
from gym_ray.token_id_capture.token_files.line_index import IndexCache
from gym_ray.token_id_capture.token_files.pending_appends import (
    PendingAppend,
    PendingIntent,
    PendingRecord,
    tell_outcomes,
)
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_lifecycle import RolloutLifecycle
from gym_ray.token_id_capture.token_files.rollout_locks import RolloutLocks
from gym_ray.token_id_capture.token_files.rollout_reader import (
    Cursor,
    EntriesSince,
    has_evidence,
    read_rollout,
    read_since,
)
from gym_ray.token_id_capture.token_files.rollout_state import check_store_rollout_id

__all__ = [
    "Cursor",
    "EntriesSince",
    "RolloutStage",
    "TokenCaptureStore",
]

RolloutStage = Literal["unknown", "open", "frozen", "retired"]
"""How far a rollout has come: it has no files, takes calls, takes no new calls, or was handed over and removed."""

ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 30.0
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class _Appender:
    """Threads and open files of a store that has written something."""

    files: AppendFiles
    commits: GroupCommit[PendingAppend]

    def close(self) -> None:
        if self.commits.close(_CLOSE_TIMEOUT_S):
            self.files.close()


class TokenCaptureStore:
    """The token records of one directory; a TokenSink with its extensions, and a TokenSource.

    Threads and files are opened when they are first needed, and closed by :meth:`close`; a closed store opens them
    again when it is used.

    Args:
        root: The directory; created with its parents.
        calls: How the operating system is called.
        timeout_s: How long to wait for the disk, or for another who holds a rollout's lock, before it counts as a
            failure.

    Raises:
        CaptureError: The directory cannot be created.
    """

    def __init__(self, root: Path | str, *, calls: FileCalls | None = None, timeout_s: float = 30.0) -> None:
        self.root = Path(root)
        calls = calls or file_calls_for(self.root)
        try:
            make_directory(calls, self.root, OWNER_ONLY_DIRECTORY)
        except OSError as error:
            raise CaptureError(f"{self.root}: the token directory cannot be created: {error}") from error
        self._timeout_s = timeout_s
        self._folder = RolloutFolder(self.root, calls)
        self._locks = RolloutLocks(str(self.root), calls, timeout_s)
        self._cache = IndexCache()
        self._lifecycle = RolloutLifecycle(self._folder, self._locks, self._cache)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._appender: _Appender | None = None
        self._finalizer: weakref.finalize[[], TokenCaptureStore] | None = None

    def check(self) -> None:
        """Make sure, before calls are captured, that files in the directory can be written, synced and locked. Blocks.

        Raises:
            CaptureError: They cannot; names the directory and what would help.
        """
        try:
            check_directory(self.root, self._folder.calls)
        except StorageError as error:
            raise CaptureError(str(error)) from error

    def append(self, entry: TokenEntry) -> None:
        """Keep a record; durable, and visible to every reader, when this returns (B64). Blocks.

        The same record again changes nothing, whenever it was made (W24) and even if the rollout is frozen (W25).

        Raises:
            RolloutIdError: No file can be named after the rollout.
            RefusedRecordError: No reader could take the record back; nothing was written.
            RecordConflictError: The call has another record; the rollout is marked.
            RolloutFrozenError: The rollout takes no new calls.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: The record is not durable; it may be later.
        """
        try:
            self._wait(self._submit_record(entry))
        except RecordConflictError as conflict:
            self._mark_conflict(entry, conflict)
            raise

    async def put(self, entry: TokenEntry) -> None:
        """Keep a record, as :meth:`append`; must not be changed meanwhile (B53).

        Raises:
            CaptureError: As :meth:`append`.
        """
        try:
            await self._wait_async(self._submit_record(entry))
        except RecordConflictError as conflict:
            await self._run(self._mark_conflict, entry, conflict)
            raise

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Note that a call is about to be dispatched; durable when this returns (B55, B66).

        Raises:
            RolloutIdError: No file can be named after the rollout.
            ValueError: The call's id is empty or not printable.
            RolloutFrozenError: The rollout takes no new calls.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: It is not durable.
        """
        await self._wait_async(self._submit_intent(rollout_id, model_call_id))

    async def end_call(self, rollout_id: str, model_call_id: str, outcome: CallOutcome, reason: str = "") -> None:
        """Say how a begun call ended that has no record; durable when this returns (W23).

        Args:
            rollout_id: The rollout.
            model_call_id: The call.
            outcome: ``withdrawn`` takes the call back, ``untrainable`` marks the rollout.
            reason: A code, then, if there is more to say, a colon and the details.

        Raises:
            ValueError: There is no such outcome.
            RolloutFrozenError: A call is withdrawn behind the snapshot that tells of it.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: It is not durable.
        """
        if outcome == "withdrawn":
            await self._run(self._lifecycle.withdraw, rollout_id, model_call_id)
        elif outcome == "untrainable":
            code, _, detail = reason.partition(":")
            mark = CaptureProblem(code.strip() or UNTRAINABLE, model_call_id, detail.strip())
            await self._run(self._lifecycle.mark, rollout_id, mark)
        else:
            raise ValueError(f"{outcome!r} is no outcome of a call; use 'withdrawn' or 'untrainable'")

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say that evidence was lost; durable when this returns, also behind a freeze (B54, B65).

        Raises:
            RolloutRetiredError: The rollout was handed over.
            CaptureError: The mark may not be durable.
        """
        await self._run(self._lifecycle.mark, rollout_id, CaptureProblem(MARKED_INCOMPLETE, model_call_id))

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Close a rollout for new calls, and return its readable records with all that is wrong (B67, W20, W39).

        Raises:
            RolloutRetiredError: The rollout was handed over.
            CaptureError: A file could not be read or written.
        """
        return await self._run(self._lifecycle.freeze, rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove the records if nothing changed since the snapshot, else return False (B70, B140).

        Raises:
            CaptureError: It could not be done.
        """
        return await self._run(self._lifecycle.drop, rollout_id, snapshot_id, version)

    async def has_evidence(self, rollout_id: str) -> bool:
        """Return whether there is, or was, any record, begun call or mark (W30).

        Raises:
            CaptureError: The files cannot be read.
        """
        return await self._run(self._has_evidence, rollout_id)

    def delete(self, rollout_id: str) -> None:
        """Remove everything of a rollout but its lock; it is new then (B71). Blocks.

        Raises:
            CaptureError: It could not be done.
        """
        self._lifecycle.delete(rollout_id)

    def sweep_retired(self, older_than_seconds: float) -> int:
        """Remove what is left of rollouts that were retired longer ago; return how many (B72). Blocks.

        Raises:
            CaptureError: It could not be done.
        """
        return self._lifecycle.sweep_retired(older_than_seconds)

    def read_entries(self, rollout_id: str) -> list[TokenEntry]:
        """Return the records in file order, one a call. Blocks.

        Raises:
            DamagedRecordError: One cannot be read; :meth:`read_packed` returns the others.
            CaptureError: The file cannot be read.
        """
        with self._reading(rollout_id):
            found, _ = read_rollout(self._folder, rollout_id)
        if found.problems:
            first = found.problems[0]
            raise DamagedRecordError(f"{self.root / rollout_id}: {first.reason}: {first.detail}")
        return [entry.entry() for entry in found.entries]

    def read_packed(self, rollout_id: str) -> tuple[list[PackedEntry], list[CaptureProblem]]:
        """Return the readable records, and every reason why the rollout is incomplete (W39, B150). Blocks.

        Raises:
            CaptureError: A file cannot be read at all.
        """
        with self._reading(rollout_id):
            found, problems = read_rollout(self._folder, rollout_id)
        return in_one_buffer(found.entries), problems

    def read_since(self, rollout_id: str, cursor: Cursor | None) -> EntriesSince:
        """Return the records behind a cursor, for resolvers; takes no lock and creates nothing (B50, W36). Blocks.

        Raises:
            CaptureError: The file cannot be read.
        """
        with self._named(rollout_id):
            return read_since(self._folder, rollout_id, cursor)

    def rollout_ids(self) -> list[str]:
        """Return the rollouts that have files, sorted. Blocks."""
        return self._folder.rollout_ids()

    def stage(self, rollout_id: str) -> RolloutStage:
        """Return how far a rollout has come. Blocks.

        Raises:
            CaptureError: The files cannot be read.
        """
        with self._named(rollout_id):
            state = self._folder.state(rollout_id)
            if state.retired or state.frozen:
                return "retired" if state.retired else "frozen"
            return "open" if self._folder.holds_anything(rollout_id) else "unknown"

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether a rollout is marked; begun calls and damage show in a snapshot only (B67, W18). Blocks.

        Raises:
            CaptureError: The files cannot be read.
        """
        with self._named(rollout_id):
            return self._folder.is_marked(rollout_id) or self._folder.state(rollout_id).incomplete

    async def close(self) -> None:
        """Finish what was handed over, and give threads and files back; can be called again."""
        await asyncio.get_running_loop().run_in_executor(None, self.shut_down)

    def shut_down(self) -> None:
        """Do what :meth:`close` does. Blocks."""
        with self._lock:
            finalizer, self._finalizer, self._appender = self._finalizer, None, None
            executor, self._executor = self._executor, None
        if finalizer is not None:
            finalizer()
        if executor is not None:
            executor.shutdown(wait=True)

    def _submit_record(self, entry: TokenEntry) -> PendingAppend:
        appender = self._appending()
        record = PendingRecord(entry, appender.files)
        appender.commits.submit(record)
        return record

    def _submit_intent(self, rollout_id: str, model_call_id: str) -> PendingAppend:
        intent = PendingIntent(rollout_id, model_call_id)
        self._appending().commits.submit(intent)
        return intent

    def _appending(self) -> _Appender:
        with self._lock:
            if self._appender is None:
                files, threads = AppendFiles(self._folder, self._locks, self._cache), self._folder.calls.threads
                commits = GroupCommit[PendingAppend](files, on_done=tell_outcomes, threads=threads, name="tokens")
                self._appender = _Appender(files, commits)
                self._finalizer = weakref.finalize(self, self._appender.close)
            return self._appender

    def _wait(self, append: PendingAppend) -> None:
        try:
            append.done.result(self._timeout_s)
        except FutureTimeoutError:
            raise self._too_late(append) from None

    async def _wait_async(self, append: PendingAppend) -> None:
        done = asyncio.wrap_future(append.done)
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # whoever waits may have gone
        await asyncio.wait({done}, timeout=self._timeout_s)
        if not done.done():
            raise self._too_late(append)
        done.result()

    def _too_late(self, append: PendingAppend) -> CaptureError:
        path = self.root / append.file_name
        return CaptureError(f"{path}: call {append.model_call_id!r} was not durable within {self._timeout_s:.3g} s")

    async def _run(self, work: Callable[..., ResultT], *arguments: Any) -> ResultT:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-store")
            executor = self._executor
        return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)

    def _mark_conflict(self, entry: TokenEntry, conflict: RecordConflictError) -> None:
        try:
            self._lifecycle.mark(
                entry.rollout_id, CaptureProblem(CONFLICTING_RECORD, entry.model_call_id, str(conflict))
            )
        except CaptureError as error:  # the conflict itself is raised, and whoever gets it marks the rollout
            _log.error("%s", error)

    def _has_evidence(self, rollout_id: str) -> bool:
        with self._named(rollout_id):
            return has_evidence(self._folder, rollout_id)

    @contextmanager
    def _reading(self, rollout_id: str) -> Iterator[None]:
        with self._named(rollout_id), self._locks.shared(rollout_id):
            yield

    @contextmanager
    def _named(self, rollout_id: str) -> Iterator[None]:
        path = self.root / check_store_rollout_id(rollout_id)
        try:
            yield
        except OSError as error:
            raise CaptureError(f"{path}: the rollout's token files cannot be read: {error}") from error
