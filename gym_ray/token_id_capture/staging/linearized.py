"""A chain of staged calls as one training row, with what each call contributed to it (C160-C166)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_ray.errors import RebuildError
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.digests import compute_chain_hash, compute_prefix_hash
from gym_ray.token_id_capture.staging.hash_input import strict_floats, strict_token_ids
from gym_ray.token_id_capture.staging.records import StagedCallBaseSnapshot

__all__ = [
    "ExtrasCommitment",
    "LinearizedRow",
    "LinearizedRows",
    "SkippedChain",
    "WeightVersionSpan",
    "linearize_chain",
]

LinkSpan: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class WeightVersionSpan:
    """The tokens ``start`` to ``end`` (excluded) of a row are one call's, made under one version of the weights."""

    model_call_id: str
    start: int
    end: int
    weight_version: int


@dataclass(frozen=True, slots=True)
class ExtrasCommitment:
    """What the extras of a call must hash to (C164). That there are any, it does not say."""

    model_call_id: str
    extras_digest_version: int
    extras_digest: str


@dataclass(frozen=True, slots=True)
class LinearizedRow:
    """One training row: the deltas of a chain, one after the other, from the root to the last call (C160).

    Attributes:
        rollout_id: The rollout.
        token_ids: ``uint32[n]``, or ``uint64[n]`` where an id needs it.
        token_mask: ``bool[n]``, or ``float32[n]`` where a zero has a sign; 1.0 for a generated token.
        logprobs: ``float32[n]`` or ``float64[n]``, as the calls have them (C165).
        model_call_ids: The calls, from the root on.
        prompt_len: How many tokens stand before the first generated one (C161).
        weight_versions: One a call.
        weight_version_spans: One a call; equal neighbours are not merged (C162).
        link_spans: Call id, how many tokens it carried, how many it generated (C163).
        extras_commitments: One a call (C164).
    """

    rollout_id: str
    token_ids: Column[int]
    token_mask: Column[float]
    logprobs: Column[float]
    model_call_ids: tuple[str, ...]
    prompt_len: int
    weight_versions: tuple[int, ...]
    weight_version_spans: tuple[WeightVersionSpan, ...]
    link_spans: tuple[LinkSpan, ...]
    extras_commitments: tuple[ExtrasCommitment, ...]

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Another name of ``model_call_ids``."""
        return self.model_call_ids


@dataclass(frozen=True, slots=True)
class SkippedChain:
    """A chain beside the main one that is no row: its first call, why in one word, and the same for people."""

    call_id: str
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LinearizedRows:
    """All rows of a rollout: the one that ended it, those of other chains, and chains that make none (C351)."""

    main: LinearizedRow
    secondary: tuple[LinearizedRow, ...]
    skipped: tuple[SkippedChain, ...]


def linearize_chain(rollout_id: str, chain: Sequence[StagedCallBaseSnapshot]) -> LinearizedRow:
    """Join the deltas of a chain whose calls are verified one by one, and prove that they belong together.

    Args:
        rollout_id: The rollout.
        chain: Its calls from the root on; at least one.

    Raises:
        RebuildError: The chain hash of a call is not the one of the deltas so far, its mask is no carried tokens
            followed by generated ones, or the last call's cumulative hash is not that of the row (C155, C166, C167).
    """
    links = _links(chain)
    ids = np.concatenate([strict_token_ids(call.token_ids_delta) for call in chain])
    found = compute_prefix_hash(ids)
    if found != chain[-1].cumulative_hash:
        raise RebuildError(
            "cumulative_hash_mismatch",
            f"call {chain[-1].model_call_id!r} names {chain[-1].cumulative_hash}, the row has {found}",
        )
    return LinearizedRow(
        rollout_id=rollout_id,
        token_ids=Column(ids),
        token_mask=Column(_joined([call.token_mask_delta for call in chain])),
        logprobs=Column(_joined([call.generation_log_probs_delta for call in chain])),
        model_call_ids=tuple(call.model_call_id for call in chain),
        prompt_len=links[0][1],
        weight_versions=tuple(call.weight_version for call in chain),
        weight_version_spans=_weight_version_spans(chain),
        link_spans=links,
        extras_commitments=tuple(
            ExtrasCommitment(call.model_call_id, call.extras_digest_version, call.extras_digest) for call in chain
        ),
    )


def _links(chain: Sequence[StagedCallBaseSnapshot]) -> tuple[LinkSpan, ...]:
    links, chain_hash = [], None
    for call in chain:
        chain_hash = compute_chain_hash(chain_hash, call.token_ids_delta)
        if chain_hash != call.chain_hash:
            raise RebuildError(
                "chain_hash_mismatch",
                f"call {call.model_call_id!r} names {call.chain_hash}, the deltas up to it give {chain_hash}",
            )
        links.append(_link(call))
    return tuple(links)


def _link(call: StagedCallBaseSnapshot) -> LinkSpan:
    """Return how many tokens a call carried and generated; generated ones come last (C166)."""
    generated = strict_floats(call.token_mask_delta, "token_mask_delta") != 0
    count = int(np.count_nonzero(generated))
    if not count:
        raise RebuildError("empty_generation", f"call {call.model_call_id!r} generated nothing")
    carried = generated.size - count
    if not generated[carried:].all():
        raise RebuildError(
            "invalid_mask_order", f"call {call.model_call_id!r} has a carried token after a generated one"
        )
    return call.model_call_id, carried, count


def _weight_version_spans(chain: Sequence[StagedCallBaseSnapshot]) -> tuple[WeightVersionSpan, ...]:
    return tuple(
        WeightVersionSpan(call.model_call_id, call.prev_len, call.cum_len, call.weight_version) for call in chain
    )


def _joined(columns: Sequence[object]) -> NDArray[Any]:
    return np.concatenate([strict_floats(column, "column") for column in columns])
