"""Which token segments shall become one, and which of their rows nobody can ask for any more.

A row is dead for ever once its rollout was found dropped after the row was there, or the rollout began anew since. Both
are looked up after the segments, so that nothing of a new life of a rollout is taken for its old one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gym_ray.token_id_capture.staging.parquet.segments.layout import EVENTS_KIND, TOKENS_KIND
from gym_ray.token_id_capture.staging.parquet.segments.schema import MAX_SEGMENT_BYTES
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import CLEARED
from gym_ray.token_id_capture.staging.parquet.tokens.token_markers import TokenMarkers
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Place
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import rollout_key
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import IndexedSegment, TokenSegments
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_report import CompactionRules

__all__ = ["DeadRows", "find_dead_rows", "groups_to_join"]


@dataclass(frozen=True, slots=True)
class DeadRows:
    """Which rows of the segments of one look are dead.

    Attributes:
        dropped: Rollouts that were handed over.
        cleared: Rollout to the segments of its first commits that count no more.
        clearings: Where the rows lie that say so; they stay for ever, for a copy of what they clear may be anywhere.
        dropped_keys: Keys of the first.
        cleared_keys: The second by keys of the rollouts.
    """

    dropped: frozenset[str]
    cleared: Mapping[str, frozenset[str]]
    clearings: frozenset[Place]
    dropped_keys: frozenset[int]
    cleared_keys: Mapping[int, frozenset[str]]

    def holds(self, rollout_id: str, place: Place) -> bool:
        """Whether a row is dead."""
        if place in self.clearings:
            return False
        return rollout_id in self.dropped or place[0] in self.cleared.get(rollout_id, ())

    def count(self, segment: IndexedSegment) -> int:
        """Return how many rows of a segment are dead, told from its footer."""
        dropped, cleared = self.dropped_keys, self.cleared_keys
        rows = np.flatnonzero(np.isin(segment.keys, np.array([*dropped, *cleared], np.uint32))).tolist()
        places = [(int(segment.keys[row]), segment.place(row)) for row in rows]
        return sum(
            place not in self.clearings and (key in dropped or place[0] in cleared.get(key, ()))
            for key, place in places
        )


def find_dead_rows(
    index: TokenSegments, segments: Sequence[IndexedSegment], markers: TokenMarkers, max_parallel: int
) -> tuple[DeadRows, list[str]]:
    """Return which rows of some segments are dead, and what could not be read of them.

    Raises:
        CaptureError: A marker is damaged.
        StorageError: The store failed.
    """
    cleared: dict[str, set[str]] = defaultdict(set)
    clearings: set[Place] = set()
    problems: list[str] = []
    for segment in segments:
        try:
            for group in index.read_whole(segment) if segment.kind == EVENTS_KIND else ():
                for row, event in enumerate(group.table.column("event").to_pylist()):
                    if event == CLEARED:
                        clearings.add(group.place(row))
                        names = json.loads(group.table.column("detail")[row].as_py())
                        cleared[group.table.column("rollout_id")[row].as_py()].update(names)
        except ValueError as error:
            problems.append(str(error))
    keys = np.unique(np.concatenate([segment.keys for segment in segments] or [np.empty(0, np.uint32)]))
    asked = [rollout_id for rollout_id in markers.dropped() if np.isin(rollout_key(rollout_id), keys)]
    with ThreadPoolExecutor(max_parallel, thread_name_prefix="compaction") as pool:
        fences = list(pool.map(markers.fence, asked))
    dropped = [rollout_id for rollout_id, fence in zip(asked, fences, strict=True) if fence is not None and fence.done]
    by_key: dict[int, set[str]] = defaultdict(set)
    for rollout_id, found in cleared.items():
        by_key[rollout_key(rollout_id)] |= found
    dead = DeadRows(
        frozenset(dropped),
        {rollout_id: frozenset(found) for rollout_id, found in cleared.items()},
        frozenset(clearings),
        frozenset(map(rollout_key, dropped)),
        {key: frozenset(found) for key, found in by_key.items()},
    )
    return dead, problems


def groups_to_join(
    segments: Sequence[IndexedSegment], dead: DeadRows, rules: CompactionRules
) -> Iterator[list[IndexedSegment]]:
    """Yield segments of one kind that shall become one: not too many rows, not too many bytes."""
    max_bytes = min(rules.max_bytes, MAX_SEGMENT_BYTES)
    for kind in (TOKENS_KIND, EVENTS_KIND):
        group: list[IndexedSegment] = []
        kept = size = 0
        for segment in segments:
            if segment.kind != kind or _is_barrier(segment):
                continue
            rows = len(segment.keys)
            gone = dead.count(segment)
            is_large = 2 * rows >= rules.max_calls or 2 * segment.size >= max_bytes
            if is_large and not _is_worth(rows, gone, rules):
                continue
            if group and (kept + rows - gone > rules.max_calls or size + segment.size > max_bytes):
                yield from _worthwhile(group, dead, rules)
                group, kept, size = [], 0, 0
            group.append(segment)
            kept, size = kept + rows - gone, size + segment.size
        yield from _worthwhile(group, dead, rules)


def _is_barrier(segment: IndexedSegment) -> bool:
    """Whether a run put it there so that an earlier one can write no more; it stays for ever, or that one could."""
    return segment.origins is not None and not segment.origins.replaced


def _worthwhile(group: list[IndexedSegment], dead: DeadRows, rules: CompactionRules) -> Iterator[list[IndexedSegment]]:
    if len(group) > 1 or (group and _is_worth(len(group[0].keys), dead.count(group[0]), rules)):
        yield group


def _is_worth(rows: int, gone: int, rules: CompactionRules) -> bool:
    return bool(gone) and gone >= rules.retired_share * rows
