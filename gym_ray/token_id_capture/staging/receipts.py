"""Makes the receipt of a rollout: its manifest, its reward, and the call that ended it, or why it cannot be trained on.

What witnesses say comes first, then the shape of the calls, then a mask. Where the end was declared, or witnesses
contradict each other, the shape is never asked: it would find some end, and the reward would go to wrong tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from gym_ray.token_id_capture.staging.constants import UNCOMMITTED_CALL_REASON, TerminalSelection
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, ManifestFailure, RolloutManifest, RolloutReceipt
from gym_ray.token_id_capture.staging.selection import select_terminal_call
from gym_ray.token_id_capture.terminal import TerminalAttribution, resolve_terminal

__all__ = ["build_receipt", "primary_reason"]

_EXPLICIT: Final = "explicit"
_CONFLICTING_ROWS: Final = "duplicate_manifest_row"
_DISAGREEMENT: Final = "witness_disagreement["
_NO_SUCH_RESPONSE: Final = "response_id_no_match"
# The call has a row and a failure: its answer may never have left, and then the agent went on from its parent.
_FAILED_AS_WELL: Final = "terminal_failed_as_well"


class _End(NamedTuple):
    call_id: str | None
    selection: TerminalSelection
    reason: str


def primary_reason(failures: Iterable[ManifestFailure]) -> str | None:
    """Return the first reason that makes a rollout untrainable, None if there is none (C321, C340).

    That a call's answer never committed is no such reason: such a call is the parent of nothing.
    """
    return next((failure.reason for failure in failures if failure.reason != UNCOMMITTED_CALL_REASON), None)


def build_receipt(
    manifest: RolloutManifest,
    response: object,
    *,
    reward: float | None,
    explicit_call_id: str | None = None,
    declared_response_id: str | None = None,
) -> RolloutReceipt:
    """Return the receipt of a rollout; a valid one whatever the manifest and the response hold (C194, C340, C349).

    It is poisoned if a call failed for a reason of its own, if no call can be told to have ended the rollout, or if one
    call has rows that differ. ``failure_reason`` is the first failure that poisons it, ``terminal_selection`` the stage
    that named the end, or the last one that tried, and ``terminal_attribution_reason`` what witnesses said.

    Args:
        manifest: The rollout's.
        response: What the agent delivered: a Responses object, or anything else, which then is no witness.
        reward: The rollout's reward, None if it was not measured.
        explicit_call_id: The call that the agent named as its last; a declaration like the next.
        declared_response_id: Id of the response that the agent declared as its last.

    Raises:
        ValueError: The reward is no finite number.
    """
    failure = primary_reason(manifest.failures)
    rows = _distinct(manifest.records)
    if rows is None:
        return RolloutReceipt(
            rollout_id=manifest.rollout_id,
            reward=reward,
            capture_poisoned=True,
            failure_reason=failure or _CONFLICTING_ROWS,
        )
    end = _end(rows, manifest.failures, response, explicit_call_id, declared_response_id)
    return RolloutReceipt(
        rollout_id=manifest.rollout_id,
        reward=reward,
        terminal_model_call_id=end.call_id,
        manifest=rows,
        capture_poisoned=failure is not None or end.call_id is None,
        failure_reason=failure,
        terminal_selection=end.selection,
        terminal_attribution_reason=end.reason or None,
    )


def _distinct(records: Sequence[CallRecord]) -> list[CallRecord] | None:
    """Return each row once, None if a call has rows that differ (C72)."""
    rows: dict[str, CallRecord] = {}
    for record in records:
        if rows.setdefault(record.model_call_id, record) != record:
            return None
    return list(rows.values())


def _end(
    rows: Sequence[CallRecord],
    failures: Sequence[ManifestFailure],
    response: object,
    explicit_call_id: str | None,
    declared_response_id: str | None,
) -> _End:
    found = resolve_terminal(rows, response, explicit_call_id, declared_response_id=declared_response_id)
    if found.model_call_id is not None:
        return _End(found.model_call_id, _selection(found.method), found.reason)
    is_declared = explicit_call_id is not None or declared_response_id is not None
    if is_declared or _DISAGREEMENT in found.reason or _has_died(found, failures):
        return _End(None, _last_stage(found, response), found.reason)
    selected = select_terminal_call(rows)
    if any(failure.model_call_id == selected.terminal_model_call_id for failure in failures):
        return _End(None, "heuristic", f"{found.reason},{selected.reason},{_FAILED_AS_WELL}")
    return _End(selected.terminal_model_call_id, "heuristic", f"{found.reason},{selected.reason}")


def _has_died(found: TerminalAttribution, failures: Iterable[ManifestFailure]) -> bool:
    """Whether the response is one of a call that never committed: its end is not among the rows (C340)."""
    has_uncommitted = any(failure.reason == UNCOMMITTED_CALL_REASON for failure in failures)
    return has_uncommitted and _NO_SUCH_RESPONSE in found.reason.split(",")


def _selection(method: str) -> TerminalSelection:
    """Return the method as a receipt has it: a call that the agent named was declared (C77)."""
    return "declared" if method == _EXPLICIT else cast("TerminalSelection", method)


def _last_stage(found: TerminalAttribution, response: object) -> TerminalSelection:
    """Return which witness was asked last; a declaration that fails is the last (C182), and no object is no witness."""
    stopped = "declared_" in found.reason
    return "declared" if stopped or not isinstance(response, Mapping) else "content"
