"""From where a call is now back to where it was first written: that place is in the key that was handed out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND, MOVED_PREFIX, SegmentName
from gym_ray.token_id_capture.staging.parquet.segments.moves import MoveNote, Moves, Place, note_name

__all__ = ["FirstPlaces", "moved_segment"]

_NOTE = re.compile(rf"{MOVED_PREFIX}(?P<partition>[^/]+)/(?P<writer>[0-9a-f]{{20}})-(?P<seq>[0-9]+)\.json", re.ASCII)


class FirstPlaces:
    """The steps of every call of a store that compaction has moved, as they were when this was made.

    Args:
        store: The store.
        names: What is in it.
        pool: Reads notes at the same time.

    Raises:
        StorageError: A note could not be read.
        ValueError: A note is damaged.
    """

    def __init__(self, store: SegmentStore, names: Iterable[str], pool: Executor) -> None:
        moves = Moves(store)
        segments = [str(segment) for segment in map(moved_segment, sorted(names)) if segment is not None]
        self._before: dict[Place, list[Place]] = defaultdict(list)
        for segment, note in zip(segments, pool.map(moves.note_of, segments), strict=True):
            if note is not None:
                self._add(segment, note)

    def _add(self, segment: str, note: MoveNote) -> None:
        for row_group, row in sorted(note.rows):
            place = note.follow(row_group, row)
            if place is not None:
                self._before[place].append(Place(segment, row_group, row))

    def of(self, place: Place) -> list[Place]:
        """Return where the call of a row was first written: once for each sink that staged it, the row itself at best.

        Compaction makes one row of equal ones.
        """
        found, open_places = [], [place]
        while open_places:
            here = open_places.pop(0)
            before = self._before.get(here, [])
            open_places += before
            if not before:
                found.append(here)
        return found


def moved_segment(name: str) -> SegmentName | None:
    """Return the segment that a note is about, None for the name of anything else."""
    match = _NOTE.fullmatch(name)
    if match is None:
        return None
    found = SegmentName(match["partition"], match["writer"], int(match["seq"]), CALLS_KIND)
    return found if note_name(str(found)) == name else None
