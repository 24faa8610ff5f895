"""The short form, for the start of a run: each node writes a probe, then each reads those of all others (D136).

It finds a place that is not the same everywhere or cannot be written; the long form finds what is subtler.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gym_ray.errors import GymRayError, StorageError
from gym_ray.storage.durable_files import OWNER_ONLY_DIRECTORY, make_directory
from gym_ray.storage.opening import open_store
from gym_ray.storage.posix import OWNER_ONLY
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.store import SegmentStore

__all__ = ["ProbedPlace", "create_place", "read_probe", "remove_probes", "write_probe"]

_PREFIX = "gym-ray-probe"
_PAUSE_S = 0.02
ProbedPlace = tuple[str, Mapping[str, object]]
"""An absolute path, or a URL and what fsspec is given for it."""


def create_place(place: ProbedPlace) -> None:
    """Create a directory if need be, on the first node only; elsewhere a missing one is a finding.

    Raises:
        StorageError: It could not be created.
    """
    if not place[0].startswith("/"):
        return
    try:
        make_directory(PlaceCalls(), Path(place[0]), OWNER_ONLY_DIRECTORY)
    except OSError as error:
        raise StorageError(f"{place[0]}: the directory cannot be created: {error}") from error


def write_probe(places: Sequence[ProbedPlace], run: str, me: int) -> list[str]:
    """Write this node's probe at each place; return for each "" or why it could not be."""
    return [_write(place, run, me) for place in places]


def _write(place: ProbedPlace, run: str, me: int) -> str:
    where = place[0]
    if where.startswith("/") and not Path(where).is_dir():
        return "there is no such directory"
    try:
        store = _open(place)
        try:
            store.publish(_name(run, me), _content(run, me))
        finally:
            store.close()
    except GymRayError as error:
        return str(error)
    return ""


def read_probe(
    places: Sequence[ProbedPlace], run: str, others: Sequence[Sequence[int]], patience_s: float
) -> list[list[int]]:
    """Return for each place whose probes are not there, or not readable, within the patience.

    Args:
        places: Where to look.
        run: What the check is called.
        others: For each place, whose probes were written.
        patience_s: How long to look, altogether.
    """
    until = time.monotonic() + patience_s
    return [_missing(place, run, wanted, until) for place, wanted in zip(places, others, strict=True)]


def _missing(place: ProbedPlace, run: str, wanted: Sequence[int], until: float) -> list[int]:
    try:
        store = _open(place)
    except GymRayError:
        return list(wanted)
    try:
        missing = [other for other in wanted if not _is_there(store, run, other)]
        while missing and time.monotonic() < until:
            time.sleep(_PAUSE_S)
            missing = [other for other in missing if not _is_there(store, run, other)]
        return missing
    finally:
        store.close()


def _is_there(store: SegmentStore, run: str, other: int) -> bool:
    try:
        return store.read(_name(run, other)) == _content(run, other)
    except StorageError:
        return False  # it is reported as not seen, whatever kept it from being read


def remove_probes(places: Sequence[ProbedPlace], run: str, nodes: Sequence[int]) -> None:
    """Remove the probes of nodes, also those that others wrote; what cannot be removed is left."""
    for place in places:
        if place[0].startswith("/") and not Path(place[0]).is_dir():
            continue
        try:
            store = _open(place)
        except GymRayError:
            continue
        for node in nodes:
            try:
                store.delete(_name(run, node))
            except StorageError:
                continue  # it was not writable either, which has been said
        store.close()


def _open(place: ProbedPlace) -> SegmentStore:
    return open_store(place[0], storage_options=place[1] or None, mode=OWNER_ONLY)


def _name(run: str, node: int) -> str:
    return f"{_PREFIX}-{run}-{node}"


def _content(run: str, node: int) -> bytes:
    return f"{run} {node}".encode()
