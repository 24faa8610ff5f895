"""A chain as one compact training row: ids, log probabilities of policy tokens, and spans that say where they lie.

A row is what a trainer learns from, so it holds nothing that its chain does not prove, and a chain with a doubt becomes
a masked row that names it. Size is linear in the tokens; masks and dense columns are made when asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.building.chains import MAIN_CHAIN, PER_REQUEST, BuildOutput, Chain, ChainLink
from gym_ray.token_id_capture.extras import Version
from gym_ray.token_id_capture.reasons import NOTHING_GENERATED, UNRESOLVED_RETRY
from gym_ray.token_id_capture.token_arrays import FloatArray, TokenArray, join_tokens

__all__ = ["RowWeightSpan", "TokenSpan", "TrainingRow", "training_rows"]


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens ``start`` to ``end`` (exclusive) of a row: where they came from, and whether they are learned from.

    Attributes:
        kind: ``policy`` for sampled tokens; ``prompt`` for the first prompt, ``interstitial`` for what stood between
            one call's generation and the next one's, such as tool results.
        start: First token.
        end: Behind the last token.
        model_call_id: The call whose prompt or generation it is.
        loss: Whether the tokens carry loss in this row.
    """

    kind: Literal["prompt", "interstitial", "policy"]
    start: int
    end: int
    model_call_id: str
    loss: bool


@dataclass(frozen=True, slots=True)
class RowWeightSpan:
    """Policy tokens ``start`` to ``end`` (exclusive) of a row, sampled with one version of the weights.

    The engine's own word where there is one, else the server's stamps. A call that began with one version and ended
    with another has one span for each, both over all of its tokens: nobody said which token came from which.
    """

    version: Version
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRow:
    """One sequence to learn from.

    Attributes:
        rollout_id: The training sample.
        chain_id: ``main``, ``branch-<n>`` or ``req-<n>``.
        token_ids: uint32[n] or uint64[n], read-only; may be a view of the records' own buffer.
        policy_log_probs: float32[p] or float64[p], read-only: one for each policy token, in order.
        spans: What each token is; they cover the row without gaps or overlaps.
        weight_spans: Versions of the weights, in row coordinates.
        shared_prefix: Tokens at the start that an earlier row of the rollout holds as well, because both continue the
            same call.
        shared_with: Chain id of that row, or None.
        mask_sample: Whether the row must not be learned from.
        reasons: Why; empty if it may.
        constrained_calls: Calls in which a grammar bounded the choice: their log probabilities are the model's own.
    """

    rollout_id: str
    chain_id: str
    token_ids: TokenArray
    policy_log_probs: FloatArray
    spans: tuple[TokenSpan, ...]
    weight_spans: tuple[RowWeightSpan, ...]
    shared_prefix: int
    shared_with: str | None
    mask_sample: bool
    reasons: tuple[str, ...]
    constrained_calls: tuple[str, ...]

    def loss_mask(self) -> NDArray[np.bool_]:
        """Return bool[n]: whether each token carries loss. A masked row has a mask too; it must not be used."""
        mask = np.zeros(self.token_ids.size, np.bool_)
        for span in self.spans:
            mask[span.start : span.end] = span.loss
        return mask

    def dense_log_probs(self) -> NDArray[np.float32]:
        """Return float32[n]: the log probability of each policy token, 0.0 elsewhere."""
        dense = np.zeros(self.token_ids.size, np.float32)
        taken = 0
        for span in self.spans:
            if span.kind == "policy":
                length = span.end - span.start
                dense[span.start : span.end] = self.policy_log_probs[taken : taken + length]
                taken += length
        return dense


def training_rows(
    rollout_id: str,
    out: BuildOutput,
    *,
    branches: bool = False,
    shared_prefix_loss: Literal["first", "all"] = "first",
    mask_sample: bool = False,
    reasons: Iterable[str] = (),
) -> list[TrainingRow]:
    """Return the main chain as a row, or every chain; the main one first. A ``per_request`` build gives all of its.

    A chain is masked on its own where a call of it is in doubt, where nothing tells whether one of its calls or a retry
    counts, or where it generated nothing. Sub-agents and compacted contexts with a proven root are rows like any other.

    Args:
        rollout_id: The training sample.
        out: What a builder made of it.
        branches: Whether to deliver every chain, each proved by itself, and not only the main one.
        shared_prefix_loss: Whether policy tokens that several rows share carry loss in the first row that is not
            masked, or in all.
        mask_sample: Whether the rollout as a whole is masked; then all its rows are.
        reasons: Why it is.

    Raises:
        ValueError: A chain contradicts its own records; the call is named.
    """
    chains = sorted(out.chains, key=lambda chain: chain.chain_id != MAIN_CHAIN)
    if not branches and out.notes.builder != PER_REQUEST:
        chains = chains[:1]
    given = tuple(reasons)
    first_row: dict[str, str] = {}
    learned: set[str] = set()
    rows = []
    for chain in chains:
        chain.validate()
        own = _own_reasons(chain, out)
        masked = mask_sample or bool(own)
        without_loss = learned if shared_prefix_loss == "first" else frozenset[str]()
        rows.append(_row(rollout_id, chain, first_row, without_loss, (masked, tuple(dict.fromkeys(given + own)))))
        for link in chain.links:
            first_row.setdefault(link.model_call_id, chain.chain_id)
            if not masked:
                learned.add(link.model_call_id)
    return rows


def _row(
    rollout_id: str,
    chain: Chain,
    first_row: dict[str, str],
    without_loss: set[str] | frozenset[str],
    verdict: tuple[bool, tuple[str, ...]],
) -> TrainingRow:
    links = chain.links
    shared = [link for link in links if link.model_call_id in first_row]
    masked, reasons = verdict
    return TrainingRow(
        rollout_id=rollout_id,
        chain_id=chain.chain_id,
        token_ids=chain.token_ids(),
        policy_log_probs=_join_log_probs([link.packed.generation_log_probs for link in links]),
        spans=tuple(_spans(links, without_loss)),
        weight_spans=tuple(span for link in links for span in _weight_spans(link)),
        shared_prefix=shared[-1].cum_len if shared else 0,
        shared_with=first_row[shared[-1].model_call_id] if shared else None,
        mask_sample=masked,
        reasons=reasons if masked else (),
        constrained_calls=tuple(link.model_call_id for link in links if link.packed.extras.constrained),
    )


def _own_reasons(chain: Chain, out: BuildOutput) -> tuple[str, ...]:
    reasons = [out.doubts[link.model_call_id] for link in chain.links if link.model_call_id in out.doubts]
    if any(link.model_call_id in out.undecided for link in chain.links):
        reasons.append(UNRESOLVED_RETRY)
    if not chain.generated:
        reasons.append(NOTHING_GENERATED)
    return tuple(reasons)


def _spans(links: Sequence[ChainLink], without_loss: set[str] | frozenset[str]) -> Iterable[TokenSpan]:
    before = 0
    kind: Literal["prompt", "interstitial"] = "prompt"
    for link in links:
        call_id = link.model_call_id
        if link.prompt_len > before:
            yield TokenSpan(kind, before, link.prompt_len, call_id, loss=False)
        if link.cum_len > link.prompt_len:
            yield TokenSpan("policy", link.prompt_len, link.cum_len, call_id, loss=call_id not in without_loss)
        before, kind = link.cum_len, "interstitial"


def _weight_spans(link: ChainLink) -> list[RowWeightSpan]:
    extras, at, generated = link.packed.extras, link.prompt_len, link.cum_len - link.prompt_len
    if extras.weight_spans:
        told = [(span.version, span.start, min(span.end, generated)) for span in extras.weight_spans]
        return [RowWeightSpan(version, at + start, at + end) for version, start, end in told if start < end]
    stamps = dict.fromkeys(version for version in (extras.version_start, extras.version_end) if version is not None)
    return [RowWeightSpan(version, at, at + generated) for version in stamps if generated]


def _join_log_probs(parts: Sequence[FloatArray]) -> FloatArray:
    if any(part.size for part in parts):
        return cast("FloatArray", join_tokens(cast("Sequence[Any]", parts)))
    return np.empty(0, np.float32)
