"""The calls of a manifest as a forest: each call checked against its parent, chains read from the root on.

Every call is looked at once, however long the chains are that share it (C307).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gym_ray.errors import RebuildError
from gym_ray.token_id_capture.staging.ledger_records import CallRecord

__all__ = ["call_chain", "check_manifest_graph", "secondary_leaves"]

_ABANDONED_ROOT: Final = "abandoned_root"
"""Nothing continued the call: a request that was made again, or never used."""
_AMBIGUOUS_LEAF: Final = "ambiguous_leaf"
"""Several calls end the chain, and nothing tells which one counts."""


def check_manifest_graph(rows: Sequence[CallRecord]) -> None:
    """Check that each call's parent is there and ends where the call begins, and that no chain is a ring (C152).

    Raises:
        RebuildError: ``missing_parent``, ``parent_length_mismatch`` or ``lineage_cycle``.
    """
    by_id = {row.model_call_id: row for row in rows}
    verified: set[str] = set()
    for row in rows:
        walked: set[str] = set()
        current: CallRecord | None = row
        while current is not None and current.model_call_id not in verified:
            if current.model_call_id in walked:
                raise RebuildError("lineage_cycle", f"call {current.model_call_id!r} is its own ancestor")
            walked.add(current.model_call_id)
            current = _checked_parent(current, by_id)
        verified |= walked


def call_chain(terminal: str, rows: Mapping[str, CallRecord]) -> list[str]:
    """Return the ids from the root to ``terminal`` of a graph that was checked."""
    chain = []
    current: str | None = terminal
    while current is not None:
        chain.append(current)
        current = rows[current].parent_call_id
    chain.reverse()
    return chain


def secondary_leaves(rows: Sequence[CallRecord], main_root: str) -> list[tuple[str, str | None, str]]:
    """Return each root beside the main one with the call that ends its chain, or with why there is no such call.

    They stand in the order in which they were admitted; calls that were not timed come last, as the manifest has them.

    Returns:
        Root, leaf or None, and the code that says why there is no leaf.
    """
    children: dict[str, list[str]] = {}
    for row in rows:
        if row.parent_call_id is not None:
            children.setdefault(row.parent_call_id, []).append(row.model_call_id)
    roots = [row for row in rows if row.parent_call_id is None and row.model_call_id != main_root]
    roots.sort(key=lambda row: (row.admitted_at is None, row.admitted_at or 0.0))
    return [(row.model_call_id, *_only_leaf(row.model_call_id, children)) for row in roots]


def _only_leaf(root: str, children: Mapping[str, Sequence[str]]) -> tuple[str | None, str]:
    if root not in children:
        return None, _ABANDONED_ROOT
    current = root
    while below := children.get(current, ()):
        if len(below) > 1:
            return None, _AMBIGUOUS_LEAF
        current = below[0]
    return current, ""


def _checked_parent(row: CallRecord, by_id: Mapping[str, CallRecord]) -> CallRecord | None:
    if row.parent_call_id is None:
        return None
    parent = by_id.get(row.parent_call_id)
    if parent is None:
        raise RebuildError("missing_parent", f"call {row.model_call_id!r} continues {row.parent_call_id!r}")
    if parent.cum_len != row.prev_len:
        raise RebuildError(
            "parent_length_mismatch",
            f"call {row.model_call_id!r} begins at {row.prev_len}, its parent {row.parent_call_id!r} ends at "
            f"{parent.cum_len}",
        )
    return parent
