"""``ParquetTokenSink``: token records of many rollouts in shared segments, on a directory or an object store (B52-B55).

A record is durable, and the rollout was not frozen before it was, when ``put`` returns. Nothing is locked: a row is
published first and the rollout's marker looked for afterwards, while a freeze creates the marker first and lists
afterwards; so each row is in the snapshot, or its writer is told.

What is promised of repeated calls: within one sink the same record again changes nothing and another one is refused;
records that two sinks kept of one call meet in the snapshot, equal ones as one, others as a problem that names both.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from gym_ray.errors import (
    CaptureError,
    RecordConflictError,
    RefusedRecordError,
    RolloutFrozenError,
    RolloutRetiredError,
    StorageError,
)
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CallOutcome
from gym_ray.token_id_capture.reasons import CONFLICTING_RECORD, MARKED_INCOMPLETE, UNTRAINABLE
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.staging.parquet.segments.committer import CommitStats, RowPlace
from gym_ray.token_id_capture.staging.parquet.segments.layout import DEFAULT_PARTITION
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.tokens.token_commits import TokenCommits
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import BEGUN, MARKED, WITHDRAWN, EventRow
from gym_ray.token_id_capture.staging.parquet.tokens.token_evidence import read_rows
from gym_ray.token_id_capture.staging.parquet.tokens.token_ids import check_call_id, check_rollout_id
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_rows import TokenRow
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import TokenSegments

__all__ = ["ParquetTokenSink"]

_THREADS: Final = 128
"""Calls that may wait for storage at a time; those of one moment share a segment."""

ResultT = TypeVar("ResultT")
_Call = tuple[str, str]


class ParquetTokenSink:
    """A token sink with all its extensions. Every method may be called from any event loop.

    Rollout ids may be any text that is not empty and whose percent-encoded form has at most 195 characters; model
    servers and file ledgers take letters, digits, ``.``, ``_`` and ``-`` alone. It may share its place with staged
    calls. Close it, so that readers need not look for more from it.

    Args:
        where: An absolute path, a ``file://`` URL, or the URL of an object store: ``s3://``, ``abfs://`` or ``az://``,
            ``gs://``, and ``memory://`` within one process.
        partition: First part of the names of the segments; a source reads one partition.
        storage_options: A map of what the client of the object store is to be given; none for a directory.
        timeout_s: A call that is not known to be durable by then has failed.
        max_pending_bytes: Callers wait while this much is in memory; one record alone may be larger.
        max_remembered: Calls that are recognised when they are put again.
        trust_listings: Whether the store lists every name that was there when a listing began; see the source.
        store: The store itself, instead of ``where`` and ``storage_options``; it is not closed with the sink.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
        StorageError: The store could not be opened.
        ValueError: The partition has no possible name, or ``store.json`` there is not of this format.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        partition: str = DEFAULT_PARTITION,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
        max_pending_bytes: int = 256 * 1024 * 1024,
        max_remembered: int = 65_536,
        trust_listings: bool = False,
        store: SegmentStore | None = None,
    ) -> None:
        self._owns_store = store is None
        self._store = open_staging_store(where, storage_options) if store is None else store
        self._commits = TokenCommits(self._store, partition, timeout_s=timeout_s, max_pending_bytes=max_pending_bytes)
        self._segments = TokenSegments(self._store, partition, trust_listings=trust_listings)
        self._markers = TokenMarkers(self._store)
        self._lock = threading.Lock()
        self._max_remembered = max_remembered
        self._kept: OrderedDict[_Call, str] = OrderedDict()
        self._refused: OrderedDict[_Call, None] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    async def put(self, entry: TokenEntry | PackedEntry) -> None:
        """Keep a record; must not be changed meanwhile (B53).

        Raises:
            RolloutIdError: No row can have the rollout's id.
            RefusedRecordError: No reader could take the record back; nothing was written.
            RecordConflictError: The call has another record; the rollout is marked.
            RolloutFrozenError: The rollout takes no new calls. The record may be there all the same; then the rollout's
                version has moved.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: The record is not known to be durable; it may be later.
        """
        await self._run(self._put, entry.rollout_id, entry)

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Note that a call is about to be dispatched; durable when this returns (B55).

        Raises:
            RolloutIdError: No row can have the rollout's id.
            RefusedRecordError: The call's id is empty, or no text.
            RolloutFrozenError: The rollout takes no new calls.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: It is not durable.
        """
        await self._run(self._begin, check_rollout_id(rollout_id), check_call_id(rollout_id, model_call_id))

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
        check_rollout_id(rollout_id)
        check_call_id(rollout_id, model_call_id)
        if outcome == "withdrawn":
            await self._run(self._withdraw, rollout_id, model_call_id)
        elif outcome == "untrainable":
            code, _, detail = reason.partition(":")
            await self._run(self._mark, rollout_id, model_call_id, code.strip() or UNTRAINABLE, detail.strip())
        else:
            raise ValueError(f"{outcome!r} is no outcome of a call; use 'withdrawn' or 'untrainable'")

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say that evidence was lost; durable when this returns, also behind a freeze (B54).

        Raises:
            RolloutRetiredError: The rollout was handed over.
            CaptureError: The mark may not be durable.
        """
        check_rollout_id(rollout_id)
        await self._run(self._mark, rollout_id, check_call_id(rollout_id, model_call_id), MARKED_INCOMPLETE, "")

    async def has_evidence(self, rollout_id: str) -> bool:
        """Return whether there is, or was, any record, begun call or mark (W30).

        Raises:
            CaptureError: The store cannot be read.
        """
        return await self._run(self._has_evidence, check_rollout_id(rollout_id))

    def stats(self) -> tuple[CommitStats, CommitStats]:
        """Return what was written so far: segments of records, and segments of events."""
        return self._commits.stats()

    async def close(self) -> None:
        """Finish what was handed over, and give threads and connections back; can be called again."""
        await asyncio.get_running_loop().run_in_executor(None, self.shut_down)

    def shut_down(self) -> None:
        """Do what :meth:`close` does. Blocks."""
        with self._lock:
            threads, self._threads, self._closed = self._threads, None, True
        if threads is not None:
            threads.shutdown()
        self._commits.close()
        self._segments.close()
        if self._owns_store:
            self._store.close()

    async def _run(self, work: Callable[..., ResultT], rollout_id: str, *arguments: Any) -> ResultT:
        with self._lock:
            if self._closed:
                raise CaptureError(f"{self._store.place}: the token sink is closed")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-sink")
            threads = self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, self._told, work, rollout_id, *arguments)

    def _told(self, work: Callable[..., ResultT], rollout_id: str, *arguments: Any) -> ResultT:
        try:
            return work(rollout_id, *arguments)
        except StorageError as error:
            raise CaptureError(f"{rollout_id}: {error}") from error

    def _put(self, rollout_id: str, entry: TokenEntry | PackedEntry) -> None:
        row = TokenRow.of(entry)
        call = rollout_id, row.model_call_id
        self._refuse_again(call)
        if self._is_kept(row, call):
            return
        place = self._commits.keep_record(row)
        if self._markers.is_frozen(row.rollout_id) and not self._is_twin(row, place):
            with self._lock:
                self._remember(self._refused, call, None)
            raise RolloutFrozenError(
                f"{row.rollout_id}: the rollout is frozen; call {row.model_call_id!r} came too late"
            )
        with self._lock:
            self._remember(self._kept, call, place.segment)

    def _refuse_again(self, call: _Call) -> None:
        """Refuse what came too late before; else its own first row would pass for the record of the snapshot."""
        with self._lock:
            refused = call in self._refused
        if refused:
            self._refuse_frozen(call[0])
            with self._lock:
                self._refused.pop(call, None)  # the rollout began anew since

    def _is_kept(self, row: TokenRow, call: _Call) -> bool:
        """Return whether this sink kept the record, and it is still there.

        Raises:
            RecordConflictError: It kept another one.
            RolloutFrozenError: It kept another one, and the rollout takes no new calls.
            RolloutRetiredError: The rollout was handed over.
        """
        with self._lock:
            segment = self._kept.get(call)
        if segment is None:
            return False
        self._segments.tell(segment)
        self._refuse_retired(row.rollout_id)
        found = read_rows(self._segments, row.rollout_id, tokens=False).records
        digests = [record.digest for record in found if record.model_call_id == row.model_call_id]
        if digests and row.digest not in digests:
            self._refuse_frozen(row.rollout_id)
            problem = f"call {row.model_call_id!r} has another record already"
            self._mark(row.rollout_id, row.model_call_id, CONFLICTING_RECORD, problem)
            raise RecordConflictError(f"{row.rollout_id}: {problem}")
        return bool(digests)  # none: the rollout began anew since

    def _is_twin(self, row: TokenRow, place: RowPlace) -> bool:
        """Return whether a row that came behind a freeze is a second copy, and so changed nothing (W25).

        Raises:
            RolloutRetiredError: The rollout was handed over.
        """
        self._refuse_retired(row.rollout_id)
        own = place.segment, place.row_group, place.row
        found = read_rows(self._segments, row.rollout_id, tokens=False).records
        return any(record.digest == row.digest and record.place != own for record in found)

    def _begin(self, rollout_id: str, model_call_id: str) -> None:
        if not model_call_id:
            raise RefusedRecordError(f"{rollout_id}: a begun call needs an id")
        self._refuse_frozen(rollout_id)
        self._commits.keep_event(EventRow(rollout_id, BEGUN, model_call_id))
        try:
            self._refuse_frozen(rollout_id)
        except (RolloutFrozenError, RolloutRetiredError):
            # It will not be dispatched. Without this row it would look like a call whose tokens were lost.
            self._commits.keep_event(EventRow(rollout_id, WITHDRAWN, model_call_id))
            raise

    def _withdraw(self, rollout_id: str, model_call_id: str) -> None:
        self._refuse_frozen(rollout_id)
        self._commits.keep_event(EventRow(rollout_id, WITHDRAWN, model_call_id))
        self._refuse_frozen(rollout_id)

    def _mark(self, rollout_id: str, model_call_id: str, reason: str, detail: str) -> None:
        self._commits.keep_event(EventRow(rollout_id, MARKED, model_call_id, reason, detail))
        self._refuse_retired(rollout_id)

    def _has_evidence(self, rollout_id: str) -> bool:
        if self._markers.is_frozen(rollout_id) and self._markers.is_retired(rollout_id):
            return True
        return read_rows(self._segments, rollout_id, tokens=False).is_evidence

    def _refuse_retired(self, rollout_id: str) -> None:
        if self._markers.is_frozen(rollout_id) and self._markers.is_retired(rollout_id):
            raise RolloutRetiredError(f"{rollout_id}: the rollout is retired")

    def _refuse_frozen(self, rollout_id: str) -> None:
        if self._markers.is_frozen(rollout_id):
            if self._markers.is_retired(rollout_id):
                raise RolloutRetiredError(f"{rollout_id}: the rollout is retired")
            raise RolloutFrozenError(f"{rollout_id}: the rollout is frozen")

    def _remember(self, calls: OrderedDict[_Call, Any], call: _Call, value: str | None) -> None:
        calls[call] = value
        while len(calls) > self._max_remembered:
            calls.popitem(last=False)
