"""Builds the record of one completed call: checked once, hashed once, without a Python number for a token of an array.

What cannot be built is returned as a failure, never raised: a call whose tokens cannot be staged has been served all
the same (C3, C112).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.delta import packed_delta
from gym_ray.token_id_capture.staging.digests import hash_call
from gym_ray.token_id_capture.staging.extras_digest import compute_extras_digest
from gym_ray.token_id_capture.staging.failures import CaptureFailure
from gym_ray.token_id_capture.staging.hash_input import float32_values, strict_floats, strict_token_ids
from gym_ray.token_id_capture.staging.records import StagedCallRecord
from gym_ray.token_id_capture.token_arrays import FloatArray, LogProbs, TokenArray, TokenIds, starts_with

__all__ = ["CallTokens", "record_of_call"]

_log = logging.getLogger(__name__)

_BUFFERS: Final = (list, np.ndarray, Column, memoryview, array)
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


def record_of_call(
    call: ActiveCall, tokens: CallTokens, extras: Mapping[str, Any] | None
) -> StagedCallRecord | CaptureFailure:
    """Return the record of a claimed call, or why there is none (C109-C112, C325).

    Args:
        call: The call.
        tokens: What the engine said.
        extras: What else the digests cover.
    """
    try:
        found = _extras_digest(extras)
        return found if isinstance(found, CaptureFailure) else _record(call, tokens, extras, found)
    except (TypeError, ValueError, OverflowError) as error:
        return CaptureFailure("invalid_tokens", str(error))
    except Exception as error:  # noqa: BLE001 - nothing that goes wrong in here may cost more than the capture (C325)
        _log.exception("the record of call %s of rollout %s could not be built", call.model_call_id, call.rollout_id)
        return CaptureFailure("unexpected", f"{type(error).__name__}: {error}")


def _extras_digest(extras: Mapping[str, Any] | None) -> str | CaptureFailure:
    try:
        if isinstance(extras, Mapping) and _OLD_MEDIA in extras:
            raise ValueError(  # noqa: TRY301 - one place turns everything about extras into a failure
                "extras hold a summary of media under 'media', an older format that is not staged any more; "
                "give the media as attachments"
            )
        return compute_extras_digest(extras)
    except (TypeError, ValueError, OverflowError) as error:
        return CaptureFailure("invalid_extras", str(error))


def _record(
    call: ActiveCall, tokens: CallTokens, extras: Mapping[str, Any] | None, extras_digest: str
) -> StagedCallRecord | CaptureFailure:
    admission = call.admission
    prompt = _ids(tokens.prompt, "prompt_token_ids")
    if call.prefix.size != admission.prev_len or not starts_with(prompt, call.prefix):
        return CaptureFailure("prefix_mismatch", _mismatch(prompt, call.prefix, admission.prev_len))
    generated, log_probs = _ids(tokens.generated, "generated_token_ids"), _log_probs(tokens.log_probs)
    delta = packed_delta(prompt, generated, log_probs, admission.prev_len)
    hashes = hash_call(
        rollout_id=admission.rollout_id,
        model_call_id=admission.model_call_id,
        parent_call_id=admission.parent_call_id,
        mode=admission.mode,
        weight_version=call.weight_version,
        prefix=prompt[: admission.prev_len],
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


def _ids(values: object, what: str) -> TokenArray:
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
