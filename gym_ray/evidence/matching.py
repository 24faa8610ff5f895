"""Finds the captured call that a reference names (D74, D75).

Only identifiers count: a call id, or the pair of model server and response id. Time and position never do, and a
reference that contradicts a call in any identifier it carries does not name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_ray.model_call_capture.call_views import CallView

__all__ = ["CallIdentity", "CallLookup", "ModelRef", "match_calls", "model_ref_of"]

ModelRef = tuple[str, str]
"""Type and name of a model server."""


class CallIdentity(NamedTuple):
    """What a captured call can be recognised by, and nothing of what it said.

    Attributes:
        model_call_id: Id that the capture gave it.
        response_id: Id of its answer.
        model_ref: Type and name of the model server that served it.
        client_session_id: Session that the client named when it called.
        call_index: Place of its line in the capture file; it names the call in a gap and never links it.
    """

    model_call_id: str | None
    response_id: str | None
    model_ref: ModelRef | None
    client_session_id: str | None
    call_index: int

    @classmethod
    def of(cls, call: CallView) -> CallIdentity:
        """Return the identity of a captured call."""
        fields = call.fields
        return cls(
            fields["model_call_id"],
            fields["response_id"],
            model_ref_of(fields),
            fields["client_session_id"],
            fields["call_index"],
        )

    @classmethod
    def of_projected(cls, call: Mapping[str, Any], call_index: int) -> CallIdentity:
        """Return the identity of a call of a trajectory (D90); a trajectory names no session."""
        metadata = call.get("response_metadata") or {}
        return cls(call.get("model_call_id"), metadata.get("response_id"), model_ref_of(metadata), None, call_index)

    @property
    def name(self) -> str:
        """How a gap names the call: its id, else the id of its answer, else ``unknown`` (D80)."""
        return self.model_call_id or self.response_id or "unknown"

    def reference(self) -> dict[str, Any]:
        """Return the reference that carries every identifier of the call (D77), as a full JSON object."""
        ref = self.model_ref
        return {
            "model_call_id": self.model_call_id,
            "model_ref": None if ref is None else {"type": ref[0], "name": ref[1]},
            "response_id": self.response_id,
        }


def model_ref_of(holder: Mapping[str, Any]) -> ModelRef | None:
    """Return the ``model_ref`` of a reference, a call or response metadata, None when it has none."""
    ref = holder.get("model_ref")
    return None if ref is None else (ref["type"], ref["name"])


class CallLookup:
    """Calls of one rollout, found by identifier in constant time however many share one."""

    __slots__ = ("_by_id", "_by_pair", "_refined", "identities")

    def __init__(self, identities: Iterable[CallIdentity]) -> None:
        """Index the calls; positions in the answers are positions in ``identities``."""
        self.identities: Sequence[CallIdentity] = tuple(identities)
        self._by_id: dict[str, list[int]] = {}
        self._by_pair: dict[tuple[ModelRef, str], list[int]] = {}
        self._refined: dict[str, dict[tuple[ModelRef | None, str | None], list[int]]] = {}
        for place, (call_id, response_id, model_ref, *_) in enumerate(self.identities):
            if call_id:
                self._by_id.setdefault(call_id, []).append(place)
            if model_ref is not None and response_id:
                self._by_pair.setdefault((model_ref, response_id), []).append(place)

    def by_pair(self, model_ref: ModelRef, response_id: str) -> list[int]:
        """Return the places of the calls with that model server and response id."""
        return self._by_pair.get((model_ref, response_id), [])

    def by_call_id(self, call_id: str, model_ref: ModelRef | None, response_id: str | None) -> list[int]:
        """Return the places of the calls with that id that contradict neither of the two others, where given."""
        places = self._by_id.get(call_id, [])
        if model_ref is None and response_id is None:
            return places
        if len(places) > 1:
            return self._shared(call_id, places).get((model_ref, response_id), [])
        return [place for place in places if _agrees(self.identities[place], model_ref, response_id)]

    def _shared(self, call_id: str, places: list[int]) -> dict[tuple[ModelRef | None, str | None], list[int]]:
        """Index the calls that share an id by what tells them apart, when a reference first asks."""
        found = self._refined.get(call_id)
        if found is None:
            found = self._refined[call_id] = {}
            for place in places:
                call = self.identities[place]
                for key in {
                    (call.model_ref, None),
                    (None, call.response_id),
                    (call.model_ref, call.response_id),
                }:
                    found.setdefault(key, []).append(place)
        return found


def _agrees(call: CallIdentity, model_ref: ModelRef | None, response_id: str | None) -> bool:
    return (model_ref is None or call.model_ref == model_ref) and (
        response_id is None or call.response_id == response_id
    )


def match_calls(ref: Mapping[str, Any], calls: CallLookup) -> list[int]:
    """Return the places of every call that a reference names (D75).

    A reference with a call id names the calls with that id that contradict nothing else it says; one without names the
    calls with its model server and response id. One place is a match, none or several are not.

    Args:
        ref: A ``ModelCallRef`` as a JSON object.
        calls: The calls to look in.

    Returns:
        Ascending places in ``calls.identities``; owned by the lookup, not to be changed.
    """
    server, response_id, call_id = ref.get("model_ref"), ref.get("response_id"), ref.get("model_call_id")
    model_ref = None if server is None else (server["type"], server["name"])
    if call_id:
        return calls.by_call_id(call_id, model_ref, response_id)
    if model_ref is None or not response_id:
        return []
    return calls.by_pair(model_ref, response_id)
