"""Which calls are open, and what marks say, whatever the order of the rows."""

from __future__ import annotations

import random

from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.staging.parquet.tokens.token_events import (
    BEGUN,
    MARKED,
    WITHDRAWN,
    EventRow,
    StoredEvent,
    events_of,
    marks_of,
    open_calls,
    table_of_events,
)


def stored(*rows: EventRow) -> list[StoredEvent]:
    found = list(events_of(table_of_events(rows), "r", "segment", 0))
    random.Random(1).shuffle(found)
    return found


def test_a_call_is_open_from_its_last_beginning_until_it_is_withdrawn() -> None:
    begun = [EventRow("r", BEGUN, call_id, created_at=10.0) for call_id in ("open", "taken", "twice", "again", "early")]
    rows = [
        *begun,
        EventRow("r", WITHDRAWN, "taken", created_at=10.0),
        EventRow("r", BEGUN, "twice", created_at=11.0),
        EventRow("r", WITHDRAWN, "twice", created_at=12.0),
        EventRow("r", WITHDRAWN, "again", created_at=11.0),
        EventRow("r", WITHDRAWN, "again", created_at=11.5),
        EventRow("r", BEGUN, "again", created_at=12.0),
        EventRow("r", WITHDRAWN, "early", created_at=9.0),
        EventRow("r", WITHDRAWN, "never-begun", created_at=9.0),
        EventRow("other", BEGUN, "elsewhere", created_at=10.0),
    ]
    assert open_calls(stored(*rows)) == ["again", "early", "open"]


def test_marks_say_each_thing_once_in_the_order_of_their_times() -> None:
    rows = [
        EventRow("r", MARKED, "c1", "later", "x", created_at=2.0),
        EventRow("r", MARKED, "c1", "first", "y: ü", created_at=1.0),
        EventRow("r", MARKED, "c1", "later", "x", created_at=3.0),
        EventRow("r", BEGUN, "c1", created_at=3.0),
    ]
    assert marks_of(stored(*rows)) == [CaptureProblem("first", "c1", "y: ü"), CaptureProblem("later", "c1", "x")]
