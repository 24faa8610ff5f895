"""Members that only repeat what the attachment says about the same call, and members that are null.

All of them are optional in the trajectory's and the bundle's schema, so a compact record leaves them out and stays
valid. A list is slimmed only as a whole and only if each of its objects has exactly the members of a full dump; so what
is restored is what was there, in the same order (D64, D71, D90).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD
from gym_ray.model_call_capture.records import PAYLOAD_FIELDS, ModelCallRecord

__all__ = ["restored", "slimmed"]

# Stored records are restored by these lists, so they stay as they are when the models get new fields.
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

_INVOCATION = (
    "kind",
    "invocation_id",
    "parent_invocation_id",
    "spawned_by_tool_call_id",
    "status",
    "duration_ms",
    "error_type",
    "model_calls",
    "conversation",
)

_Object = dict[str, Any]
_Calls = Mapping[str, Mapping[str, Any]]
"""The attachment's calls by id."""


def slimmed(record: _Object) -> list[str]:
    """Leave out of a record what can be restored exactly.

    Args:
        record: A new object of ours; its sections are replaced, not modified.

    Returns:
        The lists that were slimmed, as :func:`restored` needs them.
    """
    known = _Known.of(record)
    done = []
    for name, (section, key, members, slim, _) in _LISTS.items():
        items = _items(record, section, key)
        if items and all(isinstance(item, dict) and _is_full(item, members) for item in items):
            record[section] = {**record[section], key: slim(items, known)}
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
        try:
            record[section] = {**record[section], key: widen(items, _Known.of(record))}
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedRecordError(f"{place}: {section}.{key} refers to what the record lacks: {error}") from error


def _items(record: Mapping[str, Any], section: str, key: str) -> list[Any] | None:
    part = record.get(section)
    items = part.get(key) if isinstance(part, dict) else None
    return items if isinstance(items, list) else None


def _is_full(item: _Object, members: tuple[str, ...]) -> bool:
    if members and tuple(item) != members:
        return False
    if item.get("kind") == _INVOCATION_KIND and "model_calls" not in item:
        return False
    refs = item.get("model_calls", [])
    return isinstance(refs, list) and all(isinstance(ref, dict) and tuple(ref) == _REF for ref in refs)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a record says elsewhere.

    Attributes:
        calls: The attachment's calls by id, without those whose id is not their own.
        refs: References of the trajectory's invocations, by invocation id.
    """

    calls: _Calls
    refs: Mapping[str, Any]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Known:
        """Read it from a record."""
        invocations = _items(record, TRAJECTORY_FIELD, "invocations") or ()
        refs = {
            item["invocation_id"]: item.get("model_calls")
            for item in invocations
            if isinstance(item, dict) and isinstance(item.get("invocation_id"), str)
        }
        return cls(_captured(record), refs)


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


def _derived(captured: Mapping[str, Any]) -> _Object:
    return {
        "started_at": captured.get("started_at"),
        "completed_at": captured.get("completed_at"),
        "duration_ms": captured.get("latency_total_ms"),
        "response_metadata": {key: captured.get(key) for key in _METADATA},
        "token_stats": {key: captured.get(source) for key, source in _TOKENS.items()},
    }


def _slim_calls(items: list[_Object], known: _Known) -> list[_Object]:
    return [_slim_call(call, known.calls) for call in items]


def _slim_call(call: _Object, calls: _Calls) -> _Object:
    captured = calls.get(call["model_call_id"] or "")
    if captured is None:
        return call
    derived = _derived(captured)
    return {key: value for key, value in call.items() if key not in derived or not _same(value, derived[key])}


def _widen_calls(items: list[_Object], known: _Known) -> list[_Object]:
    return [_widen_call(call, known.calls) for call in items]


def _widen_call(call: _Object, calls: _Calls) -> _Object:
    if len(call) == len(_CALL):
        return call
    whole = _derived(calls[call["model_call_id"]]) | call
    return {key: whole[key] for key in _CALL}


def _slim_refs(items: list[_Object], known: _Known) -> list[_Object]:
    return [_with_refs(item, lambda ref: _slim_ref(ref, known.calls)) for item in items]


def _widen_refs(items: list[_Object], known: _Known) -> list[_Object]:
    return [_with_refs(item, lambda ref: _widen_ref(ref, known.calls)) for item in items]


def _with_refs(item: _Object, change: Callable[[_Object], _Object]) -> _Object:
    refs = item.get("model_calls")
    return {**item, "model_calls": [change(ref) for ref in refs]} if refs else item


def _slim_ref(ref: _Object, calls: _Calls) -> _Object:
    name = ref["model_call_id"]
    captured = calls.get(name or "")
    if captured is None or not _same(ref, {key: captured.get(key) for key in _REF}):
        return ref
    return {"model_call_id": name}


def _widen_ref(ref: _Object, calls: _Calls) -> _Object:
    return ref if len(ref) == len(_REF) else {key: calls[ref["model_call_id"]].get(key) for key in _REF}


def _slim_turns(items: list[_Object], known: _Known) -> list[_Object]:
    return [{key: value for key, value in turn.items() if value is not None} for turn in _slim_refs(items, known)]


def _widen_turns(items: list[_Object], known: _Known) -> list[_Object]:
    return _widen_refs([{key: turn.get(key) for key in _TURN} for turn in items], known)


def _slim_records(items: list[_Object], known: _Known) -> list[_Object]:
    """Leave out the references of an invocation that the trajectory has, too."""
    slim = []
    for item in _slim_refs(items, known):
        refs = item.get("model_calls")
        if tuple(item) == _INVOCATION and refs and item["invocation_id"] in known.refs:
            whole = _widen_refs([item], known)[0]["model_calls"]
            if _same(whole, known.refs[item["invocation_id"]]):
                slim.append({key: value for key, value in item.items() if key != "model_calls"})
                continue
        slim.append(item)
    return slim


def _widen_records(items: list[_Object], known: _Known) -> list[_Object]:
    whole = []
    for item in items:
        if item.get("kind") == _INVOCATION_KIND and "model_calls" not in item:
            with_refs = {**item, "model_calls": known.refs[item["invocation_id"]]}
            whole.append({key: with_refs[key] for key in _INVOCATION})
        else:
            whole.append(_widen_refs([item], known)[0])
    return whole


def _slim_captured(items: list[_Object], _: _Known) -> list[_Object]:
    """Keep of each call its id and what differs from the call before."""
    slim, before = [], _FIRST
    for call in items:
        expected = {**before, "call_index": before["call_index"] + 1}
        slim.append({key: value for key, value in call.items() if key == _REF[0] or not _same(value, expected[key])})
        before = call if isinstance(call["call_index"], int) else {**call, "call_index": -1}
    return slim


def _widen_captured(items: list[_Object], _: _Known) -> list[_Object]:
    whole, before = [], _FIRST
    for call in items:
        widened = {**before, "call_index": before["call_index"] + 1} | call
        whole.append({key: widened[key] for key in _CAPTURED})
        before = widened if isinstance(widened["call_index"], int) else {**widened, "call_index": -1}
    return whole


_INVOCATION_KIND = "agent_invocation"
_FIRST: _Object = {**dict.fromkeys(_CAPTURED), "call_index": -1}
_Slim = Callable[[list[_Object], _Known], list[_Object]]
_LISTS: Mapping[str, tuple[str, str, tuple[str, ...], _Slim, _Slim]] = {
    "records": (OBSERVATIONS_FIELD, "records", (), _slim_records, _widen_records),
    "turns": (TRAJECTORY_FIELD, "turns", _TURN, _slim_turns, _widen_turns),
    "model_calls": (TRAJECTORY_FIELD, "model_calls", _CALL, _slim_calls, _widen_calls),
    "invocations": (TRAJECTORY_FIELD, "invocations", (), _slim_refs, _widen_refs),
    "calls": (ATTACHMENT_FIELD, "calls", _CAPTURED, _slim_captured, _widen_captured),
}
"""Name: section, list, members of a full dump (none: only its references must be full), and both directions.

Each is slimmed before, and restored after, what it refers to.
"""
