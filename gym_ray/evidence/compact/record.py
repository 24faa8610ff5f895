"""A whole record in its compact form, and back.

The compact record stays a valid 1.0 trajectory: payload members of any type hold encoded values, conversations, which
must be lists of items, are empty there and spelled in a member of their own, and a gap says so. ``response``,
``reward`` and token fields are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact.derived import restored, slimmed
from gym_ray.evidence.compact.encoding import PartWriter, long_texts
from gym_ray.evidence.compact.parts import PartReader, Parts
from gym_ray.evidence.compact.places import CONVERSATION, changed
from gym_ray.evidence.observations.gaps import PAYLOADS_BY_REFERENCE, gap
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD

__all__ = ["COMPACT_FIELD", "compacted", "inline", "is_compact", "without_payloads"]

COMPACT_FIELD = "ng_payloads"
"""Member that makes a record a compact one; a reply's own member of that name is no evidence and must not get here."""
_FORMAT = 1
_KEPT = ("response", "responses_create_params")
_GAP = gap(PAYLOADS_BY_REFERENCE)


def is_compact(record: Mapping[str, Any]) -> bool:
    """Return whether a record's payloads are in a parts file."""
    return COMPACT_FIELD in record


def compacted(record: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Take the payloads out of a finished record, each distinct item once.

    Args:
        record: In the contract's inline shape; not modified, and the result shares what did not change with it.

    Returns:
        The compact record and the content of its parts file, one part a line. A record without payloads comes back as
        it is, with no parts.

    Raises:
        ValueError: The record is compact already, or nests too deeply for JSON.
    """
    if is_compact(record):
        raise ValueError(f"the record has a member {COMPACT_FIELD}: it is compact already")
    writer = PartWriter(_held(record))
    conversations: list[Any] = []

    def take_out(member: str, value: Any) -> Any:
        if member != CONVERSATION:
            return writer.payload(value)
        if not isinstance(value, list):
            return value
        conversations.append(writer.payload(value))
        return []

    result = changed(record, take_out)
    parts = writer.content()
    if not parts:
        return record, b""
    result[COMPACT_FIELD] = {
        "format": _FORMAT,
        "slimmed": slimmed(result),
        "gap": _gap_added(result),
        "conversations": conversations,
    }
    return result, parts


def inline(record: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """Return a record in the contract's inline shape: equal, member for member, to what was compacted.

    A record that is inline comes back as it is. The result may hold one object in several places.

    Raises:
        DamagedRecordError: A part is missing, or the record's own description of its parts is damaged.
    """
    if not is_compact(record):
        return record
    header = record[COMPACT_FIELD]
    conversations = _conversations(header, parts.place)
    reader = PartReader(parts, _LazyTexts(record))

    def put_back(member: str, value: Any) -> Any:
        if member != CONVERSATION:
            return reader.payload(value)
        if not isinstance(value, list):
            return value
        if not conversations:
            raise DamagedRecordError(f"{parts.place}: the record has more conversations than {COMPACT_FIELD} names")
        return reader.payload(conversations.pop())

    result = {key: value for key, value in record.items() if key != COMPACT_FIELD}
    if header.get("gap"):
        _take_gap_away(result, parts.place)
    restored(result, header["slimmed"], parts.place)
    result = changed(result, put_back)
    if conversations:
        raise DamagedRecordError(f"{parts.place}: the record has fewer conversations than {COMPACT_FIELD} names")
    return result


def without_payloads(record: dict[str, Any], place: str = "the record") -> dict[str, Any]:
    """Return what a compact record says without its parts: payloads are null, conversations empty, and the gap stays.

    For readers that need none, or cannot have them. A record that is inline comes back as it is.

    Args:
        record: The record; not modified.
        place: Where it comes from, for messages.

    Raises:
        DamagedRecordError: The record's own description of what was taken out is damaged.
    """
    if not is_compact(record):
        return record
    _conversations(record[COMPACT_FIELD], place)
    result = {key: value for key, value in record.items() if key != COMPACT_FIELD}
    restored(result, record[COMPACT_FIELD]["slimmed"], place)
    return changed(result, lambda member, value: value if member == CONVERSATION else None)


def _held(record: Mapping[str, Any]) -> set[str]:
    return long_texts([record.get(field) for field in _KEPT])


class _LazyTexts:
    """The texts that a record keeps, looked for only when a part is not in the file."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record

    def __iter__(self) -> Iterator[str]:
        return iter(_held(self._record))


def _conversations(header: Any, place: str) -> list[Any]:
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise DamagedRecordError(f"{place}: the record's {COMPACT_FIELD} is none of format {_FORMAT}")
    conversations = header.get("conversations")
    if not isinstance(conversations, list) or not isinstance(header.get("slimmed"), list):
        raise DamagedRecordError(f"{place}: the record's {COMPACT_FIELD} does not say what was taken out of it")
    return conversations[::-1]


def _gap_added(record: dict[str, Any]) -> bool:
    """Add the gap to a compact trajectory; ``record`` and its trajectory are new objects of ours."""
    trajectory = record.get(TRAJECTORY_FIELD)
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("gaps"), list):
        return False
    record[TRAJECTORY_FIELD] = {**trajectory, "gaps": [*trajectory["gaps"], _GAP]}
    return True


def _take_gap_away(record: dict[str, Any], place: str) -> None:
    trajectory = record.get(TRAJECTORY_FIELD)
    gaps = trajectory.get("gaps") if isinstance(trajectory, dict) else None
    if not isinstance(trajectory, dict) or not isinstance(gaps, list) or gaps[-1:] != [_GAP]:
        raise DamagedRecordError(f"{place}: the record's trajectory lacks its last gap, {PAYLOADS_BY_REFERENCE}")
    record[TRAJECTORY_FIELD] = {**trajectory, "gaps": gaps[:-1]}
