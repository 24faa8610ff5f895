"""Publish what an inference worker counts: calls whose tokens it could not stage, and those it staged too late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gym_ray.actors.publisher import Publisher, add
from gym_ray.token_id_capture.staging import AsyncRolloutTokenCapture

__all__ = ["WorkerMetricsPublisher"]


@dataclass(frozen=True, slots=True)
class _Counts:
    failures: Mapping[str, int]
    orphans: int


class WorkerMetricsPublisher(Publisher[_Counts]):
    """Publishes the failures of a worker's capture by class, and its orphans (C330, C331)."""

    def __init__(self, capture: AsyncRolloutTokenCapture, server_name: str) -> None:
        super().__init__(server_name)
        self._capture, self._published = capture, _Counts({}, 0)
        self._failures = self.counter("worker_capture_failures", "Calls that a worker did not stage.", "kind")
        self._orphans = self.counter("worker_orphans", "Calls that were staged after they were given up.")

    def take(self) -> _Counts:
        """Return the counts."""
        return _Counts(self._capture.failures, self._capture.orphans)

    def publish(self, batch: _Counts) -> None:
        """Publish what was added since the last batch."""
        before, self._published = self._published, batch
        for kind, count in batch.failures.items():
            add(self._failures, count - before.failures.get(kind, 0), {"kind": kind})
        add(self._orphans, batch.orphans - before.orphans, {})
