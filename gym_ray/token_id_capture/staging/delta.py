"""What a call adds to its parent's tokens: the rest of its prompt, carried, and what was generated (C95, C96).

The delta owns its memory. A view of the prompt would keep a hundred thousand tokens alive for the sake of five hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.token_arrays import FloatArray, TokenArray

__all__ = ["PackedDelta", "build_staging_delta", "packed_delta"]


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """The columns of one delta, all of one length and read-only.

    Attributes:
        token_ids: ``uint32[n]``, or ``uint64[n]`` where an id needs it.
        token_mask: ``bool[n]``; true for a generated token.
        log_probs: ``float32[n]``, or ``float64[n]`` where they came so; 0 for a carried token.
    """

    token_ids: TokenArray
    token_mask: NDArray[np.bool_]
    log_probs: FloatArray


def build_staging_delta(
    prompt_token_ids: list[int], generated_token_ids: list[int], generated_log_probs: list[float], prev_len: int
) -> tuple[list[int], list[float], list[float]]:
    """Return ids, mask and log probabilities of a delta as new lists (C95). Values are not checked.

    Raises:
        TypeError: The prompt or the generation is no list.
        ValueError: ``prev_len`` is negative or beyond the prompt, ids and log probabilities differ in number, or
            nothing is left (C96).
    """
    for values in (prompt_token_ids, generated_token_ids, generated_log_probs):
        if not isinstance(values, list):
            raise TypeError(f"a delta is built of lists, not of {type(values).__name__}")
    carried = _carried(len(prompt_token_ids), len(generated_token_ids), len(generated_log_probs), prev_len)
    return (
        prompt_token_ids[prev_len:] + generated_token_ids,
        [0.0] * carried + [1.0] * len(generated_token_ids),
        [0.0] * carried + generated_log_probs,
    )


def packed_delta(prompt: TokenArray, generated: TokenArray, log_probs: FloatArray, prev_len: int) -> PackedDelta:
    """Return the delta as arrays of its own (C95); ids and log probabilities keep their types. Values are not checked.

    Raises:
        ValueError: As :func:`build_staging_delta`.
    """
    carried = _carried(prompt.size, generated.size, log_probs.size, prev_len)
    ids = cast("TokenArray", np.concatenate((prompt[prev_len:], generated)))
    mask = np.zeros(ids.size, np.bool_)
    mask[carried:] = True
    probs = cast("FloatArray", np.zeros(ids.size, log_probs.dtype))
    probs[carried:] = log_probs
    for column in (ids, mask, probs):
        column.flags.writeable = False
    return PackedDelta(ids, mask, probs)


def _carried(prompt: int, generated: int, log_probs: int, prev_len: int) -> int:
    """Return how many tokens of the prompt the delta carries."""
    if not 0 <= prev_len <= prompt:
        raise ValueError(f"prev_len is {prev_len}, the prompt has {prompt} tokens")
    if generated != log_probs:
        raise ValueError(f"{generated} generated tokens have {log_probs} log probs")
    if prompt - prev_len + generated == 0:
        raise ValueError("the call adds no token to its parent")
    return prompt - prev_len
