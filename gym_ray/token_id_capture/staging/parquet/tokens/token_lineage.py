"""``ParquetLineageResolver``: finds parents among the records of every sink of a partition, in any process (B47-B50).

Each look-up reads only the segments that are new to it. A record that was kept before the question is found; what
cannot be read raises, and never becomes a missing parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gym_ray.errors import DamagedRecordError, StaleCursorError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.lineage import CachedLineageResolver, FetchedEntries
from gym_ray.token_id_capture.staging.parquet.segments.layout import DEFAULT_PARTITION, check_partition
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.tokens.token_evidence import collect_rows, read_rows
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_rows import StoredRecord
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import TokenSegments

__all__ = ["ParquetLineageResolver"]

_MAX_ROLLOUTS: Final = 65_536
_MAX_TOKENS: Final = 64_000_000
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How many segments of the index were read, and those that count no more for the rollout."""

    segments: int
    cleared: frozenset[str]


class ParquetLineageResolver(CachedLineageResolver):
    """A process-shared resolver over the records that :class:`ParquetTokenSink` keeps.

    Args:
        where: An absolute path, a ``file://`` URL, or the URL of an object store: ``s3://``, ``abfs://`` or ``az://``,
            ``gs://``, and ``memory://`` within one process.
        partition: The partition that the sinks write to.
        storage_options: A map of what the client of the object store is to be given; none for a directory.
        max_rollouts: Most rollouts to keep in memory, least recently used forgotten first (B51).
        max_tokens: Most tokens to keep, likewise.
        threads: Look-ups at a time.
        trust_listings: Whether the store lists every name that was there when a listing began; see the source.
        store: The store itself, instead of ``where`` and ``storage_options``; it is not closed with the resolver.

    Raises:
        SettingsError: The place is a file, or of a kind that nothing installed can open; or its client has no such
            option.
        ValueError: A bound is not positive, or the partition has no possible name.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        partition: str = DEFAULT_PARTITION,
        storage_options: Mapping[str, Any] | None = None,
        max_rollouts: int = _MAX_ROLLOUTS,
        max_tokens: int = _MAX_TOKENS,
        threads: int = _THREADS,
        trust_listings: bool = False,
        store: SegmentStore | None = None,
    ) -> None:
        super().__init__(max_rollouts=max_rollouts, max_tokens=max_tokens, threads=threads)
        self._owns_store = store is None
        self._store = open_staging_store(where, storage_options) if store is None else store
        self._segments = TokenSegments(self._store, check_partition(partition), trust_listings=trust_listings)
        self._markers = TokenMarkers(self._store)

    def fetch_since(self, rollout_id: str, cursor: Any | None) -> FetchedEntries:
        """Return the records in the segments that were found behind ``cursor``.

        Raises:
            StaleCursorError: The rollout began anew since.
            ValueError: A segment or a record is damaged.
            StorageError: The store cannot be read.
        """
        start = cursor or _Cursor(0, frozenset())
        groups = None
        while groups is None:
            segments = self._segments.refresh(listing=False)
            fresh = segments[start.segments :]
            for segment in fresh:
                if segment.damage:
                    raise DamagedRecordError(segment.damage)
            groups = self._segments.read(fresh, rollout_id)
        rows = collect_rows(rollout_id, groups, cleared_before=start.cleared)
        if cursor is not None and rows.cleared != start.cleared:
            raise StaleCursorError(f"{rollout_id}: the rollout began anew")
        entries = [record.entry(rollout_id) for record in rows.records if self._is_new(record, start.segments)]
        return FetchedEntries(entries, _Cursor(len(segments), rows.cleared))

    def _is_new(self, record: StoredRecord, start: int) -> bool:
        """Whether a record was not seen before the cursor, which compaction may have moved behind it."""
        position = self._segments.position(record.place[0])
        return position is None or position >= start

    async def has_evidence(self, rollout_id: str) -> bool:
        """Whether the store holds a record, a begun call or a mark of a rollout (W30)."""
        return await asyncio.get_running_loop().run_in_executor(None, self._has_evidence, rollout_id)

    async def close(self) -> None:
        """Let go of memory, threads and connections; a look-up under way ends first. Can be called again."""
        await super().close()
        self._segments.close()
        if self._owns_store:
            self._store.close()

    def _has_evidence(self, rollout_id: str) -> bool:
        if self._markers.is_frozen(rollout_id) and self._markers.is_retired(rollout_id):
            return True
        return read_rows(self._segments, rollout_id, tokens=False).is_evidence
