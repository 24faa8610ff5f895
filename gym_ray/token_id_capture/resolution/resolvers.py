"""Resolvers that find parents among records kept elsewhere: a base for any backend, and the one for the file store.

They read only what is new, hold no lock that a writer waits for, and return a parent only with proved tokens. What they
hold in memory is a cache: what is forgotten is read again, with the same result.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.errors import StaleCursorError
from gym_ray.token_id_capture.fingerprint import HashedItems
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.resolution.call_index import hashed_items
from gym_ray.token_id_capture.resolution.lineage_cache import DEFAULT_MAX_TOKENS, LineageCache, RolloutState
from gym_ray.token_id_capture.resolution.parent_links import NO_MATCH_REASON, SEEDED_ROOT_REASON, LineageResolution
from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = ["CachedLineageResolver", "FetchedEntries", "FileLineageResolver"]

_MAX_ROLLOUTS: Final = 65_536
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class FetchedEntries:
    """What a backend has behind a cursor.

    Attributes:
        entries: Records in the order in which they were kept.
        cursor: Where the next fetch begins; opaque to the resolver.
        restarted: The old cursor was stale, and ``entries`` are all there are.
    """

    entries: Sequence[PackedEntry | TokenEntry]
    cursor: Any
    restarted: bool = False


class CachedLineageResolver(ABC):
    """A resolver over records of any backend (B50); its hooks may block and run on the resolver's own threads.

    Args:
        max_rollouts: Most rollouts to keep in memory, least recently used forgotten first (B51).
        max_tokens: Most tokens to keep, likewise; the rollout in use is always kept.
        threads: Look-ups that may wait for the backend at a time.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(
        self, *, max_rollouts: int = _MAX_ROLLOUTS, max_tokens: int = DEFAULT_MAX_TOKENS, threads: int = _THREADS
    ) -> None:
        self._cache = LineageCache(self._new_state, max_rollouts=max_rollouts, max_tokens=max_tokens)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="lineage")
        self._closed = False

    @abstractmethod
    def fetch_since(self, rollout_id: str, cursor: Any | None) -> FetchedEntries:
        """Return the records kept since ``cursor``, all of them for None; those whose put returned must be there (B47).

        Raises:
            StaleCursorError: The cursor is of no use any more; asked again with None then.
        """

    def load_entry(self, rollout_id: str, model_call_id: str) -> PackedEntry | TokenEntry | None:  # noqa: ARG002 - a hook
        """Return one record that :meth:`fetch_since` did not return, None if there is none; asked for parents only."""
        return None

    def load_entries(self, rollout_id: str, model_call_ids: Sequence[str]) -> list[PackedEntry | TokenEntry]:
        """Return several such records at once, where the backend can do better than one by one."""
        found = (self.load_entry(rollout_id, call_id) for call_id in model_call_ids)
        return [entry for entry in found if entry is not None]

    def read_lock(self, rollout_id: str) -> AbstractContextManager[object]:  # noqa: ARG002 - a hook
        """Return what must be held while records are read; nothing by default."""
        return nullcontext()

    async def has_evidence(self, rollout_id: str) -> bool:  # noqa: ARG002 - a hook
        """Whether anything is known of a rollout: a record, a begun call, a mark. True where nobody can say (W30)."""
        return True

    def is_process_shared(self) -> bool:
        """Whether resolvers in other processes see the same records (B49)."""
        return True

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> LineageResolution:
        """Return the decision for a request, given every record whose put has returned (B43, B47).

        Raises:
            ValueError: The items cannot be hashed, two records of one call differ, or the parent's tokens do not prove
                themselves (B48).
            RuntimeError: The resolver is closed.
            Exception: What the backend raises.
        """
        items = hashed_items(request_items)
        if not items.hasher.fingerprint():
            return LineageResolution(ParentResolutionStatus.ROOT)
        if self._closed:
            raise RuntimeError("the lineage resolver is closed")
        loop = asyncio.get_running_loop()
        found, empty = await loop.run_in_executor(self._threads, self._look_up, rollout_id, items)
        if empty and found.reason == NO_MATCH_REASON and not await self.has_evidence(rollout_id):
            return LineageResolution(ParentResolutionStatus.ROOT, reason=SEEDED_ROOT_REASON)
        return found

    async def close(self) -> None:
        """Let go of memory and threads; a look-up under way ends first. Can be called again."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self._cache.clear()

    def _look_up(self, rollout_id: str, items: HashedItems) -> tuple[LineageResolution, bool]:
        with self._cache.using(rollout_id) as state, self.read_lock(rollout_id):
            self._catch_up(rollout_id, state)
            return state.lineage.resolve(items), not len(state.lineage)

    def _catch_up(self, rollout_id: str, state: RolloutState) -> None:
        fetched = self._fetch(rollout_id, state.cursor)
        if fetched.restarted:
            state.lineage, state.broken = self._new_lineage(rollout_id), ""
        try:
            for entry in fetched.entries:
                if entry.rollout_id != rollout_id:
                    raise ValueError(f"call {entry.model_call_id!r} is one of rollout {entry.rollout_id!r}")  # noqa: TRY301 - as any other record that cannot be one
                state.lineage.add(_packed(entry))
        except ValueError as error:
            state.broken = f"{rollout_id}: {error}"
        state.cursor = fetched.cursor
        if state.broken:
            raise ValueError(state.broken)

    def _fetch(self, rollout_id: str, cursor: Any | None) -> FetchedEntries:
        try:
            return self.fetch_since(rollout_id, cursor)
        except StaleCursorError:
            again = self.fetch_since(rollout_id, None)
            return FetchedEntries(again.entries, again.cursor, restarted=True)

    def _new_state(self, rollout_id: str) -> RolloutState:
        return RolloutState(self._new_lineage(rollout_id))

    def _new_lineage(self, rollout_id: str) -> RolloutLineage:
        def load(model_call_ids: Sequence[str]) -> Iterable[PackedEntry]:
            return map(_packed, self.load_entries(rollout_id, model_call_ids))

        return RolloutLineage(load)


class FileLineageResolver(CachedLineageResolver):
    """Finds parents in the files of a :class:`~gym_ray.token_id_capture.store.TokenCaptureStore`.

    Any number of processes may have one over the same directory. Each look-up reads only what was appended since the
    last one of its rollout, and writes nothing.

    Args:
        store: The store; it is not closed with the resolver.
        max_rollouts: As for the base.
        max_tokens: As for the base.
        threads: As for the base.
    """

    def __init__(
        self,
        store: TokenCaptureStore,
        *,
        max_rollouts: int = _MAX_ROLLOUTS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        threads: int = _THREADS,
    ) -> None:
        super().__init__(max_rollouts=max_rollouts, max_tokens=max_tokens, threads=threads)
        self._store = store

    def fetch_since(self, rollout_id: str, cursor: Any | None) -> FetchedEntries:
        """Return the records of the complete lines behind ``cursor``, an (inode, offset) (B50)."""
        read = self._store.read_since(rollout_id, cursor)
        return FetchedEntries(read.entries, read.cursor, read.restarted)

    async def has_evidence(self, rollout_id: str) -> bool:
        """Whether the directory holds a record, a begun call or a mark of a rollout."""
        return await self._store.has_evidence(rollout_id)


def _packed(entry: PackedEntry | TokenEntry) -> PackedEntry:
    return entry if isinstance(entry, PackedEntry) else PackedEntry.of_entry(entry)
