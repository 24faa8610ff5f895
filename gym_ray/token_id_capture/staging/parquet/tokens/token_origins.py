"""What a segment that compaction wrote says of itself: where each row was first, and which segments it stands for.

A row keeps the place of its first commit for ever. So a copy is never taken for a second row, a rollout that begins
anew names the same segments whether they were compacted or not, and the order of rows does not depend on where they
lie. A segment that is stood for counts no more from the moment on at which the new one can be seen.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName

__all__ = ["Origins", "Place", "Ranges", "is_within", "join_ranges", "origins_of"]

Place = tuple[str, int, int]
"""Segment, row group and row of the first commit of a row."""
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""Writer to its numbers: from the first up to but without the second."""


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Where the rows of a compacted segment come from.

    Attributes:
        written_at: When it was written, seconds since 1970.
        segments: The segments that places name.
        rows: For each row its place: number of the segment, row group, row.
        dropped: The places of rows that were left out, as long as a segment that has them may be there.
        replaced: The numbers of the segments that count no more; all are of one partition and kind.
    """

    written_at: float
    segments: tuple[str, ...]
    rows: NDArray[np.int64]
    dropped: NDArray[np.int64]
    replaced: Ranges

    def place(self, row: int) -> Place:
        """Return where a row was first; rows are counted over the whole segment."""
        segment, group, at = self.rows[row].tolist()
        return self.segments[segment], group, at

    def places(self) -> list[Place]:
        """Return where each row was first."""
        return self._named(self.rows)

    def dropped_places(self) -> list[Place]:
        """Return where the rows were that were left out."""
        return self._named(self.dropped)

    def replaces(self, name: SegmentName) -> bool:
        """Whether it stands for a segment of its own partition and kind."""
        return is_within(self.replaced, name)

    def encoded(self) -> bytes:
        """Return it as it is stored in the footer."""
        document = {
            "written_at": self.written_at,
            "segments": self.segments,
            "rows": self.rows.tolist(),
            "dropped": self.dropped.tolist(),
            "replaced": {writer: list(ranges) for writer, ranges in self.replaced.items()},
        }
        return base64.b64encode(zlib.compress(json.dumps(document, separators=(",", ":")).encode()))

    @classmethod
    def decoded(cls, data: bytes) -> Origins:
        """Return what :meth:`encoded` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            document: Any = json.loads(zlib.decompress(base64.b64decode(data, validate=True)))
            segments = tuple(map(str, document["segments"]))
            rows, dropped = (np.array(document[name], np.int64).reshape(-1, 3) for name in ("rows", "dropped"))
            replaced = {
                str(writer): tuple((int(start), int(end)) for start, end in ranges)
                for writer, ranges in document["replaced"].items()
            }
            found = cls(float(document["written_at"]), segments, rows, dropped, replaced)
        except (zlib.error, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"what it says of its rows' origins cannot be read: {error!r}") from error
        for part in (rows, dropped):
            if part.size and not (part.min() >= 0 and part[:, 0].max() < len(segments)):
                raise ValueError("what it says of its rows' origins names segments that it does not list")
        return found

    def _named(self, rows: NDArray[np.int64]) -> list[Place]:
        return [(self.segments[segment], group, at) for segment, group, at in rows.tolist()]


def origins_of(written_at: float, rows: Sequence[Place], dropped: Sequence[Place], replaced: Ranges) -> Origins:
    """Return the origins of rows with these places."""
    segments = tuple(sorted({place[0] for place in (*rows, *dropped)}))
    numbers = {segment: number for number, segment in enumerate(segments)}

    def table(places: Sequence[Place]) -> NDArray[np.int64]:
        found = [(numbers[segment], group, row) for segment, group, row in places]
        return np.array(found, np.int64).reshape(-1, 3)

    return Origins(written_at, segments, table(rows), table(dropped), replaced)


def is_within(ranges: Ranges, name: SegmentName) -> bool:
    """Whether the number of a segment is among those of its writer."""
    return any(start <= name.seq < end for start, end in ranges.get(name.writer, ()))


def join_ranges(parts: Iterable[Ranges]) -> dict[str, list[tuple[int, int]]]:
    """Return all numbers of several, those that follow one another as one range."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part in parts:
        for writer, ranges in part.items():
            found.setdefault(writer, []).extend((start, end) for start, end in ranges)
    for writer, ranges in found.items():
        joined: list[tuple[int, int]] = []
        for start, end in sorted(ranges):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        found[writer] = joined
    return found
