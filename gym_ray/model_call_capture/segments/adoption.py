"""What a dead writer of segments left behind: calls that began and are in none of its segments. Each marks its rollout.

Its open log lies on the machine that it ran on, so the next server of the same name there takes it over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gym_ray.errors import CaptureError, GymRayError, StorageMissingError
from gym_ray.model_call_capture.marks import MarkPlace
from gym_ray.model_call_capture.open_log import list_logs, take_dead
from gym_ray.model_call_capture.recovery import one_adopter
from gym_ray.model_call_capture.segments.layout import (
    NeedMore,
    SegmentIndex,
    dead_name,
    parse_segment_name,
    read_index,
    segment_name,
    segments_of,
    writer_name,
)
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.store import SegmentStore

__all__ = ["adopt_dead_writers", "recorded_call_ids"]

_log = logging.getLogger(__name__)

_TAIL_BYTES = 64 * 1024
_LOOK_AHEAD = 8
"""Numbers beyond the highest listed one that are asked for by name: listings may be late, and numbers unused."""


def adopt_dead_writers(
    store: SegmentStore, own: SegmentStore, logs: Path, label: str, *, marks: MarkPlace
) -> dict[str, list[str]]:
    """Mark the rollouts of calls that earlier processes of a server lost, and remove their registrations and logs.

    Args:
        store: Where their segments are.
        own: The store of registrations.
        logs: Local directory of their open logs.
        label: What the ids of the server's writers begin with.
        marks: Where marks are kept.

    Returns:
        The lost calls: rollout id to call ids.

    Raises:
        CaptureError: Something could not be read or written; names it. The log that it is about stays then.
    """
    found: dict[str, list[str]] = {}
    paths = [path for path in list_logs(logs) if path.stem.rpartition("-")[0] == label]
    if not paths:
        return found
    with one_adopter(logs, FileCalls()):
        for path in paths:
            try:
                with take_dead(path) as dead:
                    if dead is None:
                        continue
                    lost = _lost_calls(store, path.stem, dead.open_calls)
                    for rollout_id in lost:
                        marks.mark_incomplete(rollout_id)
                    own.delete(writer_name(path.stem))
                    own.delete(dead_name(path.stem))
                    dead.remove()
            except (OSError, GymRayError) as error:
                raise CaptureError(f"{path}: cannot adopt the log of a dead server: {error}") from error
            level = logging.WARNING if lost else logging.INFO
            _log.log(level, "%s: its server died; rollouts that lost calls, marked now: %s", path, sorted(lost))
            for rollout_id, call_ids in lost.items():
                found.setdefault(rollout_id, []).extend(call_ids)
    return found


def _lost_calls(store: SegmentStore, writer_id: str, open_calls: Mapping[str, str]) -> dict[str, list[str]]:
    lost: dict[str, list[str]] = {}
    recorded = recorded_call_ids(store, writer_id) if open_calls else set()
    for call_id, rollout_id in open_calls.items():
        if call_id not in recorded:
            lost.setdefault(rollout_id, []).append(call_id)
    return lost


def recorded_call_ids(store: SegmentStore, writer_id: str) -> set[str]:
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
            index = _index_of(store, segment_name(writer_id, seq))
        except StorageMissingError:
            continue
        except CaptureError as error:
            _log.warning("%s; its calls count as lost", error)
            continue
        found.update(record.call_id for record in index.records)
        ends = max(ends, seq + _LOOK_AHEAD)
    return found


def _index_of(store: SegmentStore, name: str) -> SegmentIndex:
    tail, size = store.read_tail(name, _TAIL_BYTES)
    read = read_index(tail, size, name=name)
    if isinstance(read, NeedMore):
        tail, size = store.read_tail(name, read.length)
        read = read_index(tail, size, name=name)
    assert isinstance(read, SegmentIndex)  # a tail of 64 KiB holds the last line, and that says the rest
    return read
