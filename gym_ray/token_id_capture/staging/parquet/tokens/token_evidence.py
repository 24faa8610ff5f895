"""What all rows of a rollout come to: its records, one a call, and every reason why some may be missing.

A pure function of the rows, in whatever order they were written and read, so that two readers that see the same rows
say the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gym_ray.errors import DamagedRecordError
from gym_ray.token_id_capture.one_buffer import in_one_buffer
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import (
    CALL_WITHOUT_RECORD,
    CONFLICTING_RECORD,
    DAMAGED_LINE,
    INVALID_RECORD,
)
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import (
    CLEARED,
    StoredEvent,
    events_of,
    marks_of,
    open_calls,
)
from gym_ray.token_id_capture.staging.parquet.tokens.token_rows import StoredRecord, records_of
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import IndexedSegment, RowGroup, TokenSegments

__all__ = ["RolloutRows", "collect_rows", "read_rows"]

RowT = TypeVar("RowT", StoredRecord, StoredEvent)


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """The rows of a rollout that count.

    Attributes:
        rollout_id: The rollout.
        records: Its records, the earliest first, equal and differing ones of one call included.
        events: What was said beside them.
        cleared: Segments whose rows of the rollout count no more, because it began anew since.
        damage: What is wrong with segments that cannot be read, and may hold rows of the rollout.
    """

    rollout_id: str
    records: Sequence[StoredRecord]
    events: Sequence[StoredEvent]
    cleared: frozenset[str]
    damage: Sequence[str]

    @property
    def version(self) -> int:
        """Moves with every row that says anything new: 1, and one more for each differing record and each event."""
        return 1 + len({(record.model_call_id, record.digest) for record in self.records}) + len(self.events)

    @property
    def is_evidence(self) -> bool:
        """Whether there is a record, an open call or a mark (W30)."""
        return bool(self.records or open_calls(self.events) or marks_of(self.events) or self.damage)

    def snapshot(self) -> tuple[list[PackedEntry], list[CaptureProblem]]:
        """Return the readable records in one buffer, one a call, and every reason why the rollout is incomplete."""
        entries: list[PackedEntry] = []
        problems = [CaptureProblem(DAMAGED_LINE, "", damage) for damage in self.damage]
        firsts: dict[str, StoredRecord] = {}
        for record in self.records:
            first = firsts.setdefault(record.model_call_id, record)
            if first is record:
                try:
                    entries.append(record.entry(self.rollout_id))
                except DamagedRecordError as error:
                    problems.append(CaptureProblem(INVALID_RECORD, record.model_call_id, str(error)))
            elif first.digest != record.digest:
                detail = f"{_place(record)} differs from {_place(first)}, which was kept"
                problems.append(CaptureProblem(CONFLICTING_RECORD, record.model_call_id, detail))
        problems += marks_of(self.events)
        named = {problem.model_call_id for problem in problems}
        dangling = [call_id for call_id in open_calls(self.events) if call_id not in firsts and call_id not in named]
        problems += [CaptureProblem(CALL_WITHOUT_RECORD, call_id) for call_id in dangling]
        return in_one_buffer(entries), problems


def read_rows(index: TokenSegments, rollout_id: str, *, tokens: bool = True) -> RolloutRows:
    """Return the rows of a rollout; all whose commit returned before the call are there.

    Args:
        index: Where they are.
        rollout_id: The rollout.
        tokens: Whether records are wanted with all they hold, or only with what tells them apart.

    Raises:
        StorageError: The store cannot be read.
    """
    while True:
        segments = index.refresh()
        damage = [segment.damage for segment in segments if segment.damage]
        groups: list[RowGroup] | None
        try:
            groups = index.read(segments, rollout_id, tokens=tokens)
        except ValueError:
            groups, damaged = _read_one_by_one(index, segments, rollout_id, tokens=tokens)
            damage += damaged
        if groups is not None:
            return collect_rows(rollout_id, groups, damage)


def collect_rows(
    rollout_id: str,
    groups: Sequence[RowGroup],
    damage: Sequence[str] = (),
    cleared_before: frozenset[str] = frozenset(),
) -> RolloutRows:
    """Return the rows of a rollout that count.

    Args:
        rollout_id: The rollout.
        groups: Row groups that may hold rows of it.
        damage: What is wrong with others.
        cleared_before: Segments that are known to count no more.
    """
    events = _once(
        event
        for group in groups
        if group.is_events
        for event in events_of(group.table, rollout_id, group.segment, group.group, group.place)
    )
    cleared = cleared_before.union(*(json.loads(one.detail) for one in events if one.event == CLEARED))
    records = _once(
        record
        for group in groups
        if not group.is_events
        for record in records_of(group.table, rollout_id, group.segment, group.group, group.place)
        if record.place[0] not in cleared
    )
    kept = [event for event in events if event.event != CLEARED and event.place[0] not in cleared]
    records.sort(key=lambda one: (one.created_at, one.place))
    return RolloutRows(rollout_id, records, kept, cleared, damage)


def _once(rows: Iterable[RowT]) -> list[RowT]:
    """Return rows without the copies that runs of compaction made of the same row at the same time."""
    return list({row.place: row for row in rows}.values())


def _read_one_by_one(
    index: TokenSegments, segments: Sequence[IndexedSegment], rollout_id: str, *, tokens: bool
) -> tuple[list[RowGroup] | None, list[str]]:
    """Read what can be read, and say what cannot (W39); None where compaction removed a segment meanwhile."""
    groups: list[RowGroup] = []
    damage: list[str] = []
    for segment in segments:
        try:
            found = index.read([segment], rollout_id, tokens=tokens)
            if found is None:
                return None, []
            groups += found
        except ValueError as error:
            damage.append(str(error))
    return groups, damage


def _place(record: StoredRecord) -> str:
    segment, group, row = record.place
    return f"{segment}, row group {group}, row {row}"
