"""Where compaction put the calls of a segment: one note a segment, written once, read for ever.

A staging key names the segment that its call was first written to. The note of that segment leads on to the next one,
whose own note may lead further.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.errors import StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND, moved_name, parse_segment_name
from gym_ray.token_id_capture.staging.parquet.segments.schema import FORMAT, FORMAT_VERSION

__all__ = ["MoveNote", "Moves", "Place", "encode_note", "note_name"]

_KEPT: Final = 512
"""Notes in memory, a thousand places each."""


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a segment."""

    segment: str
    row_group: int
    row: int


@dataclass(frozen=True, slots=True)
class MoveNote:
    """Where the calls of one segment are now.

    Attributes:
        moved_at: Seconds since 1970 when the note was made.
        target: The segment that holds them; None if all of them were retired.
        rows: From row group and row there to row group and row in the target; None for a retired call.
    """

    moved_at: float
    target: str | None
    rows: Mapping[tuple[int, int], tuple[int, int] | None]

    def follow(self, row_group: int, row: int) -> Place | None:
        """Return where a row is now; None if it was retired or never was a call."""
        found = self.rows.get((row_group, row))
        return None if found is None or self.target is None else Place(self.target, *found)


class Moves:
    """The notes of one store. May be used from several threads.

    Args:
        store: The store.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._notes: OrderedDict[str, MoveNote] = OrderedDict()

    def note_of(self, segment: str) -> MoveNote | None:
        """Return the note of a segment; None for one that was not moved.

        Raises:
            StorageError: It could not be read.
            ValueError: It is damaged.
        """
        with self._lock:
            found = self._notes.get(segment)
            if found is not None:
                self._notes.move_to_end(segment)
                return found
        name = note_name(segment)
        try:
            data = self._store.read(name)
        except StorageMissingError:
            return None
        note = _decode_note(data, segment, f"{self._store.place}/{name}")
        with self._lock:
            self._notes[segment] = note
            while len(self._notes) > _KEPT:
                self._notes.popitem(last=False)
        return note


def note_name(segment: str) -> str:
    """Return the name of the note of a segment.

    Raises:
        ValueError: It is no segment of staged calls.
    """
    parsed = parse_segment_name(segment)
    if parsed is None or parsed.kind != CALLS_KIND:
        raise ValueError(f"{segment!r} is no segment of staged calls")
    return moved_name(parsed.partition, parsed.writer, parsed.seq)


def encode_note(segment: str, note: MoveNote) -> bytes:
    """Return a note as it is stored."""
    rows = [[*old, *(new or (None, None))] for old, new in sorted(note.rows.items())]
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "segment": segment,
        "moved_at": note.moved_at,
        "target": note.target,
        "rows": rows,
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _decode_note(data: bytes, segment: str, place: str) -> MoveNote:
    try:
        return _note(json.loads(data), segment)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{place} is damaged: {error}") from error


def _note(document: Any, segment: str) -> MoveNote:
    if document["format"] != FORMAT or document["version"] != FORMAT_VERSION or document["segment"] != segment:
        raise ValueError(f"it is not the note of {segment} in version {FORMAT_VERSION}")
    target = document["target"]
    if target is not None and parse_segment_name(target) is None:
        raise ValueError(f"its target {target!r} is no segment")
    rows = {(int(a), int(b)): None if c is None else (int(c), int(d)) for a, b, c, d in document["rows"]}
    return MoveNote(float(document["moved_at"]), target, rows)
