"""Calls to stage, each a function of its number: whoever knows the number knows every token and every byte of media."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.delta import PackedDelta
from gym_ray.token_id_capture.staging.digests import compute_extras_digest, hash_call
from gym_ray.token_id_capture.staging.records import StagedCallRecord

__all__ = ["media_of_call", "numbered_call"]


def numbered_call(
    number: int, tokens: int = 20, *, extras: dict[str, Any] | None = None, rollout_id: str | None = None
) -> StagedCallRecord:
    """Return a root call ``c<number>``, half prompt and half generated, with arrays for columns.

    Args:
        number: Decides everything that is not given.
        tokens: How many it has.
        extras: Its extras.
        rollout_id: Its rollout, ``r<number>`` if not given.
    """
    rng = np.random.default_rng(number)
    mask = np.arange(tokens) >= tokens // 2
    delta = PackedDelta(
        rng.integers(0, 150_000, tokens).astype(np.uint32),
        mask,
        np.where(mask, -rng.random(tokens), 0.0).astype(np.float32),
    )
    values: dict[str, Any] = {
        "rollout_id": f"r{number}" if rollout_id is None else rollout_id,
        "model_call_id": f"c{number}",
        "parent_call_id": None,
        "mode": "text",
        "weight_version": number,
        "extras_digest": compute_extras_digest(extras),
    }
    hashes = hash_call(**values, prefix=np.empty(0, np.uint32), delta=delta, parent_chain_hash=None)
    return StagedCallRecord.trusted(
        **values,
        prev_len=0,
        delta_len=tokens,
        cum_len=tokens,
        digest=hashes.digest,
        token_ids_delta=delta.token_ids,
        token_mask_delta=delta.token_mask,
        generation_log_probs_delta=delta.log_probs,
        chain_hash=hashes.chain_hash,
        cumulative_hash=hashes.cumulative_hash,
        extras=extras,
    )


def media_of_call(number: int, nbytes: int = 4096) -> dict[str, NDArray[np.uint8]]:
    """Return the attachments of a call: two arrays of bytes, of which no two calls have the same."""
    rng = np.random.default_rng([number, nbytes])
    half = nbytes // 2
    return {
        "pixels": rng.integers(0, 256, nbytes - half, dtype=np.uint8),
        "mask": rng.integers(0, 256, half, dtype=np.uint8),
    }
