"""Tells which call ended a rollout when nothing else does: by the shape of its calls alone (C190-C193).

A heuristic: asked only when no witness named a call and none was declared (C194, C349). Of what cannot be told apart
it names nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gym_ray.token_id_capture.staging.constants import TerminalSelectionOutcome
from gym_ray.token_id_capture.staging.ledger_records import CallRecord

__all__ = ["SelectedTerminal", "select_terminal_call"]


class SelectedTerminal(NamedTuple):
    """The call that ended a rollout, as its calls look.

    Attributes:
        terminal_model_call_id: The call, None if none can be told.
        reason: How that was told, or why not (C17).
    """

    terminal_model_call_id: str | None
    reason: TerminalSelectionOutcome


def select_terminal_call(rows: Sequence[CallRecord]) -> SelectedTerminal:
    """Return the call at the end of the rollout's main branch (C190-C192). Linear in the rows.

    Calls that went on beat those that did not: of roots the one admitted first, of siblings the only one. So a retry
    that was given up is passed over, and a retry of the last call leaves nothing.

    Args:
        rows: The rows of a manifest, in its order.
    """
    if not rows:
        return SelectedTerminal(None, "no_records")
    known = {row.model_call_id for row in rows}
    if len(known) < len(rows):
        return SelectedTerminal(None, "duplicate_call_id")
    children: dict[str, list[CallRecord]] = {}
    roots: list[CallRecord] = []
    for row in rows:
        if row.parent_call_id is None:
            roots.append(row)
        elif row.parent_call_id in known:
            children.setdefault(row.parent_call_id, []).append(row)
        else:
            return SelectedTerminal(None, "orphaned_row")
    if not roots:
        return SelectedTerminal(None, "no_root")
    return _descend(_first(_continued(roots, children.__contains__)), children)


def _continued(rows: Sequence[CallRecord], has_children: Callable[[str], bool]) -> Sequence[CallRecord]:
    """Return those that went on, or all if none did."""
    return [row for row in rows if has_children(row.model_call_id)] or rows


def _first(roots: Sequence[CallRecord]) -> CallRecord:
    """Return the root that was admitted first; one without a stamp comes last, and position breaks ties (C191)."""
    return min(roots, key=lambda row: (row.admitted_at is None, row.admitted_at or 0.0))


def _descend(row: CallRecord, children: dict[str, list[CallRecord]]) -> SelectedTerminal:
    while next_rows := children.get(row.model_call_id):
        kept = _continued(next_rows, children.__contains__)
        if len(kept) > 1:
            return SelectedTerminal(None, "ambiguous_terminal")
        row = kept[0]
    return SelectedTerminal(row.model_call_id, "selected")
