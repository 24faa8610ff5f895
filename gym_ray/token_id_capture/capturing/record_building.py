"""From one served answer and its exact tokens to the record that is kept (B85, B90, B91).

Pure work on one call, so that it can run on any thread. A prompt that is stored as a delta is compared, hashed and cut
as an array: its known part never becomes Python integers (W5, B142).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gym_ray.errors import NonFiniteLogProbError, SeveralCarriersError, UnusableTokensError
from gym_ray.token_id_capture.capturing.capture_context import CaptureContext
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.extras import EXTRAS_MEMBER, CallExtras, Version, chain_hash
from gym_ray.token_id_capture.lineage import (
    NOT_ATTEMPTED_REASON,
    LineageMatch,
    LineageResolution,
    stamp_continuation,
)
from gym_ray.token_id_capture.reasons import (
    IDS_MISSING,
    LENGTH_MISMATCH,
    MALFORMED_TOKENS,
    NON_FINITE_LOG_PROB,
    SEVERAL_CARRIERS,
)
from gym_ray.token_id_capture.records import (
    TOKEN_ARRAYS,
    ParentResolutionStatus,
    TokenEntry,
    extract_token_fields,
    response_to_output_items,
    strip_token_fields,
)
from gym_ray.token_id_capture.token_arrays import (
    TokenArray,
    digest_packed,
    join_tokens,
    pack_log_probs,
    pack_token_ids,
    starts_with,
)

__all__ = [
    "BuiltRecord",
    "ServedAnswer",
    "build_record",
    "stamped",
    "tokens_of_fields",
]

_NOT_ATTEMPTED: Final = LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=NOT_ATTEMPTED_REASON)


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """What an answer says besides tokens.

    Attributes:
        items: Its content as output items, without token fields.
        carrier: Index of the item that carried the tokens, None when none did.
        response_id: Its id, None when it has none.
        model: The model that it names, "" when it names none.
        token_fields: The four token fields that it carried, None when it carried none or nobody looked.
    """

    items: list[dict[str, Any]]
    carrier: int | None
    response_id: str | None
    model: str
    token_fields: Mapping[str, Any] | None

    @classmethod
    def of(cls, payload: Mapping[str, Any], *, extract: bool) -> ServedAnswer:
        """Read an answer of any dialect.

        Args:
            payload: The answer.
            extract: Its tokens are wanted as well.

        Raises:
            UnusableTokensError: Several of its items carry token fields, or the one that does lacks some.
        """
        try:
            fields = extract_token_fields(payload) if extract else None
            items, carrier = strip_token_fields(response_to_output_items(payload))
        except SeveralCarriersError as error:
            raise UnusableTokensError(SEVERAL_CARRIERS, str(error)) from error
        except ValueError as error:
            raise UnusableTokensError(IDS_MISSING, str(error)) from error
        response_id, model = payload.get("id"), payload.get("model")
        return cls(items, carrier, response_id or None, model or "", fields)


@dataclass(frozen=True, slots=True)
class BuiltRecord:
    """A record that is ready to be kept.

    Attributes:
        entry: The record.
        cumulative: The call's whole sequence.
    """

    entry: TokenEntry
    cumulative: TokenArray


def tokens_of_fields(fields: Mapping[str, Any]) -> ExactTokens:
    """Pack the token fields that an answer carried.

    Raises:
        UnusableTokensError: They are no tokens and log probabilities, or their lengths differ.
    """
    prompt, generation, log_probs = (fields[name] for name in TOKEN_ARRAYS)
    return _checked(ExactTokens(prompt, generation, log_probs, routed_experts=fields.get("routed_experts")))


def _checked(tokens: ExactTokens) -> ExactTokens:
    """Return tokens whose arrays are packed and agree, whatever an engine put there; finite, too (W21)."""
    try:
        prompt, generation = pack_token_ids(tokens.prompt_token_ids), pack_token_ids(tokens.generation_token_ids)
    except (TypeError, ValueError) as error:
        raise UnusableTokensError(MALFORMED_TOKENS, str(error)) from error
    try:
        log_probs = pack_log_probs(tokens.generation_log_probs)
    except NonFiniteLogProbError as error:
        raise UnusableTokensError(NON_FINITE_LOG_PROB, str(error)) from error
    except (TypeError, ValueError) as error:
        raise UnusableTokensError(MALFORMED_TOKENS, str(error)) from error
    if generation.size != log_probs.size:
        raise UnusableTokensError(LENGTH_MISMATCH, f"{generation.size} generated ids, {log_probs.size} log probs")
    return replace(tokens, prompt_token_ids=prompt, generation_token_ids=generation, generation_log_probs=log_probs)


def build_record(
    context: CaptureContext,
    answer: ServedAnswer,
    tokens: ExactTokens,
    items: Sequence[object] | None,
    *,
    created_at: float,
    version_end: Version | None,
) -> BuiltRecord:
    """Make the record of a call.

    Args:
        context: The call; its decision and its flags go into the record.
        answer: What its client received.
        tokens: What its engine consumed and sampled.
        items: The items of its request; without them no later call finds it (B85).
        created_at: Wall clock, seconds.
        version_end: Version of the weights now.

    Raises:
        UnusableTokensError: The tokens are not usable.
        ValueError: The record contradicts itself, or items cannot be hashed.
    """
    tokens = _checked(tokens)
    prompt, generation = tokens.prompt_token_ids, tokens.generation_token_ids
    decision = context.parent_resolution or _NOT_ATTEMPTED
    linked = _linked(decision, prompt, generation, delta=context.delta_records)
    entry = TokenEntry(
        rollout_id=context.rollout_id,
        model_call_id=context.model_call_id,
        model=context.model or answer.model,
        prompt_token_ids=linked.prompt.tolist(),
        generation_token_ids=generation.tolist(),
        generation_log_probs=tokens.generation_log_probs.tolist(),
        routed_experts=tokens.routed_experts,
        output_items=answer.items,
        token_item_index=answer.carrier,
        response_id=answer.response_id,
        created_at=created_at,
        prefix_requested=context.prefix_requested,
        prefix_supplied=context.prefix_supplied,
        **linked.members,
    )
    if items is not None:
        stamp_continuation(entry, items)
    extras = _extras_of(tokens, context.version_start, version_end)
    return BuiltRecord(_with_extras(entry, extras, linked), linked.cumulative)


def stamped(
    context: CaptureContext,
    entry: TokenEntry,
    decision: LineageResolution | None,
    items: Sequence[object] | None,
) -> BuiltRecord:
    """Link a record that an engine made to its parent, in a copy (B90, B91).

    Args:
        context: The call.
        entry: The record, whole or a delta; left as it is.
        decision: The decision about its parent; None takes the call's own.
        items: The items of its request, where the engine did not stamp them itself.

    Raises:
        UnusableTokensError: Its tokens are not usable.
        ValueError: The record contradicts itself, or it is a delta without a proven parent.
    """
    tokens = tokens_of_fields({name: getattr(entry, name) for name in TOKEN_ARRAYS})
    linked = _linked(
        decision or context.parent_resolution or _NOT_ATTEMPTED,
        tokens.prompt_token_ids,
        tokens.generation_token_ids,
        delta=context.delta_records,
        is_delta=entry.prompt_is_delta,
    )
    members = dict(linked.members)
    if linked.prompt is not tokens.prompt_token_ids:
        members["prompt_token_ids"] = linked.prompt.tolist()
    copy = TokenEntry.model_validate({**_members_of(entry), **members})
    if items is not None:
        stamp_continuation(copy, items)
    extras = CallExtras.of((copy.model_extra or {}).get(EXTRAS_MEMBER))
    if extras.version_start is None:
        extras = replace(extras, version_start=context.version_start)
    return BuiltRecord(_with_extras(copy, extras, linked), linked.cumulative)


@dataclass(frozen=True, slots=True)
class _Linked:
    """A record's link to its parent, and what follows from it."""

    prompt: TokenArray  # as the record holds it
    cumulative: TokenArray
    members: Mapping[str, Any]
    chain_hash: str | None


def _linked(
    decision: LineageResolution, prompt: TokenArray, generation: TokenArray, *, delta: bool, is_delta: bool = False
) -> _Linked:
    match = decision.match
    if is_delta:
        if match is None or not match.tokens.size:
            raise ValueError("the record holds a delta prompt, and the tokens of its parent are not known")
        cumulative = join_tokens([match.tokens, prompt, generation])
    else:
        cumulative = join_tokens([prompt, generation])
        if delta and match is not None and match.tokens.size and starts_with(prompt, match.tokens):
            prompt, is_delta = prompt[match.tokens.size :], True
    digest, cum_len = digest_packed(cumulative), int(cumulative.size)
    members = {
        "parent_call_id": None if match is None else match.model_call_id,
        "parent_resolution": decision.status,
        "parent_resolution_reason": decision.reason,
        "prompt_is_delta": is_delta,
        "cum_len": cum_len,
        "digest": digest,
    }
    chained = _chain_hash(match if is_delta else None, digest, cum_len, prompt, generation)
    return _Linked(prompt, cumulative, members, chained)


def _chain_hash(
    base: LineageMatch | None, digest: str, cum_len: int, prompt: TokenArray, generation: TokenArray
) -> str | None:
    """Return the chain hash of a record; None if it holds a delta to a parent without one (W3)."""
    if base is not None and base.chain_hash is None:
        return None
    return chain_hash(None if base is None else base.chain_hash, digest, cum_len, prompt, generation)


def _members_of(entry: TokenEntry) -> dict[str, Any]:
    return {**{name: getattr(entry, name) for name in TokenEntry.model_fields}, **(entry.model_extra or {})}


def _extras_of(tokens: ExactTokens, version_start: Version | None, version_end: Version | None) -> CallExtras:
    return CallExtras(
        version_start=version_start,
        version_end=version_end,
        weight_spans=tokens.weight_spans,
        constrained=tokens.constrained,
        ended_by=tokens.ended_by,
        token_in=tokens.token_in,
    )


def _with_extras(entry: TokenEntry, extras: CallExtras, linked: _Linked) -> TokenEntry:
    """Put our member onto a record, over what stands there already."""
    stamped_extras = CallExtras.of((entry.model_extra or {}).get(EXTRAS_MEMBER))
    extras = replace(
        extras,
        chain_hash=linked.chain_hash,
        model_items=stamped_extras.model_items,
        strict_context_digest=stamped_extras.strict_context_digest,
        text_input_digest=stamped_extras.text_input_digest,
    )
    members = extras.to_json()
    if members:
        setattr(entry, EXTRAS_MEMBER, members)
    return entry
