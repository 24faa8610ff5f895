"""Token records as a correct writer makes them, with the true tokens of each call, for tests that damage records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gym_ray.token_id_capture.extras import chain_hash
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_token_ids

__all__ = ["TokenRollout"]


class TokenRollout:
    """The calls of one rollout, added one after the other.

    Attributes:
        records: Call id to its record as a JSON object.
        sequences: Call id to every token that the model saw and sampled up to the end of the call.
        sampled: Call id to one truth value a token of that sequence: whether the policy sampled it.
    """

    def __init__(self, rollout_id: str = "r0", *, deltas: bool = True, chain_hashes: bool = True) -> None:
        self.rollout_id = rollout_id
        self.records: dict[str, dict[str, Any]] = {}
        self.sequences: dict[str, list[int]] = {}
        self.sampled: dict[str, list[bool]] = {}
        self._deltas = deltas
        self._chain_hashes = chain_hashes

    def call(
        self,
        call_id: str,
        added: Sequence[int],
        generation: Sequence[int],
        parent: str | None = None,
        *,
        delta: bool | None = None,
        gym_ray: dict[str, Any] | None = None,
        **members: Any,
    ) -> dict[str, Any]:
        """Record a call and return its record, which may be changed.

        Args:
            call_id: The call.
            added: Prompt tokens behind the parent's sequence; the whole prompt without a parent.
            generation: Sampled tokens; their log probabilities are -1/2, -1/4, ... in turn.
            parent: The call it continues; without one it is a root.
            delta: Whether the record holds only ``added``; by default as the rollout says, for calls with a parent.
            gym_ray: Members of the record's own extra.
            **members: Any other member of the record.
        """
        before = self.sequences[parent] if parent is not None else []
        is_delta = parent is not None and (self._deltas if delta is None else delta)
        stored = list(added) if is_delta else [*before, *added]
        whole = [*before, *added, *generation]
        provenance = [*(False for _ in added), *(True for _ in generation)]
        self.sequences[call_id] = whole
        self.sampled[call_id] = [*self.sampled[parent], *provenance] if parent is not None else provenance
        digest = digest_packed(pack_token_ids(whole))
        extra = dict(gym_ray or {})
        if self._chain_hashes:
            hash_before = self.records[parent]["gym_ray"]["chain_hash"] if is_delta and parent else None
            columns = pack_token_ids(stored), pack_token_ids(generation)
            extra["chain_hash"] = chain_hash(hash_before, digest, len(whole), *columns)
        self.records[call_id] = {
            **_record(self.rollout_id, call_id, stored, generation),
            "created_at": float(len(self.records)),
            "parent_call_id": parent,
            "parent_resolution": "root" if parent is None else "resolved",
            "prompt_is_delta": is_delta,
            "cum_len": len(whole),
            "digest": digest,
            **({"gym_ray": extra} if extra else {}),
            **members,
        }
        return self.records[call_id]

    def entries(self) -> list[TokenEntry]:
        """Return the records with lists."""
        return [TokenEntry.model_validate(record) for record in self.records.values()]

    def packed(self) -> list[PackedEntry]:
        """Return the records with arrays of their own."""
        return [PackedEntry.of_json(record) for record in self.records.values()]

    def packed_in_one_buffer(self) -> list[PackedEntry]:
        """Return the records with arrays that lie in one buffer, in the order of the calls."""
        records = self.packed()
        tokens = _frozen([part for one in records for part in (one.prompt_token_ids, one.generation_token_ids)])
        log_probs = _frozen([one.generation_log_probs for one in records])
        placed, at, log_prob_at = [], 0, 0
        for one in records:
            middle = at + one.prompt_token_ids.size
            end = middle + one.generation_token_ids.size
            log_prob_end = log_prob_at + one.generation_log_probs.size
            own = tokens[at:middle], tokens[middle:end], log_probs[log_prob_at:log_prob_end]
            placed.append(PackedEntry(*own, one.rest))
            at, log_prob_at = end, log_prob_end
        return placed


def _record(rollout_id: str, call_id: str, prompt: list[int], generation: Sequence[int]) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "model_call_id": call_id,
        "prompt_token_ids": prompt,
        "generation_token_ids": list(generation),
        "generation_log_probs": [-(0.5 ** (at % 20 + 1)) for at in range(len(generation))],
        "output_items": [{"type": "message", "role": "assistant", "content": f"said by {call_id}"}],
        "token_item_index": 0,
    }


def _frozen(parts: Sequence[Any]) -> Any:
    joined = np.concatenate(parts)
    joined.flags.writeable = False
    return joined
