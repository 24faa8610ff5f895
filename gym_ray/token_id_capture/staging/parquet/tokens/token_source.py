"""``ParquetTokenSource``: snapshots of rollouts out of shared segments, without locks (B56, B57).

A snapshot holds every record whose ``put`` returned, in whatever process, and names every reason why it may lack some.
Freezing reads the footers of segments that are new, and the row groups that can hold the rollout, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from gym_ray.errors import CaptureError, RolloutRetiredError, StorageError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.staging.parquet.segments.layout import DEFAULT_PARTITION, check_partition
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.tokens.token_commits import TokenCommits
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import CLEARED, EventRow
from gym_ray.token_id_capture.staging.parquet.tokens.token_evidence import read_rows
from gym_ray.token_id_capture.staging.parquet.tokens.token_ids import check_rollout_id
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import TokenSegments

__all__ = ["ParquetTokenSource"]

_THREADS: Final = 16
ResultT = TypeVar("ResultT")


class ParquetTokenSource:
    """A token source with ``delete``. Every method may be called from any event loop.

    A dropped rollout is gone for readers and writers at once. Its bytes lie in segments that others share: they stay
    until compaction leaves them out.

    Args:
        where: An absolute path, a ``file://`` URL, or the URL of an object store: ``s3://``, ``abfs://`` or ``az://``,
            ``gs://``, and ``memory://`` within one process.
        partition: The partition that the sinks write to.
        storage_options: A map of what the client of the object store is to be given; none for a directory.
        timeout_s: How long a deletion may take to be durable.
        max_parallel: Requests at a time.
        trust_listings: Whether the store lists every name that was there when a listing began, as a local disk and the
            large object stores do, and network file systems may not. Without that, each look also asks by name for the
            next four segments of each of a sink's two writers, until the sink is closed.
        store: The store itself, instead of ``where`` and ``storage_options``; it is not closed with the source.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
        ValueError: The partition has no possible name.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        partition: str = DEFAULT_PARTITION,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
        max_parallel: int = 8,
        trust_listings: bool = False,
        store: SegmentStore | None = None,
    ) -> None:
        self._owns_store = store is None
        self._store = open_staging_store(where, storage_options) if store is None else store
        self._partition, self._timeout_s = check_partition(partition), timeout_s
        self._segments = TokenSegments(self._store, partition, trust_listings=trust_listings, max_parallel=max_parallel)
        self._markers = TokenMarkers(self._store)
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._commits: TokenCommits | None = None

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Close a rollout for new calls, and return its readable records with all that is wrong (B57, W20, W39).

        Raises:
            RolloutIdError: No rollout can have this id.
            RolloutRetiredError: The rollout was handed over.
            CaptureError: The store could not be read or written, or is of a kind on which nothing can be frozen.
        """
        return await self._run(self._freeze, check_rollout_id(rollout_id))

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Retire a rollout if nothing was added since the snapshot, else return False (B57).

        Raises:
            CaptureError: It could not be done.
        """
        return await self._run(self._drop, check_rollout_id(rollout_id), snapshot_id, version)

    def delete(self, rollout_id: str) -> None:
        """Let a rollout begin anew: nothing that is there now counts any more (B71). Blocks.

        Raises:
            CaptureError: It could not be done.
        """
        self._told(self._delete, check_rollout_id(rollout_id))

    async def close(self) -> None:
        """Give threads and connections back; can be called again, and used again."""
        await asyncio.get_running_loop().run_in_executor(None, self.shut_down)

    def shut_down(self) -> None:
        """Do what :meth:`close` does. Blocks."""
        with self._lock:
            threads, self._threads = self._threads, None
            commits, self._commits = self._commits, None
        if threads is not None:
            threads.shutdown()
        if commits is not None:
            commits.close()
        self._segments.close()
        if self._owns_store:
            self._store.close()

    async def _run(self, work: Callable[..., ResultT], *arguments: Any) -> ResultT:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-source")
            threads = self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, self._told, work, *arguments)

    def _told(self, work: Callable[..., ResultT], rollout_id: str, *arguments: Any) -> ResultT:
        try:
            return work(rollout_id, *arguments)
        except StorageError as error:
            raise CaptureError(f"{rollout_id}: {error}") from error

    def _freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        fence = self._markers.fence(rollout_id)
        if fence is not None and fence.done:
            raise RolloutRetiredError(f"{rollout_id}: the rollout is retired")
        snapshot_id = self._markers.freeze(rollout_id)
        rows = read_rows(self._segments, rollout_id)
        entries, problems = rows.snapshot()
        return TokenCaptureSnapshot(rollout_id, entries, bool(problems), snapshot_id, rows.version, problems)

    def _drop(self, rollout_id: str, snapshot_id: str, version: int) -> bool:
        if self._markers.snapshot_id(rollout_id) != snapshot_id:
            return False
        fence = self._markers.fence(rollout_id)
        if fence is not None and fence.done:
            return (fence.snapshot_id, fence.version) == (snapshot_id, version)
        if self._version(rollout_id) != version:
            return False
        # From here on a writer is told; what it told nobody about before is seen now.
        fence = self._markers.raise_fence(rollout_id, snapshot_id, version)
        if fence.done:
            return (fence.snapshot_id, fence.version) == (snapshot_id, version)
        if self._version(rollout_id) != version:
            self._markers.lower_fence(rollout_id, fence)
            return False
        self._markers.retire(rollout_id, fence)
        return True

    def _version(self, rollout_id: str) -> int:
        return read_rows(self._segments, rollout_id, tokens=False).version

    def _delete(self, rollout_id: str) -> None:
        rows = read_rows(self._segments, rollout_id, tokens=False)
        segments = {record.place[0] for record in rows.records} | {event.place[0] for event in rows.events}
        if segments:
            self._committing().keep_event(EventRow(rollout_id, CLEARED, detail=json.dumps(sorted(segments))))
        self._markers.forget(rollout_id)

    def _committing(self) -> TokenCommits:
        with self._lock:
            if self._commits is None:
                self._commits = TokenCommits(
                    self._store, self._partition, timeout_s=self._timeout_s, max_pending_bytes=1 << 20
                )
            return self._commits
