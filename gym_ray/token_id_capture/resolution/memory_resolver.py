"""The resolver of a single server process: it is told of each record, and reads nothing (B50).

What it forgets is gone: a call whose parent was forgotten is unresolved, and its rollout ends up masked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.resolution.call_index import hashed_items
from gym_ray.token_id_capture.resolution.lineage_cache import DEFAULT_MAX_TOKENS, LineageCache, RolloutState
from gym_ray.token_id_capture.resolution.parent_links import NO_MATCH_REASON, SEEDED_ROOT_REASON, LineageResolution
from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage
from gym_ray.token_id_capture.token_arrays import TokenIds, pack_token_ids

__all__ = ["InMemoryLineageResolver"]

_MAX_ROLLOUTS: Final = 512


class InMemoryLineageResolver:
    """Finds parents among the records that :meth:`observe` was told of. Safe for threads.

    Args:
        max_rollouts: Most rollouts to keep, least recently used forgotten first (B51, W12).
        max_tokens: Most tokens to keep, likewise; the rollout in use is always kept.
        has_evidence: Asks the sink whether anything is known of a rollout; without it no call is a seeded root (W30).

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(
        self,
        *,
        max_rollouts: int = _MAX_ROLLOUTS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        has_evidence: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._cache = LineageCache(_new_state, max_rollouts=max_rollouts, max_tokens=max_tokens)
        self._has_evidence = has_evidence

    @property
    def rollouts(self) -> list[str]:
        """The rollouts that are kept, the one to be forgotten next first."""
        return self._cache.rollouts()

    def observe(self, entry: TokenEntry | PackedEntry, cumulative: TokenIds | None = None) -> None:
        """Take a record that the sink has kept; the same one again changes nothing.

        Args:
            entry: The record.
            cumulative: The whole sequence of the call; needed for a delta record whose parent was forgotten.

        Raises:
            ValueError: Another record with this call id was taken, nothing gives a delta record the tokens of its
                parent (B45), or ``cumulative`` is not the record's sequence.
        """
        packed = entry if isinstance(entry, PackedEntry) else PackedEntry.of_entry(entry)
        whole = None if cumulative is None else pack_token_ids(cumulative)
        with self._cache.using(packed.rollout_id) as state:
            if packed.prompt_is_delta and whole is None and not state.lineage.has_tokens_of(packed.parent_call_id):
                raise ValueError(
                    f"call {packed.model_call_id!r} holds a delta and the tokens of its parent "
                    f"{packed.parent_call_id!r} are not known: its cumulative tokens are needed"
                )
            state.lineage.add(packed, whole)

    async def resolve(self, rollout_id: str, request_items: Sequence[object]) -> LineageResolution:
        """Return the decision for a request, given every record that was observed (B43).

        Raises:
            ValueError: The items cannot be hashed, or the parent's tokens do not prove themselves (B48).
        """
        items = hashed_items(request_items)
        if not items.hasher.fingerprint():
            return LineageResolution(ParentResolutionStatus.ROOT)
        if rollout_id in self._cache:
            with self._cache.using(rollout_id) as state:
                return state.lineage.resolve(items)
        if self._has_evidence is not None and not await self._has_evidence(rollout_id):
            return LineageResolution(ParentResolutionStatus.ROOT, reason=SEEDED_ROOT_REASON)
        return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=NO_MATCH_REASON)

    def forget(self, rollout_id: str) -> None:
        """Forget the records of a rollout that begins anew, so that no new call continues one that was cleared."""
        self._cache.forget(rollout_id)

    def is_process_shared(self) -> bool:
        """Never (B49)."""
        return False

    async def close(self) -> None:
        """Forget everything; can be called again."""
        self._cache.clear()


def _new_state(_rollout_id: str) -> RolloutState:
    return RolloutState(RolloutLineage())
