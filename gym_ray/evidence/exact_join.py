"""Links the references of an observation bundle to captured calls, exactly (D74-D82).

A wrong link is worse than a lost one: a call is owned by one invocation at most, and only where an identifier says so.
Whatever could not be linked stays as it was sent and is named by a gap. Pure: nothing given is changed.

Who owns what does not depend on the order of records, of references or of captured lines, with one exception that a
gap always tells: where several references match the same call, the first in record order, then in list order, owns it
and each other one gets a conflict (D77). References that the client's session claims stand behind those that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.evidence.matching import CallIdentity, CallLookup, match_calls, model_ref_of
from gym_ray.evidence.observations.gaps import (
    OWNERSHIP_UNAVAILABLE,
    REFERENCE_AMBIGUOUS,
    REFERENCE_CONFLICT,
    REFERENCE_UNMATCHED,
    distinct,
    gap,
)

__all__ = ["ExactJoin", "exact_join"]

_REFERENCE_GAPS = frozenset({REFERENCE_UNMATCHED, REFERENCE_AMBIGUOUS, REFERENCE_CONFLICT})
_OF_CAPTURE = "capture:"
_OF_COMPACTION = "model_calls:"
_EDGES = ("before_model_call", "after_model_call")


@dataclass(frozen=True, slots=True)
class ExactJoin:
    """A joined bundle.

    Attributes:
        bundle: The bundle with canonical references and the gaps of the join; it shares what did not change with the
            bundle that was given.
        owners: For each call the ``invocation_id`` that owns it, None when nobody does (D77).
    """

    bundle: dict[str, Any]
    owners: tuple[str | None, ...]


def exact_join(bundle: Mapping[str, Any], calls: Sequence[CallIdentity]) -> ExactJoin:
    """Join the references of a bundle to the captured calls of the same rollout (D76-D82).

    Args:
        bundle: A validated bundle as a full JSON object.
        calls: Every captured call of the rollout, in capture order.

    Returns:
        The joined bundle and the owner of each call. Joining the result to the same calls gives it again (D81).
    """
    joiner = _Joiner(calls)
    records = bundle["records"]
    claims = _session_claims(records, calls)
    joined = [
        joiner.invocation(record, claims.get(record["invocation_id"]))
        if record["kind"] == "agent_invocation"
        else record
        for record in records
    ]
    joined = [joiner.compaction(record) if record["kind"] == "context_compaction" else record for record in joined]
    joiner.name_unowned()
    kept = (given for given in bundle["gaps"] if not _found_by_a_join(given))
    return ExactJoin(
        {**bundle, "records": joined, "gaps": distinct((*kept, *joiner.gaps))},
        tuple(joiner.owners),
    )


def _session_claims(
    records: Iterable[Mapping[str, Any]], calls: Iterable[CallIdentity]
) -> dict[str, list[CallIdentity]]:
    """Return, by invocation, the calls whose client named it as its session, in capture order (D76)."""
    sessions = {record["invocation_id"] for record in records if record["kind"] == "agent_invocation"}
    claims: dict[str, list[CallIdentity]] = {}
    for call in calls:
        if call.client_session_id and call.model_call_id and call.client_session_id in sessions:
            claims.setdefault(call.client_session_id, []).append(call)
    return claims


_Key = tuple[str | None, tuple[str, str] | None, str | None]


def _key(ref: Mapping[str, Any]) -> _Key:
    return (ref["model_call_id"] or None, model_ref_of(ref), ref["response_id"])


def _with_claims(sent: list[dict[str, Any]], claims: Iterable[CallIdentity]) -> list[dict[str, Any]]:
    """Return the references that were sent and, behind them, those of claimed calls that none of them stands for (D76).

    A claim is measured against what was sent and not against other claims, so that the order of calls decides nothing.
    """
    held = {_key(ref) for ref in sent}
    claimed: dict[_Key, dict[str, Any]] = {}
    for call in claims:
        call_id, server, response = call.model_call_id, call.model_ref, call.response_id
        whole: _Key = (call_id, server, response)
        forms: tuple[_Key, ...] = (
            whole,
            (call_id, None, None),
            (call_id, server, None),
            (call_id, None, response),
            (None, server, response),
        )
        if held.isdisjoint(forms):
            claimed.setdefault(whole, call.reference())
    return [*sent, *claimed.values()]


class _Joiner:
    """One join under way: who owns what, and which gaps were found."""

    __slots__ = ("_lookup", "gaps", "owners")

    def __init__(self, calls: Sequence[CallIdentity]) -> None:
        self._lookup = CallLookup(calls)
        self.owners: list[str | None] = [None] * len(calls)
        self.gaps: list[dict[str, Any]] = []

    def invocation(self, record: dict[str, Any], claims: list[CallIdentity] | None) -> dict[str, Any]:
        """Return an invocation that owns every free call that it alone names (D77)."""
        references = record["model_calls"]
        if claims:
            references = _with_claims(references, claims)
        if not references:
            return record
        invocation_id = record["invocation_id"]
        return {**record, "model_calls": [self._claim(invocation_id, ref) for ref in references]}

    def _claim(self, invocation_id: str, ref: dict[str, Any]) -> dict[str, Any]:
        places = match_calls(ref, self._lookup)
        if len(places) != 1:
            self._unmatched(invocation_id, ref, "", places)
            return ref
        place = places[0]
        call = self._lookup.identities[place]
        if self.owners[place] is not None:
            self._gap(REFERENCE_CONFLICT, invocation_id, call.name)
            return ref
        self.owners[place] = invocation_id
        return call.reference()

    def compaction(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a compaction whose references to its own invocation's calls are canonical; it owns none (D78, D79)."""
        invocation_id = record["invocation_id"]
        joined = {
            **record,
            "model_calls": [self._compacting(invocation_id, ref) for ref in record["model_calls"]],
        }
        for edge in _EDGES:
            ref = record[edge]
            if ref is not None:
                joined[edge] = self._edge(invocation_id, ref, f"{edge}:")
        return joined

    def _compacting(self, invocation_id: str, ref: dict[str, Any]) -> dict[str, Any]:
        place = self._only_match(invocation_id, ref, _OF_COMPACTION)
        if place is None:
            return ref
        owner = self.owners[place]
        if owner == invocation_id:
            return self._lookup.identities[place].reference()
        code = OWNERSHIP_UNAVAILABLE if owner is None else REFERENCE_CONFLICT
        self._gap(code, invocation_id, _OF_COMPACTION + _named(ref))
        return ref

    def _edge(self, invocation_id: str, ref: dict[str, Any], prefix: str) -> dict[str, Any]:
        place = self._only_match(invocation_id, ref, prefix)
        if place is None:
            return ref
        if self.owners[place] not in (None, invocation_id):
            self._gap(REFERENCE_CONFLICT, invocation_id, prefix + _named(ref))
            return ref
        return self._lookup.identities[place].reference()

    def _only_match(self, invocation_id: str, ref: dict[str, Any], prefix: str) -> int | None:
        places = match_calls(ref, self._lookup)
        if len(places) == 1:
            return places[0]
        self._unmatched(invocation_id, ref, prefix, places)
        return None

    def _unmatched(self, invocation_id: str, ref: dict[str, Any], prefix: str, places: list[int]) -> None:
        code = REFERENCE_AMBIGUOUS if places else REFERENCE_UNMATCHED
        self._gap(code, invocation_id, prefix + _named(ref))

    def name_unowned(self) -> None:
        """Name every call that nobody owns, in capture order (D80)."""
        if None not in self.owners:
            return
        for call, owner in zip(self._lookup.identities, self.owners, strict=True):
            if owner is None:
                self._gap(OWNERSHIP_UNAVAILABLE, None, f"{_OF_CAPTURE}{call.name}:call_index={call.call_index}")

    def _gap(self, code: str, invocation_id: str | None, detail: str) -> None:
        self.gaps.append(gap(code, invocation_id, detail))


def _named(ref: Mapping[str, Any]) -> str:
    return ref["model_call_id"] or ref["response_id"] or "unknown"


def _found_by_a_join(given: Mapping[str, Any]) -> bool:
    """Whether a gap tells of an earlier join, and so is dropped before this one (D81)."""
    code, detail = given["code"], given["detail"] or ""
    if code != OWNERSHIP_UNAVAILABLE:
        return code in _REFERENCE_GAPS
    return detail.startswith(_OF_COMPACTION) or (given["invocation_id"] is None and detail.startswith(_OF_CAPTURE))
