"""What a ledger knows of one rollout: which calls have rows or failures, and which call a request continues.

A row is found by what the model had written, in constant time however many rows there are (C308). Where anything is in
doubt, no row is the parent: two answers of the same text are one parent only if they are the same tokens (C323).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from gym_ray.errors import RecordConflictError
from gym_ray.token_id_capture.lineage import (
    AMBIGUOUS_REASON,
    LOOKUP_ERROR_REASON,
    CallIndex,
    LineageMatch,
    LineageResolution,
    Unresolved,
    hashed_items,
)
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.staging.ledger.ledger_lines import LedgerLine

__all__ = ["Addition", "RolloutRows"]

_KEYS_AS_HEAVY_AS_A_ROW: Final = 16


class Addition(Enum):
    """Whether a line is to be kept."""

    NEW = "new"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Key:
    """A staging key behind the chain of its parent, which all that continue it share (C308)."""

    key: str
    before: _Key | None

    def chain(self) -> tuple[str, ...]:
        """Return the keys from the root to this one."""
        keys, link = [], self
        while True:
            keys.append(link.key)
            if link.before is None:
                return tuple(reversed(keys))
            link = link.before


class _Row(NamedTuple):
    line: LedgerLine
    """Without its chain."""
    end: _Key | None
    """The end of its chain."""


@dataclass(slots=True)
class _Call:
    rows: list[_Row] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


class RolloutRows:
    """The rows of one rollout. Not for two threads at once.

    Attributes:
        weight: Memory in use, in rows.
        damaged: Places of lines that could not be read; nothing resolves while there are any.
    """

    __slots__ = ("_by_id", "_index", "_keys", "damaged", "weight")

    def __init__(self) -> None:
        self._by_id: dict[str, _Call] = {}
        self._index = CallIndex()
        self._keys: dict[str, _Key] = {}
        self.weight = 0
        self.damaged: list[str] = []

    def __bool__(self) -> bool:
        """Whether anything was recorded; failures and damaged lines count (C202)."""
        return bool(self._by_id or self.damaged)

    def add(self, line: LedgerLine) -> None:
        """Take a line; what is known already changes nothing."""
        call = self._by_id.setdefault(line.model_call_id, _Call())
        self.weight += 1
        if line.lookup is None:
            call.reasons.add(line.failure_reason or "")
        elif not any(row.line.sameness == line.sameness for row in call.rows):
            call.rows.append(_Row(replace(line, staging_chain=()), self._end_of(line.staging_chain)))
            if line.staging_key:
                self._index.add(line.lookup)

    def _end_of(self, chain: tuple[str, ...]) -> _Key | None:
        """Return the end of a chain, whose beginning is that of the parent if it has the same keys."""
        if not chain:
            return None
        before, own = chain[:-1], chain[-1]
        end = self._keys.get(before[-1]) if before else None
        if end is not None and end.chain() != before:
            end = None
        if end is None:
            for key in before:
                end = _Key(key, end)
            self.weight += len(before) // _KEYS_AS_HEAVY_AS_A_ROW
        end = self._keys[own] = _Key(own, end)
        return end

    def judge(self, line: LedgerLine) -> Addition:
        """Say whether a line is new (C201, C202).

        Raises:
            RecordConflictError: The call has another row, or a failure.
        """
        call = self._by_id.get(line.model_call_id)
        if call is None:
            return Addition.NEW
        if line.lookup is None:
            return Addition.REPLAY if line.failure_reason in call.reasons else Addition.NEW
        if call.reasons:
            reasons = ", ".join(sorted(call.reasons))
            raise RecordConflictError(f"call {line.model_call_id!r} failed already ({reasons}), so it gets no row")
        if any(row.line.sameness != line.sameness for row in call.rows):
            raise RecordConflictError(f"call {line.model_call_id!r} has another row already")
        return Addition.REPLAY if call.rows else Addition.NEW

    def resolve(self, items: Sequence[object]) -> LineageResolution:
        """Return which call a request continues (C208).

        Raises:
            ValueError: The items cannot be hashed.
        """
        hashed = hashed_items(items)
        if not hashed.hasher.fingerprint():
            return LineageResolution(ParentResolutionStatus.ROOT)
        if self.damaged:  # what cannot be read may be the parent, or its rival
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=LOOKUP_ERROR_REASON)
        found = self._index.parent_of(hashed)
        if isinstance(found, Unresolved):
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=found.reason)
        (row, end), *rivals = self._by_id[found.model_call_id].rows
        if rivals:  # nobody can say which of them the call was
            return LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=AMBIGUOUS_REASON)
        match = LineageMatch(
            row.model_call_id,
            (),
            row.digest,
            chain_hash=row.chain_hash,
            staging_chain=() if end is None else end.chain(),
            prev_len=row.cum_len,
        )
        return LineageResolution(ParentResolutionStatus.RESOLVED, match)
