"""The exact tokens that a call continues, proved from what storage holds of its ancestors.

A chain of staged calls is read link by link, and each link must follow from the one before: the same rollout, the
parent that it names, the length that it starts at, and the chain hash over its own tokens. What this worker staged
itself, or read before, comes from memory. A prefix that cannot be proved is an error, never a shorter prefix.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gym_ray.errors import StagedPrefixError
from gym_ray.token_id_capture.staging.digests import compute_chain_hash
from gym_ray.token_id_capture.staging.protocols import StagingSource
from gym_ray.token_id_capture.staging.records import CaptureAdmission, StagedCallBaseSnapshot
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens

__all__ = ["StagedPrefix", "StagedPrefixes"]

_MAX_TOKENS: Final = 32_000_000
"""Tokens that are kept at most: 128 MB where ids have four bytes."""


@dataclass(frozen=True, slots=True)
class StagedPrefix:
    """What a staged call and its ancestors consumed and generated.

    Attributes:
        rollout_id: Their rollout.
        model_call_id: The last of them.
        chain_hash: Its chain hash.
        token_ids: All tokens in order, read-only.
        generated: How many of the last tokens that call generated.
    """

    rollout_id: str
    model_call_id: str
    chain_hash: str
    token_ids: TokenArray
    generated: int


class StagedPrefixes:
    """Finds and remembers prefixes; safe to use from several threads.

    Args:
        source: Reads staged calls.
        max_tokens: Tokens that are remembered at most.
    """

    def __init__(self, source: StagingSource, *, max_tokens: int = _MAX_TOKENS) -> None:
        self._source, self._max_tokens = source, max_tokens
        self._known: OrderedDict[str, StagedPrefix] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    async def of(self, admission: CaptureAdmission) -> StagedPrefix | None:
        """Return the proved prefix of an admitted call; None for a call without a parent.

        Raises:
            StagedPrefixError: The chain that the admission names is not what storage holds, or cannot be read.
        """
        if admission.parent_call_id is None:
            return None
        if admission.staging_chain:
            return await asyncio.to_thread(self._of_chain, admission)
        return _of_inline_ids(admission)

    def remember(self, staging_key: str, prefix: StagedPrefix) -> None:
        """Keep what a call that was just staged leads to, for the calls that continue it."""
        size = int(prefix.token_ids.size)
        with self._lock:
            before = self._known.pop(staging_key, None)
            self._tokens += size - (0 if before is None else int(before.token_ids.size))
            self._known[staging_key] = prefix
            while self._tokens > self._max_tokens:
                _, oldest = self._known.popitem(last=False)
                self._tokens -= int(oldest.token_ids.size)

    def _of_chain(self, admission: CaptureAdmission) -> StagedPrefix:
        keys = list(admission.staging_chain)
        found, read = self._longest_known(keys)
        if read < len(keys):
            found = _follow(found, self._fetch(keys[read:]), admission.rollout_id)
        if found is None:  # a chain has at least one key
            raise StagedPrefixError(f"call {admission.model_call_id} has a parent and names no staged call")
        _check_end(found, admission)
        self.remember(keys[-1], found)
        return found

    def _longest_known(self, keys: Sequence[str]) -> tuple[StagedPrefix | None, int]:
        with self._lock:
            for count in range(len(keys), 0, -1):
                known = self._known.get(keys[count - 1])
                if known is not None:
                    self._known.move_to_end(keys[count - 1])
                    return known, count
        return None, 0

    def _fetch(self, keys: list[str]) -> list[StagedCallBaseSnapshot]:
        try:
            return list(self._source.fetch(keys))
        except Exception as error:  # boundary: a foreign source may raise anything; the call is then not captured
            problem = f"{type(error).__name__}: {error}"
            raise StagedPrefixError(f"the staged calls {keys[0]} to {keys[-1]} cannot be read: {problem}") from error


def _of_inline_ids(admission: CaptureAdmission) -> StagedPrefix:
    """Return the ids that the admission itself holds; their number was checked there. No stored call proves more.

    How many of them the parent generated, nothing tells either.
    """
    ids: TokenArray = admission.required_prefix_token_ids.array
    parent, chain_hash = admission.parent_call_id, admission.parent_chain_hash
    return StagedPrefix(admission.rollout_id, parent or "", chain_hash or "", ids, generated=0)


def _follow(
    start: StagedPrefix | None, links: Sequence[StagedCallBaseSnapshot], rollout_id: str
) -> StagedPrefix | None:
    """Return the prefix that ``links`` lead to from ``start``.

    Raises:
        StagedPrefixError: A link does not follow from the one before.
    """
    call_id, chain_hash = (None, None) if start is None else (start.model_call_id, start.chain_hash)
    parts = [] if start is None else [start.token_ids]
    length = sum(int(part.size) for part in parts)
    for link in links:
        delta: TokenArray = link.token_ids_delta.array
        if (link.rollout_id, link.parent_call_id, link.prev_len) != (rollout_id, call_id, length):
            raise StagedPrefixError(
                f"staged call {link.model_call_id} of rollout {link.rollout_id} begins at {link.prev_len} behind "
                f"{link.parent_call_id}; the chain is at {length} behind {call_id} of rollout {rollout_id}"
            )
        chain_hash = compute_chain_hash(chain_hash, delta)
        if chain_hash != link.chain_hash:
            raise StagedPrefixError(f"the tokens of staged call {link.model_call_id} do not give its chain hash")
        parts.append(delta)
        call_id, length = link.model_call_id, link.cum_len
    if call_id is None or chain_hash is None:
        return None
    generated = _generated(links[-1]) if links else (0 if start is None else start.generated)
    return StagedPrefix(rollout_id, call_id, chain_hash, join_tokens(parts), generated)


def _generated(link: StagedCallBaseSnapshot) -> int:
    return int(np.count_nonzero(link.token_mask_delta.array))


def _check_end(found: StagedPrefix, admission: CaptureAdmission) -> None:
    """Refuse a prefix that is not the one that the call was admitted with."""
    held = (found.rollout_id, found.model_call_id, int(found.token_ids.size), found.chain_hash)
    named = (admission.rollout_id, admission.parent_call_id, admission.prev_len, admission.parent_chain_hash)
    if held != named:
        raise StagedPrefixError(
            f"call {admission.model_call_id} was admitted behind (rollout, parent, tokens, chain hash) {named}; "
            f"storage holds {held}"
        )
