"""The hashes of a staged call: of the tokens so far, of the chain of deltas, and of the record (C80-C88).

They are the wire's: another implementation computes the same 64 digits from the same values, whatever these are held
in. They are not the digests of token records, and never compare equal to them (C12).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.call_shape import length_problem, link_problem
from gym_ray.token_id_capture.staging.constants import (
    CALL_DIGEST_DOMAIN,
    CHAIN_HASH_DOMAIN,
    EXTRAS_DIGEST_VERSION,
    PREFIX_HASH_DOMAIN,
    STAGING_DIGEST_VERSION,
    STAGING_SCHEMA_VERSION,
    CallMode,
)
from gym_ray.token_id_capture.staging.delta import PackedDelta
from gym_ray.token_id_capture.staging.extras_digest import compute_extras_digest
from gym_ray.token_id_capture.staging.hash_input import (
    checked_digest,
    float32_values,
    read_u64,
    strict_floats,
    strict_token_ids,
    u64,
    update_with_floats,
    update_with_ids,
)
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenArray, TokenIds

__all__ = [
    "CallHashes",
    "compute_chain_hash",
    "compute_extras_digest",
    "compute_prefix_hash",
    "compute_staging_digest",
    "hash_call",
]

_VERSIONS: Final = bytes([STAGING_SCHEMA_VERSION, STAGING_DIGEST_VERSION, EXTRAS_DIGEST_VERSION])


@dataclass(frozen=True, slots=True)
class CallHashes:
    """The three hashes of one staged call, each 64 lowercase hex digits."""

    digest: str
    chain_hash: str
    cumulative_hash: str


def compute_prefix_hash(token_ids: TokenIds) -> str:
    """Return the hash of a whole token sequence, however it was split into calls (C81).

    Args:
        token_ids: A list or tuple of exact ``int``, or a one-dimensional integer array.

    Raises:
        ValueError: An id is no exact integer from 0 to 2**64 - 1 (C80).
    """
    ids = strict_token_ids(token_ids)
    state = _prefix_state(ids.size)
    update_with_ids((state,), ids)
    return str(state.hexdigest())


def compute_chain_hash(parent_chain_hash: str | None, token_ids_delta: TokenIds) -> str:
    """Return the hash of a call's delta on top of its parent's chain hash, None for a root (C82).

    Raises:
        ValueError: The parent's hash is not 64 lowercase hex digits, or an id is refused as in
            :func:`compute_prefix_hash`.
    """
    ids = strict_token_ids(token_ids_delta)
    state = _chain_state(parent_chain_hash, ids.size)
    update_with_ids((state,), ids)
    return str(state.hexdigest())


def compute_staging_digest(
    *,
    rollout_id: str,
    model_call_id: str,
    parent_call_id: str | None,
    mode: CallMode,
    prev_len: int,
    delta_len: int,
    cum_len: int,
    weight_version: int,
    token_ids_delta: TokenIds,
    token_mask_delta: LogProbs,
    generation_log_probs_delta: LogProbs,
    extras_digest: str,
    chain_hash: str,
    cumulative_hash: str,
    schema_version: int = STAGING_SCHEMA_VERSION,
    digest_version: int = STAGING_DIGEST_VERSION,
    extras_digest_version: int = EXTRAS_DIGEST_VERSION,
) -> str:
    """Check a staged call's values against each other and return their digest (C85-C89).

    Lists and tuples hold exact ``int`` and ``float``; arrays are read without making Python numbers.

    Raises:
        TypeError: A hash or id is missing.
        ValueError: Any value that C87 refuses; it is named. Text that UTF-8 cannot encode is one of them.
    """
    _check_versions(schema_version, digest_version, extras_digest_version)
    columns = _Columns.checked(token_ids_delta, token_mask_delta, generation_log_probs_delta)
    head = _head(rollout_id, model_call_id, parent_call_id, mode, (prev_len, delta_len, cum_len, weight_version))
    columns.require_length(delta_len)
    state = hashlib.sha256(head)
    columns.feed_ids_to(state)
    columns.feed_floats_to(state)
    return _finished(
        state,
        checked_digest(extras_digest, "extras_digest"),
        checked_digest(chain_hash, "chain_hash"),
        checked_digest(cumulative_hash, "cumulative_hash"),
    )


def hash_call(
    *,
    rollout_id: str,
    model_call_id: str,
    parent_call_id: str | None,
    mode: CallMode,
    weight_version: int,
    prefix: TokenArray,
    delta: PackedDelta,
    extras_digest: str,
    parent_chain_hash: str | None,
) -> CallHashes:
    """Return the three hashes of a call whose parent's tokens are ``prefix``, each token encoded once.

    The same values as :func:`compute_chain_hash`, :func:`compute_prefix_hash` over prefix and delta, and
    :func:`compute_staging_digest` with these two give, for less than their sum.

    Args:
        rollout_id: As in the record, like all that is not named here.
        model_call_id: As above.
        parent_call_id: As above.
        mode: As above.
        weight_version: As above.
        prefix: All tokens before the delta: ``uint32[prev_len]`` or ``uint64[prev_len]``, empty for a root.
        delta: The columns of the call, made of checked values: they are not looked at once more.
        extras_digest: Digest of the extras.
        parent_chain_hash: The parent's chain hash, None for a root.

    Raises:
        TypeError: As :func:`compute_staging_digest`.
        ValueError: As :func:`compute_staging_digest`.
    """
    columns = _Columns.of(delta)
    ids, prev_len = columns.ids, prefix.size
    head = _head(
        rollout_id, model_call_id, parent_call_id, mode, (prev_len, ids.size, prev_len + ids.size, weight_version)
    )
    extras = checked_digest(extras_digest, "extras_digest")
    call, chain, whole = (
        hashlib.sha256(head),
        _chain_state(parent_chain_hash, ids.size),
        _prefix_state(prev_len + ids.size),
    )
    update_with_ids((whole,), prefix)
    columns.feed_ids_to(call, chain, whole)
    columns.feed_floats_to(call)
    return CallHashes(_finished(call, extras, chain.digest(), whole.digest()), chain.hexdigest(), whole.hexdigest())


@dataclass(frozen=True, slots=True)
class _Columns:
    """The three columns of a delta, checked against each other (C41, C42)."""

    ids: TokenArray
    mask: NDArray[Any]
    log_probs: NDArray[Any]

    @classmethod
    def checked(cls, ids: object, mask: object, log_probs: object) -> _Columns:
        packed = strict_token_ids(ids, "token_ids_delta")
        carried, probs = strict_floats(mask, "token_mask_delta"), strict_floats(log_probs, "generation_log_probs_delta")
        if probs.dtype.kind != "f":
            raise ValueError(f"generation_log_probs_delta holds floats, not an array of {probs.dtype}")
        if not packed.size == carried.size == probs.size:
            raise ValueError(
                f"columns differ in length: {packed.size} ids, {carried.size} mask values, {probs.size} log probs"
            )
        generated = _generated(carried)
        stray = (probs != 0) & ~generated
        narrow = float32_values(probs, "generation_log_probs_delta")
        if stray.any():
            at = int(np.argmax(stray))
            raise ValueError(
                f"generation_log_probs_delta: {probs[at]} at index {at} belongs to a token that was not generated"
            )
        return cls(packed, carried, narrow)

    @classmethod
    def of(cls, delta: PackedDelta) -> _Columns:
        """Return the columns of a delta, which are right."""
        probs = delta.log_probs
        narrow = probs if probs.dtype == np.float32 else float32_values(probs, "generation_log_probs_delta")
        return cls(delta.token_ids, delta.token_mask, narrow)

    def require_length(self, delta_len: int) -> None:
        if delta_len != self.ids.size:
            raise ValueError(f"delta_len is {delta_len}, the columns hold {self.ids.size} tokens")

    def feed_ids_to(self, call: Any, *others: Any) -> None:
        """Feed the ids to the digest of the call, with both of its lengths, and to other states without any."""
        call.update(u64(8 + 8 * self.ids.size) + u64(self.ids.size))
        update_with_ids((call, *others), self.ids)

    def feed_floats_to(self, call: Any) -> None:
        for values in (self.mask, self.log_probs):
            call.update(u64(8 + 4 * values.size) + u64(values.size))
            update_with_floats(call, values)


def _generated(mask: NDArray[Any]) -> NDArray[np.bool_]:
    if mask.dtype.kind == "b":
        return mask
    generated: NDArray[np.bool_] = mask == 1
    odd = ~(generated | (mask == 0))
    if odd.any():
        at = int(np.argmax(odd))
        raise ValueError(f"token_mask_delta: {mask[at]} at index {at} is neither 0.0 nor 1.0")
    return generated


def _head(
    rollout_id: str, model_call_id: str, parent_call_id: str | None, mode: CallMode, counts: tuple[int, int, int, int]
) -> bytes:
    """Check everything that precedes the columns and return its bytes (C85, rows 1 to 7)."""
    prev_len, delta_len, cum_len, weight_version = (
        read_u64(value, name)
        for name, value in zip(("prev_len", "delta_len", "cum_len", "weight_version"), counts, strict=True)
    )
    parent = b"\x00" if parent_call_id is None else b"\x01" + _identifier(parent_call_id, "parent_call_id")
    problem = link_problem(mode, parent_call_id, prev_len) or length_problem(prev_len, delta_len, cum_len)
    if problem:
        raise ValueError(problem)
    return b"".join(
        (
            CALL_DIGEST_DOMAIN,
            _VERSIONS,
            _identifier(rollout_id, "rollout_id"),
            _identifier(model_call_id, "model_call_id"),
            parent,
            _text(mode),
            *map(u64, (prev_len, delta_len, cum_len, weight_version)),
        )
    )


def _check_versions(*versions: object) -> None:
    for name, given, wanted in zip(
        ("schema_version", "digest_version", "extras_digest_version"), versions, _VERSIONS, strict=True
    ):
        if type(given) is not int or given != wanted:
            raise ValueError(f"{name} is {given!r}, this digest has {wanted}")


def _identifier(value: object, what: str) -> bytes:
    if value is None:
        raise TypeError(f"{what} is missing")
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} {value!r} is not a text of at least one character")
    return _text(value)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return u64(len(encoded)) + encoded


def _prefix_state(count: int) -> Any:
    return hashlib.sha256(PREFIX_HASH_DOMAIN + u64(count))


def _chain_state(parent: str | None, count: int) -> Any:
    marker = b"\x00" if parent is None else b"\x01" + checked_digest(parent, "parent_chain_hash")
    return hashlib.sha256(CHAIN_HASH_DOMAIN + marker + u64(count))


def _finished(state: Any, extras: bytes, chain: bytes, cumulative: bytes) -> str:
    state.update(b"".join((extras, b"\x01", chain, b"\x01", cumulative)))
    return str(state.hexdigest())
