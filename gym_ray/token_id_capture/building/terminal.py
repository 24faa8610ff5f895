"""Which recorded call ended a rollout, as told by what the agent delivered (B111-B115).

There are several witnesses: a call id, a declared response id, the id of the response, its content. All that name a
call must name the same one. If they disagree, no call is attributed, because a wrong one would give the reward to wrong
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gym_ray.token_id_capture.building.calls import packed_record
from gym_ray.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint, is_model_authored
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["TerminalAttribution", "resolve_terminal"]

_EXPLICIT: Final = "explicit"
_DECLARED: Final = "declared"
_RESPONSE_ID: Final = "response_id"
_CONTENT_CUMULATIVE: Final = "content_cumulative"
_CONTENT_OUTPUT: Final = "content_output"


class TerminalAttribution(NamedTuple):
    """The call that ended a rollout.

    Attributes:
        model_call_id: The call, or None if no witness names one or they disagree.
        method: The first witness that named it; empty if there is no call.
        reason: Why witnesses abstained or disagreed and which ones agreed, joined by commas; also on success.
    """

    model_call_id: str | None
    method: str
    reason: str


class _Witness(NamedTuple):
    method: str
    call_id: str


def resolve_terminal(
    entries: Sequence[TokenEntry | PackedEntry],
    response: object,
    explicit_call_id: str | None = None,
    *,
    declared_response_id: str | None = None,
) -> TerminalAttribution:
    """Return the call that ended a rollout; never raises for bad records or responses (B111).

    Args:
        entries: The rollout's records in any order.
        response: What the agent delivered: a Responses object, or anything else, which then is no witness.
        explicit_call_id: The call that the agent named. If it was not captured, the others may still decide.
        declared_response_id: Id of the response that the agent declared as its last; if that was not captured, or is
            not one call, nothing else may decide.
    """
    records = list(_packed(entries))
    trail: list[str] = []
    witnesses: list[_Witness] = []
    if explicit_call_id is not None:
        if any(record.model_call_id == explicit_call_id for record in records):
            witnesses.append(_Witness(_EXPLICIT, explicit_call_id))
        else:
            trail.append("explicit_terminal_not_captured")
    if declared_response_id is not None:
        meant = [record for record in records if record.response_id == declared_response_id]
        call_id = _collapse(meant)
        if call_id is None:
            trail.append("declared_ambiguous" if meant else "declared_terminal_not_captured")
            return TerminalAttribution(None, "", ",".join(trail))
        witnesses.append(_Witness(_DECLARED, call_id))
    if isinstance(response, Mapping):
        _take(_by_response_id(records, response), witnesses, trail)
        _take(_by_content(records, response), witnesses, trail)
    else:
        trail.append("no_response_object")
    return _verdict(witnesses, trail)


def _packed(entries: Sequence[TokenEntry | PackedEntry]) -> Iterable[PackedEntry]:
    for entry in entries:
        try:
            yield packed_record(entry)
        except ValueError:
            continue  # the builder names it; it can end no chain


def _take(found: _Witness | str, witnesses: list[_Witness], trail: list[str]) -> None:
    if isinstance(found, _Witness):
        witnesses.append(found)
    else:
        trail.append(found)


def _by_response_id(records: Sequence[PackedEntry], response: Mapping[str, object]) -> _Witness | str:
    response_id = response.get("id")
    if not isinstance(response_id, str) or not response_id:
        return "response_has_no_id"
    meant = [record for record in records if record.response_id == response_id]
    if not meant:
        return "response_id_no_match"
    call_id = _collapse(meant)
    return "response_id_ambiguous" if call_id is None else _Witness(_RESPONSE_ID, call_id)


def _by_content(records: Sequence[PackedEntry], response: Mapping[str, object]) -> _Witness | str:
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    if not items:
        return "response_has_no_output"
    try:
        target = assistant_fingerprint(items)
        last_turn = assistant_fingerprint(_trailing_turn(items))
    except ValueError:
        return "response_output_unfingerprintable"
    if not target:
        return "no_model_authored_output"
    whole = [record for record in records if _continues_to(record, target)]
    own = [record for record in records if _own_fingerprint(record) in {target, last_turn or target}]
    if not whole and not own:
        return "no_content_match"
    call_id = _collapse([*whole, *own])
    if call_id is None:
        return "content_ambiguous"
    return _Witness(_CONTENT_CUMULATIVE if whole else _CONTENT_OUTPUT, call_id)


def _trailing_turn(items: Sequence[object]) -> Sequence[object]:
    start = len(items)
    while start and is_model_authored(items[start - 1]):
        start -= 1
    return items[start:]


def _continues_to(record: PackedEntry, target: str) -> bool:
    return record.continuation_fingerprint == target and record.fingerprint_version in (None, FINGERPRINT_VERSION)


def _own_fingerprint(record: PackedEntry) -> str:
    try:
        return assistant_fingerprint(record.output_items)
    except ValueError:
        return ""  # an item that cannot be hashed matches nothing


def _collapse(records: Iterable[PackedEntry]) -> str | None:
    """Return the smallest call id if all records are of one token sequence, else None (B113)."""
    by_id = {record.model_call_id: record for record in records}
    if not by_id:
        return None
    identities = {_identity(record) for record in by_id.values()}
    return min(by_id) if len(by_id) == 1 or len(identities) == 1 else None


def _identity(record: PackedEntry) -> tuple[object, ...]:
    if record.digest and record.cum_len is not None:
        return record.digest, record.cum_len
    prompt_follows = record.parent_call_id if record.prompt_is_delta else None
    return prompt_follows, tuple(record.prompt_token_ids.tolist()), tuple(record.generation_token_ids.tolist())


def _verdict(witnesses: Sequence[_Witness], trail: list[str]) -> TerminalAttribution:
    if not witnesses:
        return TerminalAttribution(None, "", ",".join(trail))
    if len({witness.call_id for witness in witnesses}) > 1:
        named = ";".join(f"{witness.method}={witness.call_id}" for witness in witnesses)
        return TerminalAttribution(None, "", ",".join([*trail, f"witness_disagreement[{named}]"]))
    first, *others = witnesses
    if others:
        trail.append("corroborated_by=" + "+".join(witness.method for witness in others))
    return TerminalAttribution(first.call_id, first.method, ",".join(trail))
