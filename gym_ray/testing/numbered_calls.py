"""Calls to stage, each a function of its number: whoever knows the number knows every token and every byte of media."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.testing.staged_chains import staged_call
from gym_ray.token_id_capture.staging.records import StagedCallRecord

__all__ = ["media_of_call", "numbered_call"]


def numbered_call(
    number: int, tokens: int = 20, *, extras: dict[str, Any] | None = None, rollout_id: str | None = None
) -> StagedCallRecord:
    """Return a root call ``c<number>``, half prompt and half generated.

    Args:
        number: Decides everything that is not given.
        tokens: How many it has.
        extras: Its extras.
        rollout_id: Its rollout, ``r<number>`` if not given.
    """
    rng = np.random.default_rng(number)
    carried = tokens // 2
    ids = rng.integers(0, 150_000, tokens).astype(np.uint32)
    return staged_call(
        f"r{number}" if rollout_id is None else rollout_id,
        f"c{number}",
        carried=ids[:carried],
        generated=ids[carried:],
        log_probs=-rng.random(tokens)[carried:],
        extras=extras,
        weight_version=number,
    )


def media_of_call(number: int, nbytes: int = 4096) -> dict[str, NDArray[np.uint8]]:
    """Return the attachments of a call: two arrays of bytes, of which no two calls have the same."""
    rng = np.random.default_rng([number, nbytes])
    half = nbytes // 2
    return {
        "pixels": rng.integers(0, 256, nbytes - half, dtype=np.uint8),
        "mask": rng.integers(0, 256, half, dtype=np.uint8),
    }
