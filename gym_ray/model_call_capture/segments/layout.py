"""Segments of captures on an object store: their names, and what is in them.

A segment holds capture lines of many rollouts as they stand in a capture file, then one line that lists them, then a
last line of fixed length that leads to the list. Pure: nothing here reads or writes a store. Damage is named, never
guessed around; a record that is whole is what its writer wrote, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError

__all__ = [
    "LARGEST_SEGMENT_BYTES",
    "MARKS",
    "MOST_RECORDS",
    "SEGMENTS",
    "TRAILER_BYTES",
    "NeedMore",
    "SegmentIndex",
    "SegmentRecord",
    "cleared_name",
    "decode_segment",
    "encode_segment",
    "mark_name",
    "parse_segment_name",
    "read_index",
    "record_problem",
    "segment_name",
    "segments_of",
]

SEGMENTS = "segments/"
"""Prefix of all segments' names."""
MARKS = "marks/"
"""Prefix of the marks of rollouts that lost a record."""
TRAILER_BYTES = 32
"""Length of a segment's last line."""
MOST_RECORDS = 1024
"""Records of one segment at most."""
LARGEST_SEGMENT_BYTES = 8 * 1024**2
"""Bytes of a segment's records at most, unless it is one record."""

_KIND = "gym_ray_segment"
_VERSION = 1
_NAME = re.compile(r"segments/([^/]+)/([0-9]{8,})\.jsonl")
_TRAILER = re.compile(rb"([0-9a-f]{13}) ([0-9a-f]{8}) ([0-9a-f]{8})\n")


def segments_of(writer_id: str) -> str:
    """Return the prefix of the names of a writer's segments."""
    return f"{SEGMENTS}{writer_id}/"


def segment_name(writer_id: str, seq: int) -> str:
    """Return the name of a writer's segment; ``seq`` counts from 1."""
    return f"{segments_of(writer_id)}{seq:08}.jsonl"


def parse_segment_name(name: str) -> tuple[str, int] | None:
    """Return the writer and the number that a segment's name says; None for a name of another kind."""
    found = _NAME.fullmatch(name)
    if found is None or segment_name(found[1], int(found[2])) != name:
        return None
    return found[1], int(found[2])


def mark_name(rollout_id: str) -> str:
    """Return the name of the mark of a rollout that lost a record.

    Raises:
        RolloutIdError: The id cannot be a name here.
    """
    return f"{MARKS}{check_rollout_id(rollout_id)}.json"


def cleared_name(rollout_id: str) -> str:
    """Return the name of the note that a rollout begins anew, in the store beside the captures.

    Raises:
        RolloutIdError: The id cannot be a name here.
    """
    return f"cleared/{check_rollout_id(rollout_id)}.json"


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One record of a segment.

    Attributes:
        rollout_id: Its rollout.
        call_id: Its ``model_call_id``.
        offset: First byte of its line in the segment.
        length: Bytes of the line, line feed included.
        crc32c: Checksum of the line.
    """

    rollout_id: str
    call_id: str
    offset: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """What a segment says of itself.

    Attributes:
        writer_id: Who wrote it.
        seq: Its number among that writer's segments, from 1.
        records: Its records in the order they were written.
    """

    writer_id: str
    seq: int
    records: tuple[SegmentRecord, ...]


@dataclass(frozen=True, slots=True)
class NeedMore:
    """More of a segment's end is needed to read its index.

    Attributes:
        length: Bytes that the end must have.
    """

    length: int


def encode_segment(writer_id: str, seq: int, records: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Return the bytes of a segment.

    Args:
        writer_id: Who writes it.
        seq: Its number, from 1.
        records: Rollout id, call id and line of each record; a line ends with its only line feed.

    Raises:
        ValueError: A line is none.
    """
    lines, entries, offset = [], [], 0
    for rollout_id, call_id, line in records:
        if not line or line.find(b"\n") != len(line) - 1:
            raise ValueError(f"the record of call {call_id} is not one line")
        entries.append([rollout_id, call_id, offset, len(line), _crc(line)])
        lines.append(line)
        offset += len(line)
    index = exact_json.dumps({_KIND: _VERSION, "writer": writer_id, "seq": seq, "records": entries}) + b"\n"
    return b"".join([*lines, index, b"%013x %08x %08x\n" % (offset, len(index), _crc(index))])


def read_index(tail: bytes, size: int, *, name: str) -> SegmentIndex | NeedMore:
    """Return the index of a segment from its end, or how much more of the end that takes.

    Args:
        tail: The segment's last bytes, as many as there are at hand.
        size: Bytes of the whole segment.
        name: The segment's name, for messages; the index must name the same writer and number.

    Raises:
        CaptureError: The segment is damaged; names it and what is wrong.
    """
    if size < TRAILER_BYTES:
        raise _damaged(name, f"{size} bytes are too few for a segment")
    if len(tail) < TRAILER_BYTES:
        return NeedMore(TRAILER_BYTES)
    trailer = _TRAILER.fullmatch(tail[-TRAILER_BYTES:])
    if trailer is None:
        raise _damaged(name, "its last line is none of a segment; it was cut, or is something else")
    offset, length, crc = (int(field, 16) for field in trailer.groups())
    if offset + length + TRAILER_BYTES != size:
        raise _damaged(name, f"its last line tells of {offset + length + TRAILER_BYTES} bytes, and it has {size}")
    needed = length + TRAILER_BYTES
    if len(tail) < needed:
        return NeedMore(needed)
    index = tail[-needed:-TRAILER_BYTES]
    if _crc(index) != crc:
        raise _damaged(name, "the checksum of its index is wrong")
    return _parse_index(index, offset, name)


def decode_segment(data: bytes, *, name: str) -> tuple[SegmentIndex, list[bytes | None]]:
    """Return the index of a whole segment and the lines of its records, None for each that is damaged.

    Raises:
        CaptureError: The segment's end is damaged; names it and what is wrong.
    """
    index = read_index(data, len(data), name=name)
    assert isinstance(index, SegmentIndex)  # all of it is at hand
    lines = [data[record.offset : record.offset + record.length] for record in index.records]
    return index, [
        None if record_problem(line, record) else line for line, record in zip(lines, index.records, strict=True)
    ]


def record_problem(line: bytes, record: SegmentRecord) -> str:
    """Return what is wrong with the bytes that were read for a record, "" when they are what was written."""
    if len(line) != record.length:
        return f"call {record.call_id}: {len(line)} bytes of a line of {record.length}"
    if _crc(line) != record.crc32c:
        return f"call {record.call_id}: the checksum of its line is wrong"
    return ""


def _parse_index(index: bytes, offset: int, name: str) -> SegmentIndex:
    said = exact_json.loads_object(index)
    if said is None or said.get(_KIND) != _VERSION:
        raise _damaged(name, f"its index is none of version {_VERSION}")
    writer_id, seq, entries = said.get("writer"), said.get("seq"), said.get("records")
    if not isinstance(writer_id, str) or not isinstance(seq, int) or not isinstance(entries, list):
        raise _damaged(name, "its index lacks the writer, the number or the records")
    named = parse_segment_name(name)
    if named is not None and named != (writer_id, seq):
        raise _damaged(name, f"its index is that of segment {seq} of {writer_id}")
    records = tuple(_record(entry, name) for entry in entries)
    _check_places(records, offset, name)
    return SegmentIndex(writer_id, seq, records)


def _record(entry: Any, name: str) -> SegmentRecord:
    if isinstance(entry, list) and [type(member) for member in entry] == [str, str, int, int, int]:
        return SegmentRecord(*entry)
    raise _damaged(name, "an entry of its index is not rollout, call, offset, length and checksum")


def _check_places(records: Sequence[SegmentRecord], end: int, name: str) -> None:
    expected = 0
    for record in records:
        if record.offset != expected or record.length < 1:
            raise _damaged(name, f"its index puts call {record.call_id} at {record.offset}, not at {expected}")
        expected += record.length
    if expected != end:
        raise _damaged(name, f"its records end at {expected}, and its index begins at {end}")


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def _damaged(name: str, problem: str) -> CaptureError:
    return CaptureError(f"{name}: damaged segment: {problem}")
