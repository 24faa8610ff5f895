"""Counters of capture: how parents were found, what was lost, where a parent's tokens went in (B81, B95).

They are for people and dashboards. No decision reads them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray.token_id_capture.records import ParentResolutionStatus

__all__ = ["CaptureCounts", "CaptureHealth", "PrefixCounts"]


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """Calls whose engine could be given the parent's tokens.

    Attributes:
        supplied: The engine proved that it used them.
        eligible: The call had a parent whose tokens are known.
        total: All calls that were looked at.
    """

    supplied: int = 0
    eligible: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """All counts at one moment.

    Attributes:
        resolutions: Decisions about parents, by status.
        failures: Calls whose record was lost to a fault in capture.
        untrainable: Calls that an engine answered without usable tokens, by reason.
        prefix: Calls whose engine could be given the parent's tokens.
    """

    resolutions: Mapping[str, int]
    failures: int
    untrainable: Mapping[str, int]
    prefix: PrefixCounts


class CaptureHealth:
    """Counts what happened in one process or server; safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resolutions: Counter[ParentResolutionStatus] = Counter()
        self._failures = 0
        self._untrainable: Counter[str] = Counter()
        self._prefix: Counter[str] = Counter()
        self._said: set[str] = set()

    def resolved(self, status: ParentResolutionStatus) -> None:
        """Count a decision about a parent; a failed look-up is an unresolved one."""
        with self._lock:
            self._resolutions[status] += 1

    def failed(self) -> None:
        """Count a call whose record was lost to a fault in capture."""
        with self._lock:
            self._failures += 1

    def untrainable(self, reason: str) -> None:
        """Count a call that an engine answered without usable tokens."""
        with self._lock:
            self._untrainable[reason] += 1

    def prefix(self, *, total: int = 0, eligible: int = 0, supplied: int = 0) -> None:
        """Add to the counts of supplied prefixes."""
        with self._lock:
            self._prefix.update(total=total, eligible=eligible, supplied=supplied)

    def first_time(self, what: str) -> bool:
        """Whether ``what`` happens for the first time, for warnings that are given once a process."""
        with self._lock:
            new = what not in self._said
            self._said.add(what)
            return new

    def snapshot(self) -> dict[str, Any]:
        """Return decisions by status, and the number of lost records, as B81 lays them out."""
        counts = self.counts()
        return {"resolutions": dict(counts.resolutions), "capture_failures": counts.failures}

    def counts(self) -> CaptureCounts:
        """Return everything that was counted."""
        with self._lock:
            resolutions = {str(status): self._resolutions[status] for status in ParentResolutionStatus}
            prefix = PrefixCounts(self._prefix["supplied"], self._prefix["eligible"], self._prefix["total"])
            return CaptureCounts(resolutions, self._failures, dict(self._untrainable), prefix)

    def prefix_counts(self) -> PrefixCounts:
        """Return how often a parent's tokens went in."""
        return self.counts().prefix
