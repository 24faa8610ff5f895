"""Which call continues which: only where the records say so and the tokens prove it (B103-B105, W26, W27).

A call whose predecessor is not proved starts a fragment of its own and is named. No link is guessed from equal tokens.
A link may skip only calls that are known to have generated nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gym_ray.token_id_capture.building.calls import Call, continues
from gym_ray.token_id_capture.reasons import (
    MISSING_RESOLUTION,
    PARENT_CALL_ID_MISSING,
    PARENT_CALL_ID_MISSING_RECOVERED,
    PARENT_DIGEST_MISMATCH,
    PARENT_UNRESOLVED,
)
from gym_ray.token_id_capture.records import ParentResolutionStatus

__all__ = [
    "Links",
    "link_calls",
    "path_of",
]


@dataclass(slots=True)
class Links:
    """The calls of a rollout, linked.

    Attributes:
        order: Calls that generated something, each behind the one it continues: by length of the prompt, then id.
        notes: A code and the call id of every link that was not simply found.
        boundaries: Call id to code, of the calls whose predecessor is not proved.
    """

    order: list[Call]
    notes: list[tuple[str, str]] = field(default_factory=list)
    boundaries: dict[str, str] = field(default_factory=dict)


def link_calls(calls: Iterable[Call]) -> Links:
    """Link proved calls: set ``parent``, ``root``, ``extended`` and ``delivered``.

    Calls without a generation only carry links.
    A parent is shorter than its child, so the result does not depend on the order of ``calls`` (B141).
    """
    found = list(calls)
    empties = _Empties({call.call_id: call for call in found})
    links = Links(sorted((call for call in found if call.generated), key=lambda call: (call.prompt_len, call.call_id)))
    seen: dict[str, Call] = {}
    for call in links.order:
        parent, code = _parent_of(call, seen, empties)
        if parent is not None:
            call.parent, call.root, parent.extended = parent, parent.root or parent, True
        call.delivered = call.generated + (parent.delivered if parent else 0)
        if code:
            links.notes.append((code, call.call_id))
            if parent is None:
                links.boundaries[call.call_id] = code
        seen[call.call_id] = call
    return links


def path_of(call: Call) -> list[Call]:
    """Return the calls from the root to ``call``."""
    path = []
    node: Call | None = call
    while node is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path


def _parent_of(call: Call, seen: Mapping[str, Call], empties: _Empties) -> tuple[Call | None, str]:
    status, parent_id = call.record.parent_resolution, call.record.parent_call_id
    if status is ParentResolutionStatus.ROOT:
        return None, ""
    if status is ParentResolutionStatus.UNRESOLVED:
        return None, PARENT_UNRESOLVED
    if parent_id is None:
        return None, MISSING_RESOLUTION
    parent = seen.get(parent_id)
    if parent is not None:
        return (parent, "") if continues(call, parent) else (None, PARENT_DIGEST_MISMATCH)
    recovered = empties.ancestor_behind(call, parent_id)
    return recovered, PARENT_CALL_ID_MISSING if recovered is None else PARENT_CALL_ID_MISSING_RECOVERED


class _Empties:
    """Calls that generated nothing: a link may pass through them, as long as each step is proved (W27)."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._behind: dict[str, Call | None] = {}

    def ancestor_behind(self, call: Call, parent_id: str) -> Call | None:
        """Return the nearest call with a generation that ``call`` continues through the empty call ``parent_id``."""
        empty = self._calls.get(parent_id)
        if empty is None or empty.generated or not continues(call, empty):
            return None
        return self._ancestor(empty)

    def _ancestor(self, empty: Call) -> Call | None:
        passed: list[Call] = []
        node = empty
        while node.call_id not in self._behind:
            self._behind[node.call_id] = None  # also ends a circle
            passed.append(node)
            parent = self._claimed_parent(node)
            if parent is None or not continues(node, parent):
                return None
            if parent.generated:
                self._behind[node.call_id] = parent
                break
            node = parent
        ancestor = self._behind[node.call_id]
        self._behind.update((call.call_id, ancestor) for call in passed)
        return ancestor

    def _claimed_parent(self, call: Call) -> Call | None:
        if call.record.parent_resolution in (None, ParentResolutionStatus.RESOLVED) and call.record.parent_call_id:
            return self._calls.get(call.record.parent_call_id)
        return None
