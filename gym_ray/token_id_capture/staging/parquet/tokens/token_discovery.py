"""Finds the segments of a partition: what a listing shows, and what it does not show yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import (
    EVENTS_KIND,
    TOKENS_KIND,
    SegmentName,
    parse_segment_name,
    partition_prefix,
)
from gym_ray.token_id_capture.staging.parquet.tokens.token_origins import Ranges
from gym_ray.token_id_capture.staging.parquet.tokens.token_writers import WriterClaims, read_claim, shown_claims

__all__ = ["SegmentDiscovery"]

_KINDS: Final = (TOKENS_KIND, EVENTS_KIND)
_AHEAD: Final = 4
"""So many commits of a writer may have failed in a row without hiding the ones behind them from a late listing."""

InParallel = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(slots=True)
class _Writer:
    """What is known of a writer's numbers.

    Attributes:
        kind: What its rows are.
        known: Numbers of segments that are there, or were.
        failed: Numbers that will never be.
        top: The highest number that is there, or was.
        end: All its segments have lower numbers; None while it may write more.
    """

    kind: str
    known: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    top: int = -1
    end: int | None = None

    def unseen(self) -> list[int]:
        """Return numbers that may hold a segment nobody has seen."""
        settled = len(self.known) + len(self.failed)
        end = self.top + 1 if self.end is None else max(self.end, self.top + 1)
        below = [seq for seq in range(end) if seq not in self.known and seq not in self.failed] if settled < end else []
        return below if self.end is not None else [*below, *range(end, end + _AHEAD)]


class SegmentDiscovery:
    """The names of the segments with token records and events; used by one thread at a time.

    Every segment of a writer that claimed a number is found, whatever listings show: numbers of writers and of their
    segments are asked for one by one, beyond the last that is known. ``trust_listings`` leaves that out, and with it
    a few small requests for each living writer. A listing still finds what lies behind a row of failed commits.

    Args:
        store: The store.
        partition: The partition.
        trust_listings: Whether a listing shows every name that was there when it began.
        in_parallel: Calls a function with each value, several at a time, and returns the results in order.
    """

    def __init__(self, store: SegmentStore, partition: str, *, trust_listings: bool, in_parallel: InParallel) -> None:
        self._store, self._partition = store, partition
        self._trusts, self._in_parallel = trust_listings, in_parallel
        self._writers: dict[str, _Writer] = {}
        self._claims = 0

    def look(self, known: Iterable[str] = (), *, listing: bool = True) -> list[str]:
        """Return the names that were not returned before, sorted; all that were published before the call are known.

        Args:
            known: Names that somebody knows to be there.
            listing: Whether the store is listed, too; always if listings are trusted.

        Raises:
            StorageError: It could not be found out.
        """
        listed = self._store.list(partition_prefix(self._partition)) if listing or self._trusts else []
        fresh = self._take(parse_segment_name(name) for name in (*listed, *known))
        if not self._trusts:
            self._learn_writers(shown_claims(self._partition, listed))
            while found := self._probe():
                fresh += found
        return sorted(map(str, fresh))

    def leave_out(self, kind: str, replaced: Ranges) -> None:
        """Look no more for segments that another one stands for; what their writers wrote behind them is found."""
        for name, ranges in replaced.items():
            writer = self._writers.setdefault(name, _Writer(kind))
            for start, end in ranges:
                writer.known.update(range(start, end))
                writer.failed.difference_update(range(start, end))
                writer.top = max(writer.top, end - 1)

    def _take(self, names: Iterable[SegmentName | None]) -> list[SegmentName]:
        taken = []
        for name in names:
            if name is None or name.partition != self._partition or name.kind not in _KINDS:
                continue
            writer = self._writers.setdefault(name.writer, _Writer(name.kind))
            if name.kind == writer.kind and name.seq not in writer.known:
                writer.known.add(name.seq)
                writer.failed.discard(name.seq)
                writer.top = max(writer.top, name.seq)
                taken.append(name)
        return taken

    def _learn_writers(self, shown: WriterClaims) -> None:
        for closed in shown.closed.values():
            for one in closed:
                self._writers.setdefault(one.writer, _Writer(one.kind)).end = one.segments
        living = [number for number in range(self._claims, shown.end) if number not in shown.closed]
        claims = self._in_parallel(self._read_claim, living)
        self._claims = max(self._claims, shown.end)
        while (claim := self._read_claim(self._claims)) is not None:
            claims.append(claim)
            self._claims += 1
        for claim in claims:
            for kind, writer in (claim or {}).items():
                self._writers.setdefault(writer, _Writer(kind))

    def _read_claim(self, number: int) -> dict[str, str] | None:
        return read_claim(self._store, self._partition, number)

    def _probe(self) -> list[SegmentName]:
        """Ask for every number that may hold a segment, and return the segments that were not known."""
        ends = {writer: one.top if one.end is None else max(one.end, one.top) for writer, one in self._writers.items()}
        names = [
            SegmentName(self._partition, writer, seq, one.kind)
            for writer, one in self._writers.items()
            for seq in one.unseen()
        ]
        are_there = self._in_parallel(lambda name: self._store.exists(str(name)), names)
        found = self._take(name for name, is_there in zip(names, are_there, strict=True) if is_there)
        for name, is_there in zip(names, are_there, strict=True):
            # Numbers are used once and in order: one that is not there when a higher one is will never be.
            if not is_there and name.seq < ends[name.writer]:
                self._writers[name.writer].failed.add(name.seq)
        return found
