"""Rebuilds delta prompts, and checks every record's claims about its tokens (B101, W3, W26).

A stored digest is a claim. It is compared with the tokens that the row would hold, so that a forged or stale digest
costs a sample and never yields a sequence that the model did not see.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from gym_ray.token_id_capture.building.calls import Call, tokens_between
from gym_ray.token_id_capture.extras import chain_hash
from gym_ray.token_id_capture.reasons import DELTA_CHAIN_UNRECONSTRUCTABLE, RECORD_DIGEST_MISMATCH
from gym_ray.token_id_capture.records import MAX_DELTA_LINKS
from gym_ray.token_id_capture.token_arrays import TokenArray, digest_packed, join_tokens

__all__ = ["prove_records"]


def prove_records(calls: Mapping[str, Call], *, in_full: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Give every delta its base, and set ``proved`` on the calls whose records hold what they claim.

    A delta record with a chain hash that follows from its parent's is proved by its own tokens alone; each sequence
    that ends in such records is hashed once more as a whole. Every other record is hashed whole. So the cost is linear
    in the stored tokens, except for deltas without a chain hash, whose digests say nothing about their parts.

    Args:
        calls: Call id to call; ``base``, ``start`` and ``proved`` are set on them.
        in_full: Whether the whole sequence of a call is to be hashed, whatever proves it.

    Returns:
        A code and the call id of each call that is not proved, in the order of ``calls``.
    """
    deltas: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls.values():
        if call.record.prompt_is_delta:
            deltas[call.record.parent_call_id or ""].append(call)
    order = _rebuilt(calls.values(), deltas)
    claims = _Claims(frozenset(deltas), in_full)
    for call in order:
        call.proved = claims.hold(call)
    claims.hash_ends(order)
    return [
        (DELTA_CHAIN_UNRECONSTRUCTABLE if call.record.prompt_is_delta else RECORD_DIGEST_MISMATCH, call_id)
        for call_id, call in calls.items()
        if not call.proved
    ]


def _rebuilt(calls: Iterable[Call], deltas: Mapping[str, list[Call]]) -> list[Call]:
    """Return the calls whose prompts are known, bases before the deltas that stand on them; set the bases.

    What is left out has no whole prompt at its end: its parent is missing, or its parents run in a circle.
    """
    waiting = [(call, 0) for call in calls if not call.record.prompt_is_delta]
    waiting.reverse()
    order = []
    while waiting:
        call, links = waiting.pop()
        order.append(call)
        if links == MAX_DELTA_LINKS:
            continue
        for delta in deltas.get(call.call_id, ()):
            delta.base, delta.start = call, call.cum_len
            waiting.append((delta, links + 1))
    return order


class _Claims:
    """Whether the claims of records hold, bases first; remembers what the next record can lean on."""

    def __init__(self, bases: frozenset[str], in_full: Callable[[str], bool]) -> None:
        self._bases, self._in_full = bases, in_full
        self._chained: set[Call] = set()  # their chain hash follows from their tokens
        self._hashed: set[Call] = set()  # their whole sequence has the digest they claim
        self._last: tuple[Call, TokenArray] | None = None

    def hold(self, call: Call) -> bool:
        """Whether length and digest are those of the tokens; the base was asked about before."""
        record = call.record
        if record.cum_len is not None and record.cum_len != call.cum_len:
            return False
        by_chain = call.base in self._chained and self._follows(call)
        if by_chain and not self._in_full(call.call_id):
            self._chained.add(call)
            return True
        if not self._digest_holds(call):
            return False
        if call.call_id in self._bases and (by_chain or self._follows(call)):
            self._chained.add(call)
        return True

    def hash_ends(self, order: Iterable[Call]) -> None:
        """Hash each sequence of which so far only the parts are proved; take the proof from calls that fail."""
        proved = [call for call in order if call.proved]
        children = Counter(call.base for call in proved if call.base is not None)
        ends = [call for call in proved if not children[call]]
        while ends:
            call = ends.pop()
            if self._whole_holds(call):
                continue
            call.proved = False
            base = call.base
            if base is not None:
                children[base] -= 1
                if not children[base] and base.proved:
                    ends.append(base)

    def _whole_holds(self, call: Call) -> bool:
        while call.record.digest is None and call.base is not None:
            call = call.base  # it claims nothing, so it rests on what it continues
        return call in self._hashed or call not in self._chained or self._digest_holds(call)

    def _follows(self, call: Call) -> bool:
        record = call.record
        if record.extras.chain_hash is None:
            return False
        return record.extras.chain_hash == chain_hash(
            None if call.base is None else call.base.record.extras.chain_hash,
            record.digest or "",
            call.cum_len,
            record.prompt_token_ids,
            record.generation_token_ids,
        )

    def _digest_holds(self, call: Call) -> bool:
        claimed = call.record.digest
        if claimed is None:  # nothing is claimed; a delta then rests on its base
            return call.base is None or call.base.proved
        if digest_packed(self._sequence(call)) != claimed:
            return False
        self._hashed.add(call)
        return True

    def _sequence(self, call: Call) -> TokenArray:
        if self._last is not None and call.base is self._last[0]:
            record = call.record
            tokens = join_tokens([self._last[1], record.prompt_token_ids, record.generation_token_ids])
        else:
            tokens = tokens_between(call, 0, call.cum_len)
        self._last = (call, tokens)
        return tokens
