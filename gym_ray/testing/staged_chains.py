"""Records of staged calls as a worker makes them, and chains of them, for tests of what keeps and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gym_ray.token_id_capture.staging import (
    CaptureAdmission,
    RolloutTokenCapture,
    StagedCallRecord,
    StageResult,
    default_staging_key,
)
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds, join_tokens, pack_token_ids

__all__ = ["KeepingSink", "staged_call", "staged_chain"]


class KeepingSink:
    """Says yes to every record and keeps it in a list."""

    def __init__(self) -> None:
        self.records: list[StagedCallRecord] = []
        self.attachments: list[Mapping[str, Any] | None] = []

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Keep the record under its default key."""
        self.records.append(record)
        self.attachments.append(attachments)
        return StageResult(ok=True, staging_key=default_staging_key(record.rollout_id, record.model_call_id))


def staged_call(
    rollout_id: str = "r0",
    model_call_id: str = "c0",
    *,
    carried: TokenIds = (1, 2, 3),
    generated: TokenIds = (4, 5),
    log_probs: LogProbs | None = None,
    extras: Mapping[str, Any] | None = None,
    ancestors: Sequence[StagedCallRecord] = (),
    weight_version: int = 1,
) -> StagedCallRecord:
    """Return the record of a call.

    Args:
        rollout_id: Its rollout.
        model_call_id: Its id.
        carried: What its prompt adds to the tokens of its ancestors.
        generated: Sampled ids.
        log_probs: Theirs; None gives each a quarter less than the one before.
        extras: What the digests cover besides.
        ancestors: Records from the root to the parent; none makes it a root.
        weight_version: Which weights it ran on.
    """
    prefix = join_tokens([record.token_ids_delta.array for record in ancestors])
    parent = ancestors[-1] if ancestors else None
    admission = CaptureAdmission(
        rollout_id=rollout_id,
        model_call_id=model_call_id,
        parent_call_id=parent and parent.model_call_id,
        prev_len=prefix.size,
        mode="token_in" if parent else "text",
        staging_chain=[record.staging_key for record in ancestors],
        parent_chain_hash=parent and parent.chain_hash,
    )
    sink = KeepingSink()
    capture = RolloutTokenCapture(sink, lambda: weight_version)
    call = capture.begin_call(admission, prefix_token_ids=prefix)
    sampled = pack_token_ids(generated)
    coords = capture.complete_call(
        call,
        prompt_token_ids=join_tokens([prefix, pack_token_ids(carried)]),
        generated_token_ids=sampled,
        generated_logprobs=-np.arange(1, sampled.size + 1) / 4 if log_probs is None else log_probs,
        extras=extras,
    )
    if coords.disposition != "staged":
        raise ValueError(f"no record can be made of these tokens: {capture.failures}")
    return sink.records[0]


def staged_chain(rollout_id: str = "r0", calls: int = 3, *, tokens: int = 3) -> list[StagedCallRecord]:
    """Return the records of a root and of calls that each continue the one before, all with tokens of their own."""
    chain: list[StagedCallRecord] = []
    for number in range(calls):
        first = 10 + number * 2 * tokens
        carried, generated = range(first, first + tokens), range(first + tokens, first + 2 * tokens)
        chain.append(
            staged_call(rollout_id, f"c{number}", carried=carried, generated=generated, ancestors=tuple(chain))
        )
    return chain
