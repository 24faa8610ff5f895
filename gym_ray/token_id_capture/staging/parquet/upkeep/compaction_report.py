"""What compaction is told, and what it says it did."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CompactionReport", "CompactionRules"]


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """What is worth to be written anew.

    Attributes:
        max_calls: Calls, token records or events of a new segment.
        max_bytes: Bytes of the segments that are put into one; token segments take at most 24 MiB.
        max_row_groups: Row groups of a new segment, about: who wants one call reads what the footer says of all.
        retired_share: A segment that needs no company is written anew once this share of its calls is retired, or of
            its records and events dropped or cleared.
        delay_s: Seconds that an old segment stays after it was replaced, for readers that have it open or are about to
            look for what replaced it: longer than a look at the store may last.
        max_parallel: Files that are looked at at once.
        forget_dropped_after_s: Markers of dropped rollouts go after so many seconds, if no row is left; None keeps all.
            A writer that comes later is not told that the rollout is retired: it begins the rollout anew. So it must be
            longer than any writer may go on, and than ids may come again.
    """

    max_calls: int = 1024
    max_bytes: int = 1024 * 1024 * 1024
    max_row_groups: int = 128
    retired_share: float = 0.2
    delay_s: float = 3600.0
    max_parallel: int = 8
    forget_dropped_after_s: float | None = None


@dataclass(slots=True)
class CompactionReport:
    """What a run did.

    Attributes:
        written: New segments.
        moved: Segments whose calls, records or events are elsewhere now.
        dropped_calls: Retired calls that were not copied.
        dropped_rows: Token records and events of dropped rollouts, and cleared ones, that were not copied.
        deleted: Old segments that were removed.
        waiting: Old segments that a later run will remove, their delay not being over.
        forgotten: Dropped rollouts whose markers were removed.
        problems: What was left as it is, and why.
    """

    written: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    dropped_calls: int = 0
    dropped_rows: int = 0
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
