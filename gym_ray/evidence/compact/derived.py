"""Members that only repeat what the attachment says about the same call, and members that are null.

All of them are optional in the trajectory's and the bundle's schema, so a compact record leaves them out and stays
valid. A list is slimmed only as a whole and only if each of its objects has exactly the members of a full dump; so what
is restored is what was there, in the same order (D64, D71, D90).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact.places import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD
from gym_ray.model_call_capture.records import PAYLOAD_FIELDS, ModelCallRecord

__all__ = ["restored", "slimmed"]

_CALL = (
    "model_call_id",
    "started_at",
    "completed_at",
    "duration_ms",
    "request",
    "response",
    "response_metadata",
    "token_stats",
)
_METADATA = (
    "response_id",
    "model_ref",
    "model",
    "dialect",
    "status_code",
    "response_status",
    "finish_reason",
    "upstream_attempted",
    "response_source",
    "upstream_status_code",
    "local_response_reason",
    "error_category",
    "latency_ttft_ms",
)
_TOKENS = {
    "prompt_tokens": "tokens_in",
    "completion_tokens": "tokens_out",
    "reasoning_tokens": "tokens_reasoning",
    "total_tokens": "tokens_total",
    "cached_tokens": "cached_tokens",
}
_TURN = (
    "invocation_id",
    "task_id",
    "rollout_id",
    "turn_no",
    "timestamp",
    "question",
    "answer",
    "reasoning_content",
    "resolved",
    "step_count",
    "model_calls",
)
_CAPTURED = tuple(name for name in ModelCallRecord.model_fields if name not in PAYLOAD_FIELDS)
_REF = ("model_call_id", "model_ref", "response_id")

_Object = dict[str, Any]
_Calls = Mapping[str, Mapping[str, Any]]
"""The attachment's calls by id."""
_Slim = Callable[[_Object, _Calls], _Object]


def slimmed(record: _Object) -> list[str]:
    """Leave out of a record what can be restored exactly.

    Args:
        record: A new object of ours; its sections are replaced, not modified.

    Returns:
        The lists that were slimmed, as :func:`restored` needs them.
    """
    calls = _captured(record)
    done = []
    for name, (section, key, members, slim, _) in _LISTS.items():
        items = _items(record, section, key)
        if items and all(isinstance(item, dict) and _is_full(item, members) for item in items):
            record[section] = {**record[section], key: [slim(item, calls) for item in items]}
            done.append(name)
    return done


def restored(record: _Object, lists: list[str], place: str) -> None:
    """Put back what :func:`slimmed` left out; ``record`` gets new sections.

    Args:
        record: The slimmed record.
        lists: What :func:`slimmed` returned.
        place: The rollout's parts file, for messages.

    Raises:
        DamagedRecordError: A list is not there, or refers to a call that the attachment does not hold.
    """
    for name in reversed([name for name in _LISTS if name in lists]):
        section, key, _, _, widen = _LISTS[name]
        items = _items(record, section, key)
        if items is None:
            raise DamagedRecordError(f"{place}: {section}.{key} of the record is no list")
        calls = _captured(record)
        try:
            record[section] = {**record[section], key: [widen(item, calls) for item in items]}
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedRecordError(
                f"{place}: {section}.{key} refers to what the attachment does not hold: {error}"
            ) from error


def _items(record: Mapping[str, Any], section: str, key: str) -> list[Any] | None:
    part = record.get(section)
    items = part.get(key) if isinstance(part, dict) else None
    return items if isinstance(items, list) else None


def _is_full(item: _Object, members: tuple[str, ...]) -> bool:
    if members and tuple(item) != members:
        return False
    refs = item.get("model_calls", [])
    return isinstance(refs, list) and all(isinstance(ref, dict) and tuple(ref) == _REF for ref in refs)


def _captured(record: Mapping[str, Any]) -> _Calls:
    """Return the attachment's calls by id, without those whose id is not their own."""
    found: dict[str, Mapping[str, Any]] = {}
    twice: set[str] = set()
    for call in _items(record, ATTACHMENT_FIELD, "calls") or ():
        name = call.get("model_call_id") if isinstance(call, dict) else None
        if isinstance(name, str):
            if name in found:
                twice.add(name)
            found[name] = call
    return {name: call for name, call in found.items() if name not in twice}


def _same(one: Any, other: Any) -> bool:
    return exact_json.dumps(one) == exact_json.dumps(other)


def _without_nulls(item: _Object) -> _Object:
    return {key: value for key, value in item.items() if value is not None}


def _derived(captured: Mapping[str, Any]) -> _Object:
    return {
        "started_at": captured.get("started_at"),
        "completed_at": captured.get("completed_at"),
        "duration_ms": captured.get("latency_total_ms"),
        "response_metadata": {key: captured.get(key) for key in _METADATA},
        "token_stats": {key: captured.get(source) for key, source in _TOKENS.items()},
    }


def _slim_call(call: _Object, calls: _Calls) -> _Object:
    known = calls.get(call["model_call_id"] or "")
    if known is None:
        return call
    derived = _derived(known)
    return {key: value for key, value in call.items() if key not in derived or not _same(value, derived[key])}


def _widen_call(call: _Object, calls: _Calls) -> _Object:
    if len(call) == len(_CALL):
        return call
    whole = _derived(calls[call["model_call_id"]]) | call
    return {key: whole[key] for key in _CALL}


def _slim_refs(item: _Object, calls: _Calls) -> _Object:
    if not item.get("model_calls"):
        return item
    return {**item, "model_calls": [_slim_ref(ref, calls) for ref in item["model_calls"]]}


def _slim_ref(ref: _Object, calls: _Calls) -> _Object:
    name = ref["model_call_id"]
    known = calls.get(name or "")
    if known is None or not _same(ref, {key: known.get(key) for key in _REF}):
        return ref
    return {"model_call_id": name}


def _widen_refs(item: _Object, calls: _Calls) -> _Object:
    if not item.get("model_calls"):
        return item
    refs = [
        ref if len(ref) == len(_REF) else {key: calls[ref["model_call_id"]].get(key) for key in _REF}
        for ref in item["model_calls"]
    ]
    return {**item, "model_calls": refs}


def _slim_turn(turn: _Object, calls: _Calls) -> _Object:
    return _without_nulls(_slim_refs(turn, calls))


def _widen_turn(turn: _Object, calls: _Calls) -> _Object:
    return _widen_refs({key: turn.get(key) for key in _TURN}, calls)


def _slim_captured(call: _Object, _: _Calls) -> _Object:
    return _without_nulls(call)


def _widen_captured(call: _Object, _: _Calls) -> _Object:
    return {key: call.get(key) for key in _CAPTURED}


_LISTS: Mapping[str, tuple[str, str, tuple[str, ...], _Slim, _Slim]] = {
    "turns": (TRAJECTORY_FIELD, "turns", _TURN, _slim_turn, _widen_turn),
    "model_calls": (TRAJECTORY_FIELD, "model_calls", _CALL, _slim_call, _widen_call),
    "invocations": (TRAJECTORY_FIELD, "invocations", (), _slim_refs, _widen_refs),
    "records": (OBSERVATIONS_FIELD, "records", (), _slim_refs, _widen_refs),
    "calls": (ATTACHMENT_FIELD, "calls", _CAPTURED, _slim_captured, _widen_captured),
}
"""Name: section, list, members of a full dump (none: only its references must be full), and both directions.

The attachment's calls come last, and are restored first: the others are derived from them.
"""
