"""Reads one record once for all checks: its turns, its calls, and which call each reference names (D107)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gym_ray.evidence.health.rules import (
    CALLS_UNSEEN,
    PEER_RULES,
    TRAJECTORY_UNSEEN,
    TURNS_UNSEEN,
)
from gym_ray.evidence.matching import CallIdentity, CallLookup, ModelRef, match_calls
from gym_ray.evidence.observations.gaps import PAYLOADS_BY_REFERENCE, TURN_MODEL_CALL_SCOPE_INCOMPLETE

__all__ = ["CallFacts", "Reference", "RolloutView", "view_of"]

_FAILED_STATUSES: Final = frozenset({"failed", "error", "cancelled"})
_HTTP_ERROR: Final = 400
_NOTHING: Final[Mapping[str, Any]] = {}


class Reference(NamedTuple):
    """A reference of a turn or an invocation, and the places of the calls that it names (D75)."""

    ref: Mapping[str, Any]
    places: Sequence[int]


class CallFacts(NamedTuple):
    """What the checks ask of one call.

    Attributes:
        name: Its id, else the id of its answer; None without either.
        model_ref: Type and name of the model server, None when it is unknown.
        response_id: Id of its answer.
        status: HTTP status.
        error_category: What went wrong.
        failed: It did not succeed (D107).
        finish_reason: Why the answer ended.
        started_at: Seconds since the epoch.
        prompt_tokens: None when nobody counted them.
        completion_tokens: None when nobody counted them.
        response: Its answer.
    """

    name: str | None
    model_ref: ModelRef | None
    response_id: str | None
    status: int | None
    error_category: str | None
    failed: bool
    finish_reason: str | None
    started_at: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    response: Any

    @property
    def model_name(self) -> str | None:
        """The model server as ``type/name``."""
        return None if self.model_ref is None else f"{self.model_ref[0]}/{self.model_ref[1]}"


@dataclass(frozen=True, slots=True)
class RolloutView:
    """What the checks of one record look at.

    Attributes:
        record: The record.
        observed: There is a trajectory, and it was not lost.
        turns_observed: Its turns were.
        calls_observed: Its calls were, and they are all of them.
        payloads_inline: Payloads are in it.
        gaps: Its gaps.
        turns: Its turns.
        calls: Its calls, in order.
        references: Each distinct reference, turns' before invocations'.
        turn_bound: Places of the calls that turns name without doubt, ascending.
        owned: Places of the calls that turns or invocations name without doubt, ascending.
        turns_fully_bound: Every turn names calls, and each of them without doubt (D107).
        tokens_bound: The calls that the token comparison sums are known to be all it should (D107, D111).
        token_places: Places of the calls that it sums.
    """

    record: Mapping[str, Any]
    observed: bool
    turns_observed: bool
    calls_observed: bool
    payloads_inline: bool
    gaps: Sequence[Mapping[str, Any]]
    turns: Sequence[Mapping[str, Any]]
    calls: Sequence[CallFacts]
    references: Sequence[Reference]
    turn_bound: Sequence[int]
    owned: Sequence[int]
    turns_fully_bound: bool
    tokens_bound: bool
    token_places: Sequence[int]


def view_of(record: Mapping[str, Any], trajectory: Mapping[str, Any] | None, rules_version: int) -> RolloutView:
    """Return the view of a record whose trajectory is valid, or None when it has none."""
    gaps = (trajectory or _NOTHING).get("gaps") or ()
    codes = {gap["code"] for gap in gaps}
    observed = trajectory is not None and codes.isdisjoint(TRAJECTORY_UNSEEN)
    seen = trajectory if observed and trajectory is not None else _NOTHING
    turns, calls = seen.get("turns") or (), seen.get("model_calls") or ()
    lookup = CallLookup([CallIdentity.of_projected(call, place) for place, call in enumerate(calls)])
    known: dict[str, Reference] = {}
    of_turns = [_references(turn, lookup, known) for turn in turns]
    of_invocations = [_references(invocation, lookup, known) for invocation in seen.get("invocations") or ()]
    turn_bound = _bound(of_turns)
    owned = sorted({*turn_bound, *_bound(of_invocations)})
    turns_observed = observed and codes.isdisjoint(TURNS_UNSEEN)
    calls_observed = observed and codes.isdisjoint(CALLS_UNSEEN)
    whole = turns_observed and calls_observed and TURN_MODEL_CALL_SCOPE_INCOMPLETE not in codes
    turns_fully_bound = whole and bool(of_turns) and all(of_turns) and _unique(of_turns)
    if rules_version == PEER_RULES:
        tokens_bound, token_places = turns_fully_bound, turn_bound
    else:
        scoped = calls_observed and TURN_MODEL_CALL_SCOPE_INCOMPLETE not in codes
        tokens_bound = scoped and bool(owned) and _unique(of_turns) and _unique(of_invocations)
        token_places = owned
    return RolloutView(
        record=record,
        observed=observed,
        turns_observed=turns_observed,
        calls_observed=calls_observed,
        payloads_inline=PAYLOADS_BY_REFERENCE not in codes,
        gaps=gaps,
        turns=turns,
        calls=[_facts(call, identity) for call, identity in zip(calls, lookup.identities, strict=True)],
        references=[reference for group in (*of_turns, *of_invocations) for reference in group],
        turn_bound=turn_bound,
        owned=owned,
        turns_fully_bound=turns_fully_bound,
        tokens_bound=tokens_bound,
        token_places=token_places,
    )


def _references(holder: Mapping[str, Any], lookup: CallLookup, known: dict[str, Reference]) -> list[Reference]:
    """Return the references of a turn or an invocation; a turn's is mostly one of its invocation's again."""
    references = []
    for ref in holder.get("model_calls") or ():
        call_id = ref.get("model_call_id") or ""
        reference = known.get(call_id)
        if reference is None or reference.ref != ref:
            reference = known[call_id] = Reference(ref, match_calls(ref, lookup))
        references.append(reference)
    return references


def _bound(groups: Sequence[Sequence[Reference]]) -> list[int]:
    return sorted({reference.places[0] for group in groups for reference in group if len(reference.places) == 1})


def _unique(groups: Sequence[Sequence[Reference]]) -> bool:
    return all(len(reference.places) == 1 for group in groups for reference in group)


def _facts(call: Mapping[str, Any], identity: CallIdentity) -> CallFacts:
    metadata, tokens = call.get("response_metadata") or _NOTHING, call.get("token_stats") or _NOTHING
    status, category = metadata.get("status_code"), metadata.get("error_category")
    return CallFacts(
        identity.model_call_id or identity.response_id,
        identity.model_ref,
        identity.response_id,
        status,
        category,
        bool(
            (status is not None and status >= _HTTP_ERROR)
            or category
            or metadata.get("response_status") in _FAILED_STATUSES
        ),
        metadata.get("finish_reason"),
        call.get("started_at"),
        tokens.get("prompt_tokens"),
        tokens.get("completion_tokens"),
        call.get("response"),
    )
