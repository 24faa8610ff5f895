"""What is said about calls beside their records: rows that are only ever added, and what they come to.

Rows of two writers have no order but that of their clocks. So every mark counts, wherever it stands, and a call is open
unless it was withdrawn at the time of its last beginning or later: clocks that disagree leave it open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.staging.parquet.tokens.token_schema import EVENTS_SCHEMA

__all__ = [
    "BEGUN",
    "CLEARED",
    "MARKED",
    "WITHDRAWN",
    "EventRow",
    "StoredEvent",
    "events_of",
    "marks_of",
    "open_calls",
    "table_of_events",
]

BEGUN: Final = "begun"
"""A call is about to be dispatched (B55)."""
WITHDRAWN: Final = "withdrawn"
"""A begun call was answered with an error, and nothing was served (W23)."""
MARKED: Final = "marked"
"""Evidence was lost, or a call cannot be trained on; the reason says why (B54)."""
CLEARED: Final = "cleared"
"""The rollout begins anew: its rows in the segments that the detail names count no more (B71)."""

_ROW_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class EventRow:
    """One thing that is said, ready to be written.

    Attributes:
        rollout_id: The rollout.
        event: What happened.
        model_call_id: The call, empty for none.
        reason: A code; empty where the event says it all.
        detail: What was found.
        created_at: When, seconds.
    """

    rollout_id: str
    event: str
    model_call_id: str = ""
    reason: str = ""
    detail: str = ""
    created_at: float = field(default_factory=time.time)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        return _ROW_BYTES + len(self.detail)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One thing that was said.

    Attributes:
        event: What happened.
        model_call_id: The call, empty for none.
        reason: A code.
        detail: What was found.
        created_at: When, seconds.
        place: Segment, row group and row where it was first.
    """

    event: str
    model_call_id: str
    reason: str
    detail: str
    created_at: float
    place: tuple[str, int, int]


def table_of_events(rows: Sequence[EventRow]) -> pa.Table:
    """Return rows as one table of :data:`EVENTS_SCHEMA`."""
    members = {name: [getattr(row, name) for row in rows] for name in EVENTS_SCHEMA.names}
    return pa.Table.from_pydict(members, schema=EVENTS_SCHEMA)


def events_of(
    table: pa.Table,
    rollout_id: str,
    segment: str,
    group: int,
    origin: Callable[[int], tuple[str, int, int]] | None = None,
) -> Iterator[StoredEvent]:
    """Yield what one row group says about a rollout; ``origin`` tells where a row was first, if not there."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for at, row in enumerate(rows):
        if row.pop("rollout_id") == rollout_id:
            yield StoredEvent(**row, place=(segment, group, at) if origin is None else origin(at))


def open_calls(events: Iterable[StoredEvent]) -> list[str]:
    """Return the calls that were begun and not withdrawn since, sorted."""
    begun: dict[str, float] = {}
    withdrawn: dict[str, float] = {}
    for event in events:
        last = {BEGUN: begun, WITHDRAWN: withdrawn}.get(event.event)
        if last is not None:
            last[event.model_call_id] = max(event.created_at, last.get(event.model_call_id, event.created_at))
    return sorted(call_id for call_id, at in begun.items() if at > withdrawn.get(call_id, float("-inf")))


def marks_of(events: Iterable[StoredEvent]) -> list[CaptureProblem]:
    """Return what the marks say, in the order of their times, each thing once."""
    marks = sorted((event for event in events if event.event == MARKED), key=lambda one: (one.created_at, one.place))
    return list(dict.fromkeys(CaptureProblem(mark.reason, mark.model_call_id, mark.detail) for mark in marks))
