"""Builds the record of one completed call: checked once, hashed once, without a Python number for a token of an array.

What cannot be built is returned as a failure, never raised: a call whose tokens cannot be staged has been served all
the same (C3, C112).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.constants import NO_EXTRAS_DIGEST
from gym_ray.token_id_capture.staging.delta import packed_delta
from gym_ray.token_id_capture.staging.digests import hash_call
from gym_ray.token_id_capture.staging.extras_digest import compute_extras_digest, copied_extras
from gym_ray.token_id_capture.staging.failures import CaptureFailure, text_of
from gym_ray.token_id_capture.staging.hash_input import float32_values, strict_floats, strict_token_ids
from gym_ray.token_id_capture.staging.records import StagedCallRecord
from gym_ray.token_id_capture.token_arrays import FloatArray, LogProbs, TokenArray, TokenIds, starts_with

__all__ = ["BuildTurns", "CallTokens", "record_of_call"]

_log = logging.getLogger(__name__)

_BUFFERS: Final = (list, np.ndarray, Column, memoryview, array)
_PROMPT: Final = "prompt_token_ids"
_OLD_MEDIA: Final = "media"


@dataclass(frozen=True, slots=True, eq=False)
class CallTokens:
    """What an engine says about one call, unchecked: lists or arrays.

    Attributes:
        prompt: Ids of the whole prompt, prefix included.
        generated: Sampled ids.
        log_probs: One for each of them.
    """

    prompt: TokenIds | Column[int]
    generated: TokenIds | Column[int]
    log_probs: LogProbs | Column[float]


class BuildTurns:
    """How many records are hashed at a time; calls overlap all the same, wherever they wait for a sink.

    Packing and hashing give the interpreter's lock up ten times a call. With many calls at once each of these is a
    switch of threads, and together they took longer than the work. So a few threads work, and one core is left to the
    sink.

    Args:
        count: Records at a time; None for one less than there are cores, and at least one.
    """

    __slots__ = ("_locks", "_next")

    def __init__(self, count: int | None = None) -> None:
        count = max(1, (os.cpu_count() or 1) - 1) if count is None else count
        self._locks = [threading.Lock() for _ in range(count)]
        self._next = itertools.count()

    def turn(self) -> threading.Lock:
        """Return the lock to hold while a record is made; made of values in memory alone, so nobody waits long."""
        return self._locks[next(self._next) % len(self._locks)]


def record_of_call(
    call: ActiveCall, tokens: CallTokens, extras: Mapping[str, Any] | None, turns: BuildTurns
) -> StagedCallRecord | CaptureFailure:
    """Return the record of a claimed call, or why there is none (C109-C112, C325).

    Args:
        call: The call.
        tokens: What the engine said.
        extras: What else the digests cover.
        turns: Gives the turn to hash.
    """
    try:
        own = _own_extras(extras)
        if isinstance(own, CaptureFailure):
            return own
        with turns.turn():
            return _record(call, tokens, *own)
    except (TypeError, ValueError, OverflowError) as error:
        return CaptureFailure("invalid_tokens", text_of(error))
    except Exception as error:  # noqa: BLE001 - nothing that goes wrong in here may cost more than the capture (C325)
        _log.exception("the record of call %s of rollout %s could not be built", call.model_call_id, call.rollout_id)
        return CaptureFailure.raised("unexpected", error)


def _own_extras(extras: Any) -> tuple[dict[str, Any] | None, str] | CaptureFailure:
    """Return a copy of the extras and its digest: the caller may change its own while these are being stored."""
    if extras is None:
        return None, NO_EXTRAS_DIGEST
    try:
        if not isinstance(extras, Mapping):
            return None, compute_extras_digest(extras)
        own = copied_extras(extras)
        if _OLD_MEDIA in own:
            raise ValueError(  # noqa: TRY301 - one place turns everything about extras into a failure
                "extras hold a summary of media under 'media', an older format that is not staged any more; "
                "give the media as attachments"
            )
        return own, compute_extras_digest(own)
    except (TypeError, ValueError, OverflowError) as error:
        return CaptureFailure("invalid_extras", text_of(error))


def _record(
    call: ActiveCall, tokens: CallTokens, extras: dict[str, Any] | None, extras_digest: str
) -> StagedCallRecord | CaptureFailure:
    admission = call.admission
    rest = _rest_of_prompt(tokens.prompt, call.prefix, admission.prev_len)
    if isinstance(rest, CaptureFailure):
        return rest
    generated, log_probs = _ids(tokens.generated, "generated_token_ids"), _log_probs(tokens.log_probs)
    delta = packed_delta(rest, generated, log_probs, 0)
    hashes = hash_call(
        rollout_id=admission.rollout_id,
        model_call_id=admission.model_call_id,
        parent_call_id=admission.parent_call_id,
        mode=admission.mode,
        weight_version=call.weight_version,
        prefix=call.prefix,
        delta=delta,
        extras_digest=extras_digest,
        parent_chain_hash=admission.parent_chain_hash,
    )
    return StagedCallRecord.trusted(
        rollout_id=admission.rollout_id,
        model_call_id=admission.model_call_id,
        parent_call_id=admission.parent_call_id,
        mode=admission.mode,
        prev_len=admission.prev_len,
        delta_len=delta.token_ids.size,
        cum_len=admission.prev_len + delta.token_ids.size,
        weight_version=call.weight_version,
        digest=hashes.digest,
        token_ids_delta=delta.token_ids,
        token_mask_delta=delta.token_mask,
        generation_log_probs_delta=delta.log_probs,
        extras_digest=extras_digest,
        chain_hash=hashes.chain_hash,
        cumulative_hash=hashes.cumulative_hash,
        extras=extras,
    )


def _rest_of_prompt(values: object, prefix: TokenArray, prev_len: int) -> TokenArray | CaptureFailure:
    """Return the ids behind the prefix, or that the prompt does not begin with it (C110).

    The prefix can be nearly all of a prompt, and is known: an array is compared with it before anything is packed.
    """
    rest = _behind(values, prefix) if prefix.size == prev_len else None
    if rest is not None:
        return _ids(rest, _PROMPT)
    prompt = _ids(values, _PROMPT)
    if prefix.size != prev_len or not starts_with(prompt, prefix):
        return CaptureFailure("prefix_mismatch", _mismatch(prompt, prefix, prev_len))
    return prompt[prev_len:]


def _behind(values: object, prefix: TokenArray) -> NDArray[Any] | None:
    """Return what an array holds behind the prefix; None where it has to be read from its first id on."""
    ids = values.array if isinstance(values, Column) else values
    if not prefix.size or type(ids) is not np.ndarray or ids.ndim != 1 or ids.dtype.kind not in "iu":
        return None
    if ids.dtype.kind == "i" and prefix.itemsize > 4:
        return None  # 64 bits with a sign and 64 without: not every numpy compares them exactly
    rest = ids[prefix.size :]
    return rest if starts_with(ids, prefix) and (rest >= 0).all() else None


def _ids(values: object, what: str) -> TokenArray:
    """Return token ids, checked; an array of the right type itself: the delta is a copy, and the rest only compared."""
    if type(values) is np.ndarray and values.dtype == np.uint32 and values.ndim == 1:
        return values
    if not isinstance(values, _BUFFERS):
        raise TypeError(f"{what}: a list or an array is needed, not {type(values).__name__}")
    if isinstance(values, np.ndarray) and values.dtype.kind not in "iu":
        raise TypeError(f"{what}: an array of {values.dtype} holds no token ids")
    return strict_token_ids(values, what)


def _log_probs(values: object) -> FloatArray:
    """Return log probabilities as float32, or those of a list as they came where float32 does not hold them."""
    if not isinstance(values, _BUFFERS):
        raise TypeError(f"generated_logprobs: a list or an array is needed, not {type(values).__name__}")
    log_probs = strict_floats(values, "generated_logprobs")
    if log_probs.dtype.kind != "f":
        raise TypeError(f"generated_logprobs: an array of {log_probs.dtype} holds no log probabilities")
    narrow = float32_values(log_probs, "generated_logprobs")
    exact = not isinstance(values, list) or np.array_equal(narrow, log_probs)
    return narrow if exact else log_probs


def _mismatch(prompt: TokenArray, prefix: TokenArray, prev_len: int) -> str:
    if prefix.size != prev_len:
        return f"the call was admitted with {prefix.size} ids of a prefix that has {prev_len}"
    common = min(prompt.size, prefix.size)
    differing = np.flatnonzero(prompt[:common] != prefix[:common])
    where = f"differs from index {differing[0]} on" if differing.size else f"ends at index {common}"
    return f"the prompt of {prompt.size} ids must begin with the prefix of {prefix.size}, and {where}"
