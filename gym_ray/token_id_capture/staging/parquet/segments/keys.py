"""Staging keys: a text that leads straight to one row of one file, and says which store it belongs to.

``gr1:<store id>:<partition>:<writer>-<seq>:<row group>.<row>:<8 hex of the staging digest>``. A key is for ever: it is
never given to another row, and compaction leaves a note for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gym_ray.errors import ForeignKeyError
from gym_ray.token_id_capture.staging.parquet.segments.layout import CALLS_KIND, SegmentName

__all__ = ["SegmentKey", "parse_key"]

_VERSION: Final = "gr1"
_KEY = re.compile(
    r"gr1:(?P<store>[0-9a-f]{16}):(?P<partition>[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}):(?P<writer>[0-9a-f]{20})-(?P<seq>[0-9]{1,18})"
    r":(?P<row_group>[0-9]{1,9})\.(?P<row>[0-9]{1,9}):(?P<digest8>[0-9a-f]{8})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Where one staged call lies.

    Attributes:
        store_id: 16 hex digits, from the ``store.json`` of the store.
        partition: As in the name of the segment.
        writer: As in the name of the segment.
        seq: As in the name of the segment.
        row_group: Counts the row groups of the file from 0.
        row: Counts the rows of the row group from 0.
        digest8: The first 8 hex digits of the staging digest of the record there.
    """

    store_id: str
    partition: str
    writer: str
    seq: int
    row_group: int
    row: int
    digest8: str

    def __str__(self) -> str:
        return (
            f"{_VERSION}:{self.store_id}:{self.partition}:{self.writer}-{self.seq}:"
            f"{self.row_group}.{self.row}:{self.digest8}"
        )

    @property
    def segment(self) -> SegmentName:
        """The segment that was written with the row; compaction may have moved it."""
        return SegmentName(self.partition, self.writer, self.seq, CALLS_KIND)

    def require_store(self, store_id: str, place: str) -> None:
        """Return if the key is one of the store.

        Args:
            store_id: The store that is to be read.
            place: Where that store lies, for the message.

        Raises:
            ForeignKeyError: It is a key of another store.
        """
        if self.store_id != store_id:
            raise ForeignKeyError(str(self), self.store_id, store_id, place)


def parse_key(text: str) -> SegmentKey:
    """Return what a staging key says.

    Raises:
        ValueError: It is not a key of this kind.
    """
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no staging key: expected "
            "gr1:<store>:<partition>:<writer>-<seq>:<row group>.<row>:<8 hex digits>"
        )
    key = SegmentKey(
        match["store"],
        match["partition"],
        match["writer"],
        int(match["seq"]),
        int(match["row_group"]),
        int(match["row"]),
        match["digest8"],
    )
    if str(key) != text:
        raise ValueError(f"{text!r} is no staging key: its numbers have leading zeros; expected {key}")
    return key
