"""What lies in a staging store: its segments, and its calls with keys that lead to them. Nothing is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gym_ray.errors import CaptureError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.calls.retirement import Retirements
from gym_ray.token_id_capture.staging.parquet.calls.stored_calls import stored_calls
from gym_ray.token_id_capture.staging.parquet.segments.identity import read_identity
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey
from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    CALLS_KIND,
    FROZEN_PREFIX,
    RETIRED_PREFIX,
    SegmentName,
    parse_segment_name,
)
from gym_ray.token_id_capture.staging.parquet.segments.moves import Place, note_name
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction_plan import is_plan
from gym_ray.token_id_capture.staging.parquet.upkeep.first_places import FirstPlaces, moved_segment

__all__ = ["KindSurvey", "ListedCall", "StoreSurvey", "list_calls", "list_partitions", "survey_store"]

_MAX_PARALLEL: Final = 8


@dataclass(slots=True)
class KindSurvey:
    """The segments of one kind in one partition; the moved ones are on their way out."""

    segments: int = 0
    bytes: int = 0
    moved_segments: int = 0
    moved_bytes: int = 0
    writers: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class StoreSurvey:
    """What lies in a staging store."""

    place: str
    store_id: str
    kinds: Mapping[tuple[str, str], KindSurvey]
    retirements: int
    frozen: int
    unfinished_compactions: int


@dataclass(frozen=True, slots=True)
class ListedCall:
    """One staged call, under the key that its caller was given; compaction changes no key.

    Attributes:
        rollout_id: Its rollout.
        model_call_id: Its id.
        attachments: How many it has, items of lists counted one by one.
        retired: Whether its keys lead nowhere any more.
        key: Leads to it.
        other_keys: What further sinks that staged the same call handed out, once compaction has made one row of theirs.
    """

    rollout_id: str
    model_call_id: str
    attachments: int
    retired: bool
    key: str
    other_keys: tuple[str, ...] = ()


def survey_store(store: SegmentStore) -> StoreSurvey:
    """Look at every name and size of a store; no row is read.

    Raises:
        CaptureError: The place is no staging store.
        StorageError: It could not be read.
        ValueError: Its ``store.json`` is damaged.
    """
    store_id = _store_id(store)
    names = set(store.list())
    segments = [found for found in map(parse_segment_name, names) if found is not None]
    kinds: dict[tuple[str, str], KindSurvey] = defaultdict(KindSurvey)
    with ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="staging-survey") as pool:
        for segment, size in zip(segments, pool.map(lambda one: _size(store, str(one)), segments), strict=True):
            kind = kinds[segment.partition, segment.kind]
            kind.writers.add(segment.writer)
            if _is_moved(segment, names):
                kind.moved_segments += 1
                kind.moved_bytes += size
            else:
                kind.segments += 1
                kind.bytes += size
    return StoreSurvey(
        store.place,
        store_id,
        dict(sorted(kinds.items())),
        _counted(names, RETIRED_PREFIX),
        _counted(names, FROZEN_PREFIX),
        sum(map(is_plan, names)),
    )


def list_calls(store: SegmentStore) -> list[ListedCall]:
    """Return every staged call, each once, without reading tokens or media.

    Raises:
        CaptureError: The place is no staging store.
        StorageError: It could not be read.
        ValueError: A segment, or a note of a compaction, is damaged.
    """
    store_id = _store_id(store)
    retired = Retirements(store).all(_MAX_PARALLEL)
    names = set(store.list())
    with ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="staging-survey") as pool:
        first = FirstPlaces(store, names, pool)
    found = []
    for segment in sorted(filter(None, map(parse_segment_name, names)), key=str):
        if segment.kind != CALLS_KIND or _is_moved(segment, names):
            continue
        for call in stored_calls(SegmentReader(store, str(segment))):
            who = call.identity
            places = first.of(Place(str(segment), call.row_group, call.row))
            key, *others = (_key(store_id, place, who.digest) for place in places)
            found.append(
                ListedCall(who.rollout_id, who.model_call_id, len(call.media or ()), who in retired, key, tuple(others))
            )
    return sorted(found, key=lambda call: (call.rollout_id, call.model_call_id, call.key))


def list_partitions(store: SegmentStore) -> list[str]:
    """Return the partitions that something was ever written to, also if compaction has left nothing of it.

    Raises:
        CaptureError: The place is no staging store.
        StorageError: The store could not be read.
    """
    _store_id(store)
    found = {
        segment.partition
        for name in store.list()
        for segment in (parse_segment_name(name), moved_segment(name))
        if segment
    }
    return sorted(found)


def _key(store_id: str, place: Place, digest: str) -> str:
    segment = parse_segment_name(place.segment)
    if segment is None:
        raise ValueError(f"{place.segment!r} is no segment")
    at = (segment.partition, segment.writer, segment.seq, place.row_group, place.row)
    return str(SegmentKey(store_id, *at, digest[:8]))


def _store_id(store: SegmentStore) -> str:
    store_id = read_identity(store)
    if store_id is None:
        raise CaptureError(f"{store.place}: no staging store is here; name the place that a sink was given")
    return store_id


def _size(store: SegmentStore, name: str) -> int:
    try:
        return store.size(name)
    except StorageMissingError:
        return 0  # compaction has just removed it


def _is_moved(segment: SegmentName, names: set[str]) -> bool:
    return segment.kind == CALLS_KIND and note_name(str(segment)) in names


def _counted(names: Iterable[str], prefix: str) -> int:
    return sum(name.startswith(prefix) for name in names)
