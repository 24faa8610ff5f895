"""Puts small token segments together and leaves out dead rows: beside sinks, readers and other runs.

One atomic create is the whole step: the new segment says which ones it stands for, and from then on those count no
more. Old segments go after a delay, once each of their rows is found in the new one, or was knowingly left out. A run
that is killed anywhere leaves a store that says the same as before, and the next run goes on.

What stays for ever: rows that say that a rollout began anew, and the numbers of replaced segments, a few bytes for each
writer that there ever was, by which readers know how far it had come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gym_ray.errors import StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    TOKENS_KIND,
    parse_segment_name,
    partition_prefix,
)
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_PER_ROW_GROUP, TOKENS_PER_ROW_GROUP
from gym_ray.token_id_capture.staging.parquet.segments.segment_writer import SegmentFile
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Place, Ranges, join_ranges, origins_of
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import EVENTS_SCHEMA, TOKENS_SCHEMA
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import TokenSegmentFile
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import IndexedSegment, TokenSegments
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_report import CompactionReport, CompactionRules
from gym_ray.token_id_capture.staging.parquet.upkeep.token_compaction_claim import CompactionClaim
from gym_ray.token_id_capture.staging.parquet.upkeep.token_compaction_plan import (
    DeadRows,
    find_dead_rows,
    groups_to_join,
)

__all__ = ["compact_tokens"]

_EVENTS_PER_ROW_GROUP = 128
_ID_LISTS = ("prompt_token_ids", "prompt_token_ids_wide", "generation_token_ids", "generation_token_ids_wide")


def compact_tokens(
    store: SegmentStore,
    store_id: str,
    partition: str,
    rules: CompactionRules,
    now: Callable[[], float],
    report: CompactionReport,
) -> set[int] | None:
    """Compact one partition, and return the keys of the rollouts that have rows there; None if that is not known.

    Raises:
        CaptureError: A marker or a claim is damaged.
        StorageError: The store failed. What was done is consistent; the next run goes on.
    """
    if not store.exclusive:
        report.problems.append(
            f"{store.place}/{partition}: token segments stay as they are: this store cannot create a name only if it "
            "is absent"
        )
        return None
    index = TokenSegments(store, partition, max_parallel=rules.max_parallel)
    try:
        return _Run(store, store_id, partition, rules, now, report, index).run()
    finally:
        index.close()


class _Run:
    def __init__(
        self,
        store: SegmentStore,
        store_id: str,
        partition: str,
        rules: CompactionRules,
        now: Callable[[], float],
        report: CompactionReport,
        index: TokenSegments,
    ) -> None:
        self._store, self._store_id, self._partition, self._rules = store, store_id, partition, rules
        self._now, self._report, self._index = now, report, index
        self._markers = TokenMarkers(store)

    def run(self) -> set[int] | None:
        groups, _ = self._plan()
        if groups:
            claim = CompactionClaim(self._store, self._store_id, self._partition, self._now())
            groups, dead = self._plan()  # anew: no other run can change it any more
            if self._join(claim, groups, dead):
                claim.close()
        return self._remove_old()

    def _plan(self) -> tuple[list[list[IndexedSegment]], DeadRows]:
        segments = [segment for segment in self._index.refresh() if not self._index.is_replaced(segment.name)]
        readable = [segment for segment in segments if not segment.damage]
        dead, problems = find_dead_rows(self._index, readable, self._markers, self._rules.max_parallel)
        self._note(*(segment.damage for segment in segments if segment.damage), *problems)
        return list(groups_to_join(readable, dead, self._rules)), dead

    def _join(self, claim: CompactionClaim, groups: Sequence[Sequence[IndexedSegment]], dead: DeadRows) -> bool:
        """Join groups, and return whether this run may still write."""
        for group in groups:
            names = ", ".join(segment.name for segment in group)
            try:
                self._report.dropped_rows += self._write(claim, group, dead)
            except StorageExistsError:
                self._note(f"{self._store.place}/{self._partition}: a later run of compaction took over")
                return False
            except (StorageMissingError, ValueError) as error:
                self._note(f"{names} were left as they are: {error}")
                continue
            self._report.moved += [segment.name for segment in group]
        return True

    def _write(self, claim: CompactionClaim, group: Sequence[IndexedSegment], dead: DeadRows) -> int:
        """Write what is alive in some segments as one, and return how many rows were left out."""
        kind = group[0].kind
        schema = TOKENS_SCHEMA if kind == TOKENS_KIND else EVENTS_SCHEMA
        tables = [schema.empty_table()]
        rows: list[tuple[str, Place]] = []
        left_out: list[Place] = []
        seen: set[Place] = set()
        for part in (part for segment in group for part in self._index.read_whole(segment)):
            wanted = []
            for row, rollout_id in enumerate(part.table.column("rollout_id").to_pylist()):
                place = part.place(row)
                if dead.holds(rollout_id, place):
                    left_out.append(place)
                elif place not in seen:
                    seen.add(place)
                    wanted.append(row)
                    rows.append((rollout_id, place))
            tables.append(part.table.select(schema.names).take(pa.array(wanted, pa.int64())).cast(schema))
        order = sorted(range(len(rows)), key=lambda at: rows[at])
        table = pa.concat_tables(tables).combine_chunks().take(pa.array(order, pa.int64()))
        carried = [place for segment in group for place in self._still_wanted(segment)]
        replaced = join_ranges(self._ranges(group))
        origins = origins_of(self._now(), [rows[at][1] for at in order], [*left_out, *carried], replaced)
        written = claim.write(
            kind,
            [rows[at][0] for at in order],
            origins,
            lambda file: _write_rows(file, table, is_tokens=schema is TOKENS_SCHEMA),
        )
        self._report.written.append(written)
        return len(left_out)

    def _still_wanted(self, segment: IndexedSegment) -> Iterator[Place]:
        """Yield what an earlier run left out, as long as the segment that has it may be there."""
        dropped = segment.origins.dropped_places() if segment.origins is not None else []
        there = {name: self._store.exists(name) for name in {place[0] for place in dropped}}
        return (place for place in dropped if there[place[0]])

    def _ranges(self, group: Iterable[IndexedSegment]) -> Iterator[Ranges]:
        for segment in group:
            parsed = parse_segment_name(segment.name)
            assert parsed is not None
            yield {parsed.writer: [(parsed.seq, parsed.seq + 1)]}
            if segment.origins is not None:
                yield segment.origins.replaced

    def _remove_old(self) -> set[int] | None:
        """Remove what was replaced long enough ago; return the keys of rollouts that have rows in what is there."""
        current = [one for one in self._index.refresh() if not self._index.is_replaced(one.name)]
        keys = {int(key) for segment in current for key in segment.keys}
        is_known = not any(segment.damage for segment in current)
        old = [one for one in map(self._open, self._old_names()) if one is not None]
        holders = [*current, *old]
        for segment in old:
            if segment.damage:
                self._note(f"{segment.damage}; it was replaced, and stays")
                is_known = False
            elif not self._remove(segment, current, holders):
                keys.update(int(key) for key in segment.keys)
        return keys if is_known else None

    def _old_names(self) -> list[str]:
        names = self._store.list(partition_prefix(self._partition))
        return [name for name in names if self._index.is_replaced(name)]

    def _open(self, name: str) -> IndexedSegment | None:
        parsed = parse_segment_name(name)
        assert parsed is not None
        try:
            file = TokenSegmentFile(self._store, name, parsed.kind)
            return IndexedSegment(name, parsed.kind, file.rollout_keys(), file.row_ends(), origins=file.origins())
        except StorageMissingError:
            return None  # another run has removed it
        except ValueError as error:
            return IndexedSegment(name, parsed.kind, damage=str(error))

    def _remove(self, old: IndexedSegment, current: Sequence[IndexedSegment], all_: Sequence[IndexedSegment]) -> bool:
        """Remove a replaced segment if it is time and nothing is lost, and return whether it is gone."""
        times = [one.origins.written_at for one in _standing_for(old, all_) if one.origins is not None]
        if not times:
            return False  # another run is at work on what stands for it
        if self._now() - min(times) < self._rules.delay_s:
            self._report.waiting.append(old.name)
            return False
        missing = {old.place(row) for row in range(len(old.keys))}
        for one in _standing_for(old, current):
            if one.origins is not None:
                missing.difference_update(one.origins.places(), one.origins.dropped_places())
        if missing:
            segment, group, row = min(missing)
            self._note(
                f"{self._store.place}/{old.name} stays: {len(missing)} of its rows are not in what stands for it, "
                f"the first that of {segment}, row group {group}, row {row}"
            )
            return False
        self._store.delete(old.name)
        self._report.deleted.append(old.name)
        return True

    def _note(self, *problems: str) -> None:
        self._report.problems += [problem for problem in problems if problem not in self._report.problems]


def _standing_for(old: IndexedSegment, segments: Iterable[IndexedSegment]) -> list[IndexedSegment]:
    parsed = parse_segment_name(old.name)
    assert parsed is not None
    return [
        one for one in segments if one.kind == old.kind and one.origins is not None and one.origins.replaces(parsed)
    ]


def _write_rows(file: SegmentFile, table: pa.Table, *, is_tokens: bool) -> None:
    """Write rows in row groups of the size in which sinks write them."""
    counts = [0] * table.num_rows
    if is_tokens:
        lengths = [pc.fill_null(pc.list_value_length(table.column(name)), 0).to_pylist() for name in _ID_LISTS]
        counts = [sum(row) for row in zip(*lengths, strict=True)]
    most = CALLS_PER_ROW_GROUP if is_tokens else _EVENTS_PER_ROW_GROUP
    start = tokens = 0
    for row, count in enumerate(counts):
        tokens += count
        if row + 1 - start >= most or tokens >= TOKENS_PER_ROW_GROUP or row + 1 == len(counts):
            file.write_row_group(table.slice(start, row + 1 - start))
            start, tokens = row + 1, 0
