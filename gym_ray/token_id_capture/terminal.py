"""Which recorded call ended a rollout, as told by what the agent delivered (B111-B115, C180-C189).

There are several witnesses: a call id, a declared response id, the id of the response, its content. All that name a
call must name the same tokens. If they disagree, no call is attributed, because a wrong one would give the reward to
wrong tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gym_ray.token_id_capture.fingerprint import assistant_fingerprint, is_model_authored
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.terminal_rows import CustodyRow, TerminalRow, terminal_rows

__all__ = ["TerminalAttribution", "resolve_terminal"]

_EXPLICIT: Final = "explicit"
_DECLARED: Final = "declared"
_RESPONSE_ID: Final = "response_id"
# Bits of an integer that can be an id: what is longer counts nothing, and Python does not spell every one.
_LONGEST_COUNT: Final = 64


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
    row: TerminalRow


def resolve_terminal(
    rows: Sequence[TokenEntry | PackedEntry | CustodyRow],
    response: object,
    explicit_call_id: str | None = None,
    *,
    declared_response_id: str | None = None,
) -> TerminalAttribution:
    """Return the call that ended a rollout; never raises for bad records or responses (B111, C180).

    Args:
        rows: The rollout's records or its custody rows, in any order.
        response: What the agent delivered: a Responses object, or anything else, which then is no witness.
        explicit_call_id: The call that the agent named. If it was not captured, the others may still decide.
        declared_response_id: Id of the response that the agent declared as its last; if that was not captured, or is
            not one call, nothing else may decide (C182).
    """
    candidates = list(terminal_rows(rows))
    trail: list[str] = []
    witnesses: list[_Witness] = []
    if explicit_call_id is not None:
        named = [row for row in candidates if row.model_call_id == explicit_call_id]
        if named:
            witnesses.append(_Witness(_EXPLICIT, named[0]))
        else:
            trail.append("explicit_terminal_not_captured")
    if declared_response_id is not None:
        meant = [row for row in candidates if row.response_id == declared_response_id]
        declared = _collapse(meant)
        if declared is None:
            trail.append("declared_ambiguous" if meant else "declared_terminal_not_captured")
            return TerminalAttribution(None, "", ",".join(trail))
        witnesses.append(_Witness(_DECLARED, declared))
    if isinstance(response, Mapping):
        _take(_by_response_id(candidates, response), witnesses, trail)
        _take(_by_content(candidates, response), witnesses, trail)
    else:
        trail.append("no_response_object")
    return _verdict(witnesses, trail)


def _take(found: _Witness | str, witnesses: list[_Witness], trail: list[str]) -> None:
    if isinstance(found, _Witness):
        witnesses.append(found)
    else:
        trail.append(found)


def _by_response_id(rows: Sequence[TerminalRow], response: Mapping[str, object]) -> _Witness | str:
    response_id = _id_of(response)
    if not response_id:
        return "response_has_no_id"
    meant = [row for row in rows if row.response_id == response_id]
    if not meant:
        return "response_id_no_match"
    row = _collapse(meant)
    return "response_id_ambiguous" if row is None else _Witness(_RESPONSE_ID, row)


def _id_of(response: Mapping[str, object]) -> str:
    """Return the id as text; some agents count their responses (C181)."""
    response_id = response.get("id")
    if isinstance(response_id, int) and not isinstance(response_id, bool):
        return str(response_id) if response_id.bit_length() <= _LONGEST_COUNT else ""
    return response_id if isinstance(response_id, str) else ""


def _by_content(rows: Sequence[TerminalRow], response: Mapping[str, object]) -> _Witness | str:
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    if not items:
        return "response_has_no_output"
    try:
        target = assistant_fingerprint(items)
        last_turn = assistant_fingerprint(_trailing_turn(items))
    except (ValueError, RecursionError):  # nested too deep is one way of being malformed
        return "response_output_unfingerprintable"
    if not target:
        return "no_model_authored_output"
    whole = [row for row in rows if row.continues_to(target)]
    own = [row for row in rows if row.wrote({target, last_turn or target})]
    if not whole and not own:
        return "no_content_match"
    row = _collapse([*whole, *own])
    if row is None:
        return "content_ambiguous"
    if_whole, if_own = row.content_methods
    return _Witness(if_whole if whole else if_own, row)


def _trailing_turn(items: Sequence[object]) -> Sequence[object]:
    start = len(items)
    while start and is_model_authored(items[start - 1]):
        start -= 1
    return items[start:]


def _collapse(rows: Iterable[TerminalRow]) -> TerminalRow | None:
    """Return the row with the smallest call id if all are of one token sequence, else None (B113, C184)."""
    by_id = {row.model_call_id: row for row in rows}
    if not by_id:
        return None
    is_one = len(by_id) == 1 or len({row.identity for row in by_id.values()}) == 1
    return by_id[min(by_id)] if is_one else None


def _verdict(witnesses: Sequence[_Witness], trail: list[str]) -> TerminalAttribution:
    if not witnesses:
        return TerminalAttribution(None, "", ",".join(trail))
    if _collapse(witness.row for witness in witnesses) is None:
        named = ";".join(f"{witness.method}={witness.row.model_call_id}" for witness in witnesses)
        return TerminalAttribution(None, "", ",".join([*trail, f"witness_disagreement[{named}]"]))
    first, *others = witnesses
    if others:
        trail.append("corroborated_by=" + "+".join(witness.method for witness in others))
    return TerminalAttribution(first.row.model_call_id, first.method, ",".join(trail))
