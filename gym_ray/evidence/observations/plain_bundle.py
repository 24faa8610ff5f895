"""Reads a bundle that plainly keeps every rule, as those of agents that only say who made which call do.

The models decide about any other. What comes out is the same, for a third of the time, and every joined rollout has a
bundle.
"""

from __future__ import annotations

import math
from typing import Any

from gym_ray.evidence.observations.bundle import AgentObservationBundle, check_no_circle
from gym_ray.evidence.observations.conversation import validated_conversation
from gym_ray.evidence.observations.records import AgentInvocation, ModelCallRef

__all__ = ["plain_bundle"]

_OF_BUNDLE = frozenset(AgentObservationBundle.model_fields)
_OF_INVOCATION = frozenset(AgentInvocation.model_fields)
_OF_REFERENCE = frozenset(ModelCallRef.model_fields)
_OPTIONAL_TEXT = frozenset({str, type(None)})
_ENDINGS = frozenset({"completed", "failed", "incomplete", "unknown"})

_Object = dict[str, Any]


def plain_bundle(value: Any) -> _Object | None:
    """Return ``value`` as a full bundle, in new objects; None where only the models can tell whether it is one."""
    if type(value) is not dict or not _OF_BUNDLE.issuperset(value) or value.get("gaps"):
        return None
    source, records, gaps = value.get("source"), value.get("records", []), value.get("gaps", [])
    if type(source) is not str or not source.isascii() or type(records) is not list or type(gaps) is not list:
        return None
    parent_of: dict[str, str | None] = {}
    checked: list[_Object] = []
    for record in records:
        invocation = _invocation(record)
        if invocation is None or invocation["invocation_id"] in parent_of:
            return None
        parent_of[invocation["invocation_id"]] = invocation["parent_invocation_id"]
        checked.append(invocation)
    try:
        check_no_circle(parent_of)
    except ValueError:
        return None  # the models say so in their own words
    return {"source": source, "records": checked, "gaps": []}


def _invocation(record: Any) -> _Object | None:
    if type(record) is not dict or record.get("kind") != "agent_invocation" or not _OF_INVOCATION.issuperset(record):
        return None
    get = record.get
    own, parent, spawned_by, error = (
        get("invocation_id"),
        get("parent_invocation_id"),
        get("spawned_by_tool_call_id"),
        get("error_type"),
    )
    status, duration_ms = get("status", "unknown"), get("duration_ms")
    if (
        type(own) is not str
        or not _OPTIONAL_TEXT.issuperset(map(type, (parent, spawned_by, error)))
        or not f"{own}{parent}{spawned_by}{error}".isascii()
        or type(status) is not str
        or status not in _ENDINGS
        or not (duration_ms is None or (type(duration_ms) is float and 0.0 <= duration_ms < math.inf))
    ):
        return None
    calls, conversation = _references(get("model_calls", [])), _conversation(get("conversation", []))
    if calls is None or conversation is None:
        return None
    return {
        "kind": "agent_invocation",
        "invocation_id": own,
        "parent_invocation_id": parent,
        "spawned_by_tool_call_id": spawned_by,
        "status": status,
        "duration_ms": duration_ms,
        "error_type": error,
        "model_calls": calls,
        "conversation": conversation,
    }


def _conversation(items: Any) -> list[_Object] | None:
    if items == []:
        return []
    try:
        return validated_conversation(items)
    except ValueError:
        return None


def _references(refs: Any) -> list[_Object] | None:
    if type(refs) is not list:
        return None
    checked: list[_Object] = []
    for ref in refs:
        if (plain := _reference(ref)) is None:
            return None
        checked.append(plain)
    return checked


def _reference(ref: Any) -> _Object | None:
    if type(ref) is not dict or not _OF_REFERENCE.issuperset(ref):
        return None
    get = ref.get
    call_id, server, response_id = get("model_call_id"), get("model_ref"), get("response_id")
    if (
        type(call_id) not in _OPTIONAL_TEXT
        or type(response_id) not in _OPTIONAL_TEXT
        or not f"{call_id}{response_id}".isascii()
        or not (call_id or (server is not None and response_id))
    ):
        return None
    if server is not None:
        if type(server) is not dict or len(server) != 2 or server.get("type") != "responses_api_models":
            return None
        name = server.get("name")
        if type(name) is not str or not name.isascii():
            return None
        server = {"type": "responses_api_models", "name": name}
    return {"model_call_id": call_id, "model_ref": server, "response_id": response_id}
