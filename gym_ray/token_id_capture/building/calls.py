"""The calls of one rollout while its chains are built: their records, and where their tokens lie, without copying them.

A record may hold its whole prompt or only what follows its parent. Both are handled alike: a call holds a part of its
sequence, and everything before that is held by its base. Records are proved and linked elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gym_ray.token_id_capture.packed import PackedEntry, packed_record
from gym_ray.token_id_capture.reasons import DUPLICATE_CALL_ID_CONFLICT, UNPACKABLE_RECORD
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens, starts_with

__all__ = ["Call", "Gathered", "continues", "gather", "packed_record", "tokens_between"]


@dataclass(slots=True, eq=False)
class Call:
    """One recorded call.

    Attributes:
        record: What was stored.
        base: For a delta record, the call whose whole sequence comes before the stored prompt.
        start: Tokens before the stored prompt.
        proved: Whether every claim of the record about its sequence was found to hold.
        parent: The call that this one continues, if that is proved.
        root: The first call on the way here; None stands for the call itself.
        extended: Whether a call continues this one.
        delivered: Generated tokens of this call and of all it continues.
    """

    record: PackedEntry
    base: Call | None = None
    start: int = 0
    proved: bool = False
    parent: Call | None = None
    root: Call | None = None
    extended: bool = False
    delivered: int = 0

    @property
    def call_id(self) -> str:
        """The id of the model call."""
        return self.record.model_call_id

    @property
    def generated(self) -> int:
        """Number of tokens that the policy sampled in this call."""
        return int(self.record.generation_token_ids.size)

    @property
    def prompt_len(self) -> int:
        """Length of the whole prompt, in tokens."""
        return self.start + int(self.record.prompt_token_ids.size)

    @property
    def cum_len(self) -> int:
        """Length of prompt and generation, in tokens."""
        return self.prompt_len + self.generated


def tokens_between(call: Call, start: int, end: int) -> TokenArray:
    """Return tokens ``start`` to ``end`` of a call's sequence: a view where they lie in one buffer, else one copy."""
    parts: list[TokenArray] = []
    node: Call | None = call
    while node is not None and start < end:
        for values, at in (
            (node.record.generation_token_ids, node.prompt_len),
            (node.record.prompt_token_ids, node.start),
        ):
            low, high = max(start - at, 0), min(end - at, values.size)
            if low < high:
                parts.append(values if high - low == values.size else values[low:high])
        node = None if start >= node.start else node.base
    parts.reverse()
    return join_tokens(parts)


def continues(call: Call, earlier: Call) -> bool:
    """Whether the prompt of ``call`` starts with the whole sequence of ``earlier``, token for token.

    A delta record continues its base by the way it was rebuilt; a whole prompt is compared with the recorded tokens
    themselves, never with what a record says about them (W26).
    """
    if call.base is earlier:
        return True
    if earlier.cum_len > call.prompt_len:
        return False
    prompt = call.record.prompt_token_ids if call.base is None else tokens_between(call, 0, call.prompt_len)
    node: Call | None = earlier
    while node is not None:
        record = node.record
        if not starts_with(prompt[node.start :], record.prompt_token_ids):
            return False
        if not starts_with(prompt[node.prompt_len :], record.generation_token_ids):
            return False
        node = node.base
    return True


@dataclass(slots=True)
class Gathered:
    """The records of a rollout, one a call, and the calls whose records are no good.

    Attributes:
        calls: Call id to call, in the order given.
        failures: A code for each record that cannot be used or that contradicts an earlier one, with its call id.
    """

    calls: dict[str, Call] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)


def gather(entries: Sequence[TokenEntry | PackedEntry]) -> Gathered:
    """Keep the first record of each call; a later one with other tokens is a conflict, with equal ones nothing (B100).

    A record whose tokens no array can hold is left out and named (B150).
    """
    found = Gathered()
    for entry in entries:
        try:
            record = packed_record(entry)
        except ValueError:
            found.failures.append((UNPACKABLE_RECORD, entry.model_call_id))
            continue
        known = found.calls.get(record.model_call_id)
        if known is None:
            found.calls[record.model_call_id] = Call(record)
        elif not _same_tokens(known.record, record):
            found.failures.append((DUPLICATE_CALL_ID_CONFLICT, record.model_call_id))
    return found


def _same_tokens(one: PackedEntry, other: PackedEntry) -> bool:
    return (
        np.array_equal(one.prompt_token_ids, other.prompt_token_ids)
        and np.array_equal(one.generation_token_ids, other.generation_token_ids)
        and np.array_equal(one.generation_log_probs, other.generation_log_probs)
    )
