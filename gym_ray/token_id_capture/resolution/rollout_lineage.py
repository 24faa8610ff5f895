"""The calls of one rollout, with tokens (W4, B48).

All calls of a chain share one buffer, and each is proved before it may be anybody's parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from gym_ray.token_id_capture.fingerprint import HashedItems
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import MAX_DELTA_LINKS, ParentResolutionStatus
from gym_ray.token_id_capture.resolution.call_index import CallIndex, Unresolved
from gym_ray.token_id_capture.resolution.held_calls import HeldCall, too_long
from gym_ray.token_id_capture.resolution.parent_links import LineageMatch, LineageResolution
from gym_ray.token_id_capture.resolution.token_buffers import TokenPool, TokenRun
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens, starts_with

__all__ = ["LoadEntries", "RolloutLineage"]

# What a call costs beside its tokens, in tokens of four bytes, so that a bound in tokens bounds memory.
_CALL_WEIGHT: Final = 256

LoadEntries = Callable[[Sequence[str]], Iterable[PackedEntry]]


class RolloutLineage:
    """What a resolver knows of one rollout.

    Not safe for threads: its owner serialises calls. Matches hold views, which never change.

    Args:
        load: Fetches records by call id, for parents that were not added; None if there is nowhere to look.
    """

    def __init__(self, load: LoadEntries | None = None) -> None:
        self._index, self._pool, self._load = CallIndex(), TokenPool(), load
        self._calls: dict[str, HeldCall] = {}
        self._apart_tokens = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def weight(self) -> int:
        """Memory in use, in tokens of four bytes; no sum over calls (W12)."""
        return self._pool.reserved + self._apart_tokens + _CALL_WEIGHT * len(self._calls)

    def add(self, entry: PackedEntry, cumulative: TokenArray | None = None) -> None:
        """Take a record; the same one again changes nothing (B45).

        Args:
            entry: The record.
            cumulative: The whole sequence of the call, from a caller that has it.

        Raises:
            ValueError: Another record with this call id was added, or ``cumulative`` is not the record's sequence.
        """
        known = self._calls.get(entry.model_call_id)
        if known is not None:
            if known.is_record_of(entry):
                return
            raise ValueError(f"{known.name} has two records that differ")
        call, stored = HeldCall.of(entry), (entry.prompt_token_ids, entry.generation_token_ids)
        call.run = self._run_of(call, stored, cumulative)
        if call.run is None:
            call.apart = stored
            self._apart_tokens += call.stored_len
        elif cumulative is not None and not np.array_equal(call.run.view(), cumulative):
            raise ValueError(f"{call.name}: the cumulative tokens are not those of its record")
        self._calls[entry.model_call_id] = call
        self._index.add(call.lookup)

    def has_tokens_of(self, model_call_id: str | None) -> bool:
        """Whether the whole sequence of a call is held."""
        call = self._calls.get(model_call_id or "")
        return call is not None and call.run is not None

    def resolve(self, items: HashedItems) -> LineageResolution:
        """Return the decision for a request (B43).

        Raises:
            ValueError: The tokens of the one candidate do not prove themselves (B48).
        """
        if not items.hasher.fingerprint():
            return LineageResolution(ParentResolutionStatus.ROOT)
        found = self._index.parent_of(items)
        if isinstance(found, Unresolved):
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=found.reason)
        return LineageResolution(ParentResolutionStatus.RESOLVED, self.match(found.model_call_id))

    def match(self, model_call_id: str) -> LineageMatch:
        """Return a call that was added as a proven parent.

        Raises:
            ValueError: A record of its chain is missing or contradicts its tokens, or the chain is a circle or too
                long.
        """
        path = self._unproved_chain(self._calls[model_call_id])
        for call in reversed(path):
            self._prove(call)
        call = path[0]
        assert call.run is not None
        return LineageMatch(
            model_call_id,
            call.run.view(),
            call.digest,
            ended_by=call.ended_by,
            generated=call.generated,
            chain_hash=call.chain_hash,
        )

    def _run_of(
        self, call: HeldCall, stored: tuple[TokenArray, TokenArray], cumulative: TokenArray | None
    ) -> TokenRun | None:
        prompt, generation = stored
        parent = self._calls.get(call.parent_call_id or "")
        run = parent.run if parent else None
        if not call.is_delta:
            if run and starts_with(prompt, run.view()):
                return self._pool.extend(run, [prompt[run.length :], generation])
            return self._pool.start([prompt, generation])
        if run:
            return self._pool.extend(run, [prompt, generation])
        if cumulative is None:
            return None
        if not np.array_equal(cumulative[max(0, cumulative.size - call.stored_len) :], join_tokens(stored)):
            raise ValueError(f"{call.name}: the cumulative tokens do not end with those of its record")
        call.anchored = True
        return self._pool.start([cumulative])

    def _unproved_chain(self, call: HeldCall) -> list[HeldCall]:
        """Return the call and what it stands on, up to the first that is proved or needs nothing before it."""
        path, seen = [call], {call.lookup.model_call_id}
        while not path[-1].proved and (base_id := path[-1].base_id) is not None:
            if base_id in seen:
                raise ValueError(f"{call.name}: its parents run in a circle through {base_id!r}")
            if len(path) > MAX_DELTA_LINKS:
                raise ValueError(too_long(call.name))
            seen.add(base_id)
            path.append(self._base(path[-1], base_id))
        return path

    def _base(self, call: HeldCall, base_id: str) -> HeldCall:
        if base_id not in self._calls and self._load is not None:
            for entry in self._load([base_id]):
                self.add(entry)
        if base_id not in self._calls:
            raise ValueError(f"{call.name} holds a delta, and the record of its parent {base_id!r} is missing")
        return self._calls[base_id]

    def _prove(self, call: HeldCall) -> None:
        base = None if call.base_id is None else self._calls[call.base_id]
        if call.run is None and base is not None:
            assert base.run is not None
            assert call.apart is not None
            call.run, call.apart = self._pool.extend(base.run, call.apart), None
            self._apart_tokens -= call.stored_len
        call.prove(base)
