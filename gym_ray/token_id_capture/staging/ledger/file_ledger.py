"""A ledger in files: ``<rollout_id>.lineage.jsonl``, which any number of processes append to and read (C204).

What is not in a rollout's file was not acknowledged, and what was acknowledged is there after a crash. The files are
the peer's, so a directory can be handed from one to the other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, DamagedRecordError, RolloutRetiredError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.group_commit import GroupCommit
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.storage.posix import OWNER_ONLY_DIRECTORY, make_directory
from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging.ledger.cached_file import FileCache, numbered_lines
from gym_ray.token_id_capture.staging.ledger.ledger_appends import LedgerAppends, PendingLine
from gym_ray.token_id_capture.staging.ledger.ledger_lines import (
    check_commit,
    commit_row,
    damaged_line,
    failure_row,
    manifest_entry,
    parsed_row,
)
from gym_ray.token_id_capture.staging.ledger.retirement import LEDGER_SUFFIX, LedgerRemoval, distinct_rollout_ids
from gym_ray.token_id_capture.staging.ledger_records import (
    CallRecord,
    CaptureLedgerCommit,
    ManifestFailure,
    RolloutManifest,
    RolloutRemoval,
)

__all__ = ["FileCaptureLedger"]

_ResultT = TypeVar("_ResultT")

_READERS: Final = 4


class FileCaptureLedger:
    """Implements :class:`~gym_ray.token_id_capture.staging.ledger.protocol.CaptureLedger` in a directory.

    Each process has one of its own. Rows of one file that wait at the same time share one sync, and distinct files are
    synced at the same time.

    Args:
        root: The directory, which is created with its parents; its files are for their owner only.
        calls: How the operating system is called; None takes what suits the file system.
        close_timeout_s: How long :meth:`close` waits for rows that are being written.

    Raises:
        CaptureError: The directory could not be created.
    """

    def __init__(self, root: str | Path, *, calls: FileCalls | None = None, close_timeout_s: float = 30.0) -> None:
        self.root = Path(root)
        self._calls = calls or file_calls_for(self.root)
        try:
            make_directory(self._calls, self.root, OWNER_ONLY_DIRECTORY)
        except OSError as error:
            raise CaptureError(f"{self.root}: the directory of the ledger could not be created: {error}") from error
        self._close_timeout_s = close_timeout_s
        self._cache = FileCache(self.root)
        self._removal = LedgerRemoval(self.root, self._calls)
        self._files = LedgerAppends(self.root, self._calls, self._removal, self._cache)
        self._commits: GroupCommit[PendingLine] = GroupCommit(
            self._files, on_done=_tell, threads=self._calls.threads, name="ledger"
        )
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="ledger-read")
        self._is_closed, self._process = False, os.getpid()

    async def resolve(self, rollout_id: str, items: Sequence[Any]) -> LineageResolution:
        """Return which committed call a request continues; see the protocol."""
        check_rollout_id(rollout_id)

        def look_up() -> LineageResolution:
            with self._cache.held(rollout_id) as cached:
                return cached.refresh(self._calls).resolve(items)

        return await self._read(rollout_id, look_up)

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Keep the row of one committed call; see the protocol."""
        what = f"the row of call {commit.record.model_call_id!r} (staging key {commit.record.staging_key!r})"
        items = len(commit.request_items) + len(commit.response_items)
        await self._append(check_commit(commit), what, lambda: commit_row(commit), items)

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Keep why a call has no usable row; see the protocol."""
        row = failure_row(model_call_id, reason)
        await self._append(rollout_id, f"the failure {reason!r} of call {model_call_id!r}", lambda: row, 0)

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return every row and every failure of a rollout; see the protocol.

        A damaged line is a failure, whose call id is ``<file>:<line number>``.
        """
        check_rollout_id(rollout_id)
        return await self._read(rollout_id, lambda: self._manifest(rollout_id))

    async def has_rows(self, rollout_id: str) -> bool:
        """Whether anything was recorded of a rollout; see the protocol."""
        check_rollout_id(rollout_id)

        def look() -> bool:
            with self._cache.held(rollout_id) as cached:
                known = bool(cached.refresh(self._calls))
            if not known:
                self._refuse_retired(rollout_id)
            return known

        return await self._read(rollout_id, look)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Close rollouts for good and remove their rows; see the protocol."""
        return await self._remove(rollout_ids, self._removal.retire)

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove rows and fences; see the protocol."""
        return await self._remove(rollout_ids, self._removal.delete)

    def is_process_shared(self) -> bool:
        """Return True: any process with this directory sees the same rows."""
        return True

    def evicts(self) -> bool:
        """Return False: only the cache forgets, never the files."""
        return False

    async def close(self) -> None:
        """Wait for what is being written, and let go of threads and files; can be called again.

        Raises:
            CaptureError: A file did not answer in time; what was to be written to it may not be there. Another call
                waits once more.
        """
        if self._is_inherited:
            return
        self._is_closed = True
        done = await asyncio.to_thread(self._commits.close, self._close_timeout_s)
        self._readers.shutdown(wait=done, cancel_futures=True)
        if not done:
            raise CaptureError(f"{self.root}: rows were still being written after {self._close_timeout_s:g} s")
        self._files.close()

    async def _append(self, rollout_id: str, what: str, make_row: Callable[[], dict[str, Any]], items: int) -> None:
        pending = PendingLine(check_rollout_id(rollout_id), what, make_row, items, self._files)
        self._refuse_inherited(f"{what} could not be kept")
        try:
            self._commits.submit(pending)
        except OSError as error:
            raise CaptureError(f"{self.root}: {what} could not be kept: {error}") from error
        await asyncio.wrap_future(pending.done)

    async def _read(self, rollout_id: str, read: Callable[[], _ResultT]) -> _ResultT:
        return await self._run(read, f"the ledger of rollout {rollout_id!r} could not be read")

    async def _run(self, work: Callable[[], _ResultT], problem: str) -> _ResultT:
        if self._is_closed:
            raise CaptureError(f"{self.root}: {problem}: the ledger is closed")
        self._refuse_inherited(problem)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work)
        except OSError as error:
            raise CaptureError(f"{self.root}: {problem}: {error}") from error

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a fork of the process whose threads do the work."""
        return os.getpid() != self._process

    def _refuse_inherited(self, problem: str) -> None:
        if self._is_inherited:
            raise CaptureError(
                f"{self.root}: {problem}: the ledger belongs to process {self._process}; open another one after a fork"
            )

    async def _remove(
        self, rollout_ids: Sequence[str], remove: Callable[[Sequence[str]], RolloutRemoval]
    ) -> RolloutRemoval:
        wanted = distinct_rollout_ids(rollout_ids)
        try:
            return await self._run(lambda: remove(wanted), "rollouts could not be removed; repeat it")
        finally:
            self._cache.drop(wanted)

    def _manifest(self, rollout_id: str) -> RolloutManifest:
        name = rollout_id + LEDGER_SUFFIX
        entries: list[CallRecord | ManifestFailure | None] = []
        try:
            with (self.root / name).open("rb") as file:  # line by line: long chains make large files
                entries += [_entry(line, f"{name}:{number}") for number, line in numbered_lines(file)]
        except FileNotFoundError:
            self.root.stat()  # without the directory, nobody can say that there are no rows
        if not entries:
            self._refuse_retired(rollout_id)
        return RolloutManifest(
            rollout_id=rollout_id,
            records=[entry for entry in entries if isinstance(entry, CallRecord)],
            failures=[entry for entry in entries if isinstance(entry, ManifestFailure)],
        )

    def _refuse_retired(self, rollout_id: str) -> None:
        if self._removal.is_fenced(rollout_id):
            raise RolloutRetiredError(f"rollout {rollout_id!r} is retired; its ledger was removed")


def _tell(items: Sequence[PendingLine]) -> None:
    for item in items:
        item.tell()


def _entry(line: bytes, place: str) -> CallRecord | ManifestFailure | None:
    try:
        row = parsed_row(line, place)
        return None if row is None else manifest_entry(row, place)
    except DamagedRecordError:
        return damaged_line(place)
