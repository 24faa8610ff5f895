"""Which calls a dead writer of segments left behind: those that began and are in none of its segments."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gym_ray.errors import CaptureError, StorageMissingError
from gym_ray.model_call_capture.segments.layout import parse_segment_name, segment_name, segments_of
from gym_ray.model_call_capture.segments.reading_index import stored_index
from gym_ray.storage.store import SegmentStore

__all__ = ["lost_calls_of"]

_log = logging.getLogger(__name__)

_LOOK_AHEAD = 8
"""Numbers beyond the highest listed one that are asked for by name: listings may be late, and numbers unused."""


def lost_calls_of(store: SegmentStore, writer_id: str, open_calls: Mapping[str, str]) -> dict[str, list[str]]:
    """Return which calls that a writer began are in none of its segments: rollout id to call ids.

    Raises:
        StorageError: A segment cannot be read.
    """
    lost: dict[str, list[str]] = {}
    recorded = _recorded_call_ids(store, writer_id)
    for call_id, rollout_id in open_calls.items():
        if call_id not in recorded:
            lost.setdefault(rollout_id, []).append(call_id)
    return lost


def _recorded_call_ids(store: SegmentStore, writer_id: str) -> set[str]:
    """Return the ids of all calls that are in a writer's segments; those of a damaged segment are not among them.

    Raises:
        StorageError: A segment cannot be read.
    """
    found: set[str] = set()
    listed = filter(None, map(parse_segment_name, store.list(segments_of(writer_id))))
    numbers = {seq for _, seq in listed}
    seq, ends = 0, max(numbers, default=0) + _LOOK_AHEAD
    while seq < ends:
        seq += 1
        try:
            index = stored_index(store, segment_name(writer_id, seq))
        except StorageMissingError:
            continue
        except CaptureError as error:
            _log.warning("%s; its calls count as lost", error)
            continue
        found.update(record.call_id for record in index.records)
        ends = max(ends, seq + _LOOK_AHEAD)
    return found
