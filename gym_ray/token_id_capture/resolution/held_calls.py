"""One call as a resolver holds it, and the proof that its tokens are the ones it claims (B48, W3).

The claims of a record are never trusted. A delta record whose chain hash follows from its parent's is checked in time
linear in the delta; any other record is hashed as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gym_ray.token_id_capture.extras import chain_hash
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import MAX_DELTA_LINKS
from gym_ray.token_id_capture.resolution.call_index import IndexedCall
from gym_ray.token_id_capture.resolution.token_buffers import TokenRun
from gym_ray.token_id_capture.token_arrays import TokenArray, digest_packed

__all__ = ["HeldCall", "too_long"]


@dataclass(slots=True, eq=False)
class HeldCall:
    """One record; its tokens stand in ``run``, or in ``apart`` as long as those of its parent are not known.

    Attributes:
        lookup: What finds it.
        parent_call_id: Claimed parent, or None.
        is_delta: The record holds only what follows its parent.
        chain_hash: Claimed chain hash, or None.
        ended_by: How its generation ended.
        generated: Number of generated tokens.
        stored_len: Tokens that the record itself holds.
        anchored: A delta whose whole sequence was handed over, so that its parent is not needed.
        run: The whole sequence.
        apart: Prompt and generation as the record holds them, while ``run`` is None.
        links: Delta records from the last whole one up to this.
        proved: Its tokens are what it claims.
        chained: Its chain hash was computed anew, so a child's can lean on it.
        digest: Digest of its sequence, once proved.
        problem: Why it can never be a parent; empty if nothing is known against it.
    """

    lookup: IndexedCall
    parent_call_id: str | None
    is_delta: bool
    chain_hash: str | None
    ended_by: str
    generated: int
    stored_len: int
    anchored: bool = False
    run: TokenRun | None = None
    apart: tuple[TokenArray, TokenArray] | None = None
    links: int = 0
    proved: bool = False
    chained: bool = False
    digest: str = ""
    problem: str = ""

    @classmethod
    def of(cls, entry: PackedEntry) -> HeldCall:
        """Read a record, without its tokens."""
        extras, generated = entry.extras, entry.generation_token_ids.size
        return cls(
            IndexedCall.of(entry),
            entry.parent_call_id,
            entry.prompt_is_delta,
            extras.chain_hash,
            extras.ended_by,
            generated,
            entry.prompt_token_ids.size + generated,
        )

    @property
    def name(self) -> str:
        """The call id, as messages show it."""
        return f"call {self.lookup.model_call_id!r}"

    @property
    def base_id(self) -> str | None:
        """The call whose tokens come before those of the record; None if nothing is missing."""
        return self.parent_call_id if self.is_delta and not self.anchored else None

    def stored(self) -> tuple[TokenArray, TokenArray]:
        """Return prompt and generation as the record holds them."""
        if self.run is None:
            assert self.apart is not None
            return self.apart
        end, split = self.run.length, self.run.length - self.generated
        return self.run.view(end - self.stored_len, split), self.run.view(split)

    def is_record_of(self, entry: PackedEntry) -> bool:
        """Whether ``entry`` says the same of the call, tokens included (B45)."""
        other = HeldCall.of(entry)
        mine = (self.lookup, self.parent_call_id, self.is_delta, self.chain_hash)
        if mine != (other.lookup, other.parent_call_id, other.is_delta, other.chain_hash):
            return False
        pairs = zip(self.stored(), (entry.prompt_token_ids, entry.generation_token_ids), strict=True)
        return all(np.array_equal(held, given) for held, given in pairs)

    def prove(self, base: HeldCall | None) -> None:
        """Check the tokens against what the record claims, once.

        Args:
            base: The proved call of :attr:`base_id`, None if there is none.

        Raises:
            ValueError: They contradict it, or it claims too little to be checked.
        """
        if self.proved:
            return
        self.links = base.links + 1 if base else 0
        self.problem = self.problem or self._contradiction(base)
        if self.problem:
            raise ValueError(self.problem)
        self.proved = True

    def _contradiction(self, base: HeldCall | None) -> str:
        assert self.run is not None
        claimed, length = self.lookup.digest, self.lookup.cum_len
        if self.links > MAX_DELTA_LINKS:
            return too_long(self.name)
        if length is not None and length != self.run.length:
            return f"{self.name} claims {length} tokens and has {self.run.length}"
        if self.is_delta and not claimed:
            return f"{self.name} holds a delta and claims no digest, so nothing proves its tokens"
        self.chained = self._chain_follows(base)
        if self.chain_hash is not None and (not self.is_delta or (base is not None and base.chained)):
            self.digest = claimed or ""
            return "" if self.chained else f"{self.name}: its chain hash does not follow from its record"
        self.digest = digest_packed(self.run.view())
        if claimed and claimed != self.digest:
            return f"{self.name}: its tokens have the digest {self.digest}, its record claims {claimed}"
        return ""

    def _chain_follows(self, base: HeldCall | None) -> bool:
        claimed, length = self.lookup.digest, self.lookup.cum_len
        if self.chain_hash is None or self.anchored or not claimed or length is None:
            return False
        before = base.chain_hash if base else None
        return self.chain_hash == chain_hash(before, claimed, length, *self.stored())


def too_long(name: str) -> str:
    """Say that a chain has too many links to be followed."""
    return f"{name}: its chain has more than {MAX_DELTA_LINKS} delta records in a row"
