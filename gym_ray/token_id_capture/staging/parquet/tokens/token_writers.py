"""Which writers a partition has, told without a listing: numbers without a gap that are claimed one after the other.

A listing may show a name later than it can be read. So each sink claims the next free number before its first segment,
and a reader asks for the numbers, and then for the segments of each writer, by their names.

``<partition>/writers/<number:06>.json`` holds the writers of one sink. When it is closed, a second name that begins
with the number says how many segments each of them has: nobody need ask for more then, or read anything to know that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gym_ray.errors import CaptureError, StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import partition_prefix

__all__ = [
    "ClosedWriter",
    "WriterClaims",
    "claim_number",
    "close_claim",
    "read_claim",
    "read_compacting_claim",
    "shown_claims",
]

_CLAIM = re.compile(r"writers/(?P<number>[0-9]{6,})\.json", re.ASCII)
_CLOSED = re.compile(
    r"writers/(?P<number>[0-9]{6,})\.closed(?P<writers>(\.[a-z]+-[0-9a-f]{20}-[0-9]+)+)\.json", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ClosedWriter:
    """A writer that writes no more.

    Attributes:
        writer: The writer.
        kind: What its rows are.
        segments: All its segments have lower numbers.
    """

    writer: str
    kind: str
    segments: int


@dataclass(frozen=True, slots=True)
class WriterClaims:
    """What a listing shows of a partition's writers.

    Attributes:
        end: All lower numbers are claimed.
        closed: Number to the writers that claimed it, of sinks that were closed.
    """

    end: int
    closed: Mapping[int, tuple[ClosedWriter, ...]]


def claim_number(store: SegmentStore, partition: str, writers: Mapping[str, str], *, compacts: bool = False) -> int:
    """Claim the next free number of a partition for a sink, and return it; every lower one is claimed.

    Args:
        store: The store; must be able to create exclusively.
        partition: The partition.
        writers: Kind of rows to the writer of their segments.
        compacts: Whether they are those of a run of compaction.

    Raises:
        StorageError: It could not be done.
    """
    number = shown_claims(partition, store.list(f"{partition_prefix(partition)}writers/")).end
    claim = {"writers": dict(writers), **({"compacts": True} if compacts else {})}
    while True:
        try:
            store.create(_claim_name(partition, number), json.dumps(claim).encode() + b"\n")
        except StorageExistsError:
            number += 1
        else:
            return number


def close_claim(store: SegmentStore, partition: str, number: int, writers: Iterable[ClosedWriter]) -> None:
    """Say that the sink that claimed a number writes no more.

    Raises:
        StorageError: It could not be done.
    """
    said = "".join(f".{one.kind}-{one.writer}-{one.segments}" for one in writers)
    store.publish(f"{partition_prefix(partition)}writers/{number:06}.closed{said}.json", b"{}\n")


def shown_claims(partition: str, names: Iterable[str]) -> WriterClaims:
    """Return what names of a partition say of its writers."""
    end = 0
    closed: dict[int, tuple[ClosedWriter, ...]] = {}
    for name in names:
        rest = name.removeprefix(partition_prefix(partition))
        if match := _CLAIM.fullmatch(rest):
            end = max(end, int(match["number"]) + 1)
        elif match := _CLOSED.fullmatch(rest):
            parts = (part.split("-") for part in match["writers"].removeprefix(".").split("."))
            number = int(match["number"])
            end = max(end, number + 1)
            closed[number] = tuple(ClosedWriter(writer, kind, int(count)) for kind, writer, count in parts)
    return WriterClaims(end, closed)


def read_claim(store: SegmentStore, partition: str, number: int) -> dict[str, str] | None:
    """Return the writers that claimed a number by the kind of their rows, None if none did.

    Raises:
        CaptureError: What is there is no claim.
        StorageError: It could not be read.
    """
    claim = _read(store, partition, number)
    return None if claim is None else claim[0]


def read_compacting_claim(store: SegmentStore, partition: str, number: int) -> dict[str, str] | None:
    """Return the writers of the run of compaction that claimed a number, None if none did; raises as the above."""
    claim = _read(store, partition, number)
    return claim[0] if claim is not None and claim[1] else None


def _read(store: SegmentStore, partition: str, number: int) -> tuple[dict[str, str], bool] | None:
    name = _claim_name(partition, number)
    try:
        data = store.read(name)
    except StorageMissingError:
        return None
    try:
        claim = json.loads(data)
        return {str(kind): str(writer) for kind, writer in claim["writers"].items()}, claim.get("compacts") is True
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CaptureError(f"{store.place}/{name} does not say who claimed it: {error!r}") from error


def _claim_name(partition: str, number: int) -> str:
    return f"{partition_prefix(partition)}writers/{number:06}.json"
