"""Puts staged calls of many small segments into few, drops the retired ones: by command, beside readers and writers.

The order is what keeps every key valid at every moment: the plan, the new segment, a note for each old one, and only
after a delay the end of the old ones. A crash between any two of these loses nothing, and the next run goes on from
there. Nothing is removed that was not found again, row by row, in what replaces it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gym_ray.errors import CaptureError, StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import write_calls_segment
from gym_ray.token_id_capture.staging.parquet.calls.retirement import Retirements
from gym_ray.token_id_capture.staging.parquet.calls.stored_calls import StoredCall, read_items, stored_calls
from gym_ray.token_id_capture.staging.parquet.segments.committer import SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.identity import read_identity
from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    CALLS_KIND,
    EVENTS_KIND,
    TOKENS_KIND,
    SegmentName,
    new_writer,
    parse_segment_name,
)
from gym_ray.token_id_capture.staging.parquet.segments.moves import MoveNote, Moves, encode_note, note_name
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader
from gym_ray.token_id_capture.staging.parquet.tokens.token_marker_sweep import forget_dropped
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_plan import CompactionPlan, is_plan, read_plan
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_report import CompactionReport, CompactionRules
from gym_ray.token_id_capture.staging.parquet.upkeep.token_compaction import compact_tokens

__all__ = ["CompactionReport", "CompactionRules", "compact"]


def compact(
    store: SegmentStore,
    *,
    partition: str | None = None,
    rules: CompactionRules | None = None,
    now: Callable[[], float] = time.time,
) -> CompactionReport:
    """Finish what an earlier run began, put small segments together, and remove old ones whose delay is over.

    Calls, token records and events alike: what was retired, dropped or cleared is left out. Writers and readers may be
    at work, and even another run: then some calls may be there twice for a while, and of token segments only the later
    run writes new ones.

    Args:
        store: The store.
        partition: The only partition that is touched; None for all.
        rules: What is worth to be written anew.
        now: Seconds since 1970.

    Raises:
        CaptureError: The place is no staging store.
        StorageError: The store failed. What was done is consistent; the next run goes on.
    """
    store_id = read_identity(store)
    if store_id is None:
        raise CaptureError(f"{store.place}: no staging store is here; name the place that a sink was given")
    rules = rules or CompactionRules()
    report = _Run(store, store_id, partition, rules, now).report()
    _compact_tokens(store, store_id, partition, rules, now, report)
    return report


def _compact_tokens(
    store: SegmentStore,
    store_id: str,
    partition: str | None,
    rules: CompactionRules,
    now: Callable[[], float],
    report: CompactionReport,
) -> None:
    """Do the same for token records and events; forget dropped rollouts only where all partitions were looked at."""
    found = {
        parsed.partition
        for parsed in map(parse_segment_name, store.list())
        if parsed is not None and parsed.kind in (TOKENS_KIND, EVENTS_KIND)
    }
    began = now()
    present: set[int] | None = set()
    for name in sorted(found if partition is None else found & {partition}):
        keys = compact_tokens(store, store_id, name, rules, now, report)
        present = None if keys is None or present is None else present | keys
    if rules.forget_dropped_after_s is None:
        return
    if present is None or partition is not None:
        why = "only one partition was looked at" if partition is not None else "some segments cannot be read"
        report.problems.append(f"{store.place}: no dropped rollout was forgotten: {why}")
        return
    report.forgotten += forget_dropped(TokenMarkers(store), present, began - rules.forget_dropped_after_s)


@dataclass(frozen=True, slots=True)
class _Segment:
    name: SegmentName
    size: int
    calls: tuple[StoredCall, ...]
    kept: int

    @property
    def row_groups(self) -> float:
        """Row groups that its calls take in a segment, about."""
        return sum(call.row_groups for call in self.calls)

    def is_large(self, rules: CompactionRules) -> bool:
        """Whether it is large enough to be left alone, so that no call is copied again and again."""
        is_full = 2 * len(self.calls) >= rules.max_calls or 2 * self.row_groups >= rules.max_row_groups
        return is_full or 2 * self.size >= rules.max_bytes

    def is_worth(self, rules: CompactionRules) -> bool:
        """Whether it should be written anew even alone."""
        retired = len(self.calls) - self.kept
        return bool(retired) and retired >= rules.retired_share * len(self.calls)


class _Run:
    def __init__(
        self,
        store: SegmentStore,
        store_id: str,
        partition: str | None,
        rules: CompactionRules,
        now: Callable[[], float],
    ) -> None:
        self._store, self._store_id, self._partition, self._rules, self._now = store, store_id, partition, rules, now
        self._moves = Moves(store)
        self._retired = Retirements(store).all(rules.max_parallel)
        self._report = CompactionReport()

    def report(self) -> CompactionReport:
        """Do everything there is to do, and return what that was."""
        names = set(self._store.list())
        for name in sorted(filter(is_plan, names)):
            self._resume(name)
        found = [parsed for parsed in map(parse_segment_name, names) if parsed is not None and self._is_ours(parsed)]
        moved: list[SegmentName] = []
        live: list[SegmentName] = []
        for segment in sorted(found, key=str):
            is_moved = note_name(str(segment)) in names or str(segment) in self._report.moved
            (moved if is_moved else live).append(segment)
        for group in self._groups(self._scan(live)):
            self._merge(group)
        for segment in [*moved, *(name for name in live if str(name) in self._report.moved)]:
            self._remove(str(segment))
        return self._report

    def _is_ours(self, segment: SegmentName) -> bool:
        return segment.kind == CALLS_KIND and self._partition in (None, segment.partition)

    def _scan(self, names: Sequence[SegmentName]) -> Iterator[_Segment]:
        with ThreadPoolExecutor(self._rules.max_parallel, thread_name_prefix="compaction") as pool:
            for found in pool.map(self._look_at, names):
                if isinstance(found, _Segment):
                    yield found
                elif found:
                    self._report.problems.append(found)

    def _look_at(self, name: SegmentName) -> _Segment | str:
        try:
            reader = SegmentReader(self._store, str(name))
            calls = tuple(stored_calls(reader))
        except StorageMissingError:
            return ""  # another run has removed it
        except ValueError as error:
            return str(error)
        return _Segment(name, reader.size, calls, sum(call.identity not in self._retired for call in calls))

    def _groups(self, segments: Iterable[_Segment]) -> Iterator[list[_Segment]]:
        """Yield the segments that shall become one: of one partition, not too many calls, bytes or row groups."""
        open_groups: dict[str, list[_Segment]] = defaultdict(list)
        for segment in segments:
            if segment.is_large(self._rules) and not segment.is_worth(self._rules):
                continue
            group = open_groups[segment.name.partition]
            if group and not self._fit([*group, segment]):
                yield from self._worthwhile(group)
                open_groups[segment.name.partition] = group = []
            group.append(segment)
        for group in open_groups.values():
            yield from self._worthwhile(group)

    def _fit(self, group: Sequence[_Segment]) -> bool:
        return (
            sum(segment.kept for segment in group) <= self._rules.max_calls
            and sum(segment.size for segment in group) <= self._rules.max_bytes
            and sum(segment.row_groups for segment in group) <= self._rules.max_row_groups
        )

    def _worthwhile(self, group: list[_Segment]) -> Iterator[list[_Segment]]:
        if len(group) > 1 or group[0].is_worth(self._rules):
            yield group

    def _merge(self, group: Sequence[_Segment]) -> None:
        if not any(segment.kept for segment in group):
            for segment in group:
                self._note(str(segment.name), None, {})
            return
        target = SegmentName(group[0].name.partition, new_writer(), 0, CALLS_KIND)
        plan = CompactionPlan(str(target), tuple(str(segment.name) for segment in group))
        self._store.publish(plan.name, plan.encoded())
        try:
            self._write(target, group)
        except (StorageMissingError, ValueError) as error:
            self._report.problems.append(f"{', '.join(plan.sources)} were left as they are: {error}")
            self._store.delete(plan.name)
            return
        self._report.written.append(plan.target)
        self._finish(plan)
        self._store.delete(plan.name)

    def _write(self, target: SegmentName, group: Sequence[_Segment]) -> None:
        items: list[CallItem] = []
        written: set[tuple[object, ...]] = set()
        for segment in group:
            wanted = []
            for call in segment.calls:
                if call.identity not in self._retired and call.content not in written:
                    written.add(call.content)
                    wanted.append(call)
            items.extend(read_items(SegmentReader(self._store, str(segment.name)), wanted))
        with self._store.stream(str(target)) as value:
            write_calls_segment(SegmentStream(target, value, lambda: None), items, self._store_id)
            value.publish()

    def _resume(self, plan_name: str) -> None:
        """Finish a plan that an earlier run left, or forget it if its segment was not written."""
        try:
            self._finish(read_plan(self._store, plan_name))
        except ValueError as error:
            self._report.problems.append(str(error))
        except StorageMissingError:
            pass  # another run was faster
        self._store.delete(plan_name)

    def _finish(self, plan: CompactionPlan) -> None:
        """Write the notes of a plan whose segment is there."""
        try:
            target: dict[tuple[object, ...], tuple[int, int]] = {}
            for call in stored_calls(SegmentReader(self._store, plan.target)):
                target.setdefault(call.content, (call.row_group, call.row))
            for source in plan.sources:
                self._note(source, plan.target, target)
        except StorageMissingError:
            return  # it was not written, or is compacted already: the sources have their calls still, or their notes
        except ValueError as error:
            self._report.problems.append(str(error))

    def _note(self, source: str, target: str | None, found: dict[tuple[object, ...], tuple[int, int]]) -> None:
        """Say where the calls of a segment are; unless each of them is there or retired, it stays where it is."""
        rows: dict[tuple[int, int], tuple[int, int] | None] = {}
        try:
            calls = stored_calls(SegmentReader(self._store, source))
        except StorageMissingError:
            return  # removed by an earlier run, which had written the note
        for call in calls:
            place = found.get(call.content)
            if place is None and call.identity not in self._retired:
                raise ValueError(
                    f"{self._store.place}/{source}: call {call.identity.model_call_id} of rollout "
                    f"{call.identity.rollout_id} is not in {target}, so the segment stays"
                )
            rows[call.row_group, call.row] = place
        self._put(note_name(source), encode_note(source, MoveNote(self._now(), target, rows)))
        self._report.moved.append(source)
        self._report.dropped_calls += sum(place is None for place in rows.values())

    def _put(self, name: str, data: bytes) -> None:
        if not self._store.exclusive:
            if not self._store.exists(name):
                self._store.publish(name, data)
            return
        try:
            self._store.create(name, data)
        except StorageExistsError:
            return  # of an earlier run or of another one: the first note is the one that readers follow

    def _remove(self, segment: str) -> None:
        try:
            note = self._moves.note_of(segment)
        except ValueError as error:
            self._report.problems.append(str(error))
            return
        if note is None or not self._is_reachable(note):
            self._report.problems.append(f"{self._store.place}/{segment} stays: what its note names is not there")
        elif self._now() - note.moved_at < self._rules.delay_s:
            self._report.waiting.append(segment)
        else:
            self._store.delete(segment)
            self._report.deleted.append(segment)

    def _is_reachable(self, note: MoveNote) -> bool:
        return note.target is None or self._store.exists(note.target) or self._moves.note_of(note.target) is not None
