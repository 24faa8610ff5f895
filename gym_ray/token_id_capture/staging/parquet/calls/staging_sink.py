"""Stages calls with their media into Parquet segments: durable, whole, and readable by key when ``stage`` returns.

A call that cannot be kept is answered with what is wrong, never kept in part. Within one sink the same call again has
the same key, and other content under its ids is refused. Two sinks know nothing of each other: a call that was staged
by two of them is there twice, each row under the key that its own caller was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gym_ray.errors import CaptureError, StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment, prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import write_calls_segment
from gym_ray.token_id_capture.staging.parquet.calls.staged_calls import StagedCalls
from gym_ray.token_id_capture.staging.parquet.segments.committer import CommitStats, SegmentCommitter
from gym_ray.token_id_capture.staging.parquet.segments.identity import open_identity
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND, DEFAULT_PARTITION
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.records import StagedCallRecord, StageResult

__all__ = ["ParquetStagingSink", "StagingStats"]

_DIGEST_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class StagingStats:
    """What a sink has done so far.

    Attributes:
        staged: Calls that are durable and acknowledged, each time they were handed in.
        repeated: Of these, the ones that had been handed in before.
        refused: Calls that could not be kept whatever the storage does.
        failed: Calls whose write failed or did not end in time.
        commits: What was written.
    """

    staged: int
    repeated: int
    refused: int
    failed: int
    commits: CommitStats


class ParquetStagingSink:
    """A staging sink on a directory or an object store (C120-C124). Every method may be called from many threads.

    Args:
        where: An absolute path, a ``file://`` URL, or the URL of an object store: ``s3://``, ``abfs://`` or ``az://``,
            ``gs://``, and ``memory://`` within one process.
        partition: First part of the names of the segments; letters, digits, ``.``, ``_`` and ``-``.
        storage_options: A map of what the client of the object store is to be given; none for a directory.
        timeout_s: A call that is not known to be durable by then is answered as failed.
        max_pending_bytes: Callers wait while this much is in memory; one call alone may be larger.
        max_remembered: Calls that are recognised when they are staged again.
        store: The store itself, instead of ``where`` and ``storage_options`` which then only name it.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
        StorageError: The store could not be opened.
        ValueError: The partition has no possible name, or ``store.json`` is not of this format.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        partition: str = DEFAULT_PARTITION,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
        max_pending_bytes: int = 256 * 1024 * 1024,
        max_remembered: int = 32_768,
        store: SegmentStore | None = None,
    ) -> None:
        self._owned = store is None
        self._store = store = open_staging_store(where, storage_options) if store is None else store
        self._store_id = store_id = open_identity(store)
        self._timeout_s = timeout_s
        self._committer: SegmentCommitter[CallItem] = SegmentCommitter(
            store,
            partition=partition,
            kind=CALLS_KIND,
            write=lambda stream, items: write_calls_segment(stream, items, store_id),
            max_pending_bytes=max_pending_bytes,
            timeout_s=timeout_s,
        )
        self._calls = StagedCalls(self._committer.submit, max_remembered, timeout_s)
        self._counting = threading.Lock()
        self._staged = self._repeated = self._refused = self._failed = 0

    def __enter__(self) -> Self:
        """Return this; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; see :meth:`close`."""
        self.close()

    @property
    def store_id(self) -> str:
        """The id of the store, which all its keys carry."""
        return self._store_id

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Keep a record and all its attachments in one durable write; see :class:`StagingSink`.

        The attachments must not be changed until this returns.

        Returns:
            ``ok`` with a key that leads to the row for ever; or not ok with what is wrong. After a deadline the call
            may become durable yet, under a key that nobody was given; staged again, it is found or written anew.
        """
        try:
            prepared = None if attachments is None else prepare_attachments(attachments)
        except CaptureError as error:
            return self._refuse(error)
        return self.stage_prepared(record, prepared)

    def stage_prepared(self, record: StagedCallRecord, attachments: Sequence[PreparedAttachment] | None) -> StageResult:
        """Keep a record and attachments that are ready to be written; the rest as :meth:`stage`."""
        until = time.monotonic() + self._timeout_s
        try:
            item = CallItem(record, attachments)
            place, again = self._calls.place_of(item, until)
        except CaptureError as error:
            return self._refuse(error)
        except StorageError as error:
            with self._counting:
                self._failed += 1
            return StageResult(ok=False, error=str(error))
        with self._counting:
            self._staged += 1
            self._repeated += again
        committer = self._committer
        key = SegmentKey(
            self._store_id,
            committer.partition,
            committer.writer,
            place.seq,
            place.row_group,
            place.row,
            record.digest[:_DIGEST_CHARACTERS],
        )
        return StageResult(ok=True, staging_key=str(key))

    def stats(self) -> StagingStats:
        """Return what was done so far."""
        return StagingStats(self._staged, self._repeated, self._refused, self._failed, self._committer.stats())

    def close(self, timeout_s: float | None = None) -> bool:
        """Take no more calls, write those that wait, end the thread and the connections.

        Returns:
            Whether every call had its outcome within the time.
        """
        done = self._committer.close(timeout_s)
        if self._owned and done:
            self._store.close()
        return done

    def _refuse(self, error: Exception) -> StageResult:
        with self._counting:
            self._refused += 1
        return StageResult(ok=False, error=str(error))
