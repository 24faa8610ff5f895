"""Token records spelled out in a few numbers, and a source in memory that says what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, cumulative_tokens, stamp_lineage

__all__ = ["FakeTokenSource", "call_entry"]


def call_entry(
    call_id: str,
    prompt: Sequence[int],
    generation: Sequence[int],
    parent: TokenEntry | None = None,
    *,
    status: ParentResolutionStatus | None = None,
    rollout_id: str = "3-1",
    **members: Any,
) -> TokenEntry:
    """Return the stamped record of one call that said its own id.

    Args:
        call_id: Its id.
        prompt: Tokens of the whole prompt, without those of ``parent``.
        generation: Sampled tokens; each has a log probability of its own.
        parent: The recorded call that this one continues, with a whole prompt.
        status: What was decided about the parent; by default resolved with a parent and root without.
        rollout_id: The rollout.
        members: Further members of the record.
    """
    content = [{"type": "output_text", "text": call_id}]
    entry = TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        prompt_token_ids=[*(cumulative_tokens(parent) if parent else []), *prompt],
        generation_token_ids=list(generation),
        generation_log_probs=[-0.25 * (place + 1) for place in range(len(generation))],
        **{"output_items": [{"type": "message", "role": "assistant", "content": content}], "token_item_index": 0}
        | members,
    )
    decided = status or (ParentResolutionStatus.RESOLVED if parent else ParentResolutionStatus.ROOT)
    return stamp_lineage(entry, parent.model_call_id if parent else None, decided)


class FakeTokenSource:
    """A source with one rollout's records; its snapshot is ``snap``, version 7.

    Args:
        entries: What ``freeze`` returns.
        incomplete: Whether the snapshot says that something was lost.
        problems: What it says is wrong.
        failure: What ``freeze`` and ``drop`` raise instead.

    Attributes:
        froze: Rollout ids, as asked for.
        dropped: Rollout id, snapshot id and version, as asked for.
        droppable: What ``drop`` answers.
    """

    def __init__(
        self,
        entries: Sequence[TokenEntry | PackedEntry] = (),
        *,
        incomplete: bool = False,
        problems: Sequence[CaptureProblem] = (),
        failure: Exception | None = None,
    ) -> None:
        self._entries, self._incomplete, self._problems = entries, incomplete, problems
        self.failure = failure
        self.froze: list[str] = []
        self.dropped: list[tuple[str, str, int]] = []
        self.droppable = True

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Return the snapshot, or raise."""
        self.froze.append(rollout_id)
        if self.failure is not None:
            raise self.failure
        return TokenCaptureSnapshot(rollout_id, self._entries, self._incomplete, "snap", 7, self._problems)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Say whether it is gone, or raise."""
        self.dropped.append((rollout_id, snapshot_id, version))
        if self.failure is not None:
            raise self.failure
        return self.droppable

    async def close(self) -> None:
        """Hold nothing."""
