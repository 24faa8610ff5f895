"""Token records as a model server makes them, without one: a conversation that grows, and its calls one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gym_ray.token_id_capture.extras import EXTRAS_MEMBER, CallExtras, chain_hash
from gym_ray.token_id_capture.lineage import LineageMatch, stamp_continuation
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, stamp_lineage
from gym_ray.token_id_capture.token_arrays import join_tokens, pack_token_ids

__all__ = ["ScriptedConversation", "assistant", "scripted_call", "user"]


def user(text: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """Return a model's message, as an output item."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def scripted_call(
    model_call_id: str,
    items: Sequence[object],
    output: Sequence[dict[str, Any]],
    prompt: Sequence[int],
    generation: Sequence[int],
    *,
    parent: LineageMatch | None = None,
    rollout_id: str = "r0",
    delta: bool = True,
    chained: bool = True,
) -> TokenEntry:
    """Return the complete record of a call.

    Args:
        model_call_id: The call.
        items: Items of its request.
        output: Items of its answer.
        prompt: What follows the parent's tokens; the whole prompt without one.
        generation: Sampled tokens; each has the log probability -0.5.
        parent: Its parent.
        rollout_id: Its rollout.
        delta: Store only what follows the parent.
        chained: Give it a chain hash, if its parent has one or it stores its whole prompt.
    """
    before = [] if parent is None else [parent.tokens]
    cumulative = join_tokens([*before, pack_token_ids(prompt), pack_token_ids(generation)])
    is_delta = delta and parent is not None
    stored = list(prompt) if is_delta else cumulative[: cumulative.size - len(generation)].tolist()
    status = ParentResolutionStatus.RESOLVED if parent else ParentResolutionStatus.ROOT
    entry = TokenEntry(
        rollout_id=rollout_id,
        model_call_id=model_call_id,
        prompt_token_ids=stored,
        generation_token_ids=list(generation),
        generation_log_probs=[-0.5] * len(generation),
        output_items=list(output),
        parent_call_id=parent.model_call_id if parent else None,
        parent_resolution=status,
        prompt_is_delta=is_delta,
    )
    stamp_lineage(entry, entry.parent_call_id, status, cumulative)
    stamp_continuation(entry, items)
    above = parent.chain_hash if is_delta and parent else None
    if chained and not (is_delta and above is None):
        assert entry.digest is not None
        bound = chain_hash(above, entry.digest, cumulative.size, pack_token_ids(stored), pack_token_ids(generation))
        extras = replace(CallExtras.of((entry.model_extra or {}).get(EXTRAS_MEMBER)), chain_hash=bound)
        setattr(entry, EXTRAS_MEMBER, extras.to_json())
    return entry


class ScriptedConversation:
    """A chain of calls ``c0``, ``c1``, … in which each continues the one before.

    Args:
        rollout_id: Their rollout.
        delta: Store only what follows the parent.
        chained: Give records chain hashes.
        tokens_per_turn: New prompt tokens of a call, and as many generated ones.

    Attributes:
        items: Items of the next request.
        entries: Records so far.
        tokens: Tokens of the whole conversation so far.
    """

    def __init__(
        self, rollout_id: str = "r0", *, delta: bool = True, chained: bool = True, tokens_per_turn: int = 3
    ) -> None:
        self.items: list[Any] = [user("question 0")]
        self.entries: list[TokenEntry] = []
        self.tokens: list[int] = []
        self._rollout_id, self._delta, self._chained, self._size = rollout_id, delta, chained, tokens_per_turn
        self._last: LineageMatch | None = None

    def call(self) -> TokenEntry:
        """Make the next call, append what its client would send next to ``items``, and return its record."""
        turn = len(self.entries)
        start = turn * 2 * self._size
        prompt, generation = range(start, start + self._size), range(start + self._size, start + 2 * self._size)
        output = [assistant(f"answer {turn}")]
        entry = scripted_call(
            f"c{turn}",
            self.items,
            output,
            prompt,
            generation,
            parent=self._last,
            rollout_id=self._rollout_id,
            delta=self._delta,
            chained=self._chained,
        )
        self.tokens += [*prompt, *generation]
        assert entry.digest is not None
        self._last = LineageMatch(
            entry.model_call_id,
            pack_token_ids(self.tokens),
            entry.digest,
            generated=self._size,
            chain_hash=CallExtras.of((entry.model_extra or {}).get(EXTRAS_MEMBER)).chain_hash,
        )
        self.items = [*self.items, *output, user(f"question {turn + 1}")]
        self.entries.append(entry)
        return entry
