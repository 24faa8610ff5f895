"""Remembers which rows failed in this run, so that the figures can take the failure of one that runs again back."""

from __future__ import annotations

from array import array

from gym_ray.rollouts.metrics.live import RunMetrics

__all__ = ["FailedRows"]

_MOST_AGENTS = 0xFFFF


class FailedRows:
    """Two bytes a row from the first failure on, none before; rows that earlier runs left failed are not in it.

    Args:
        rows: How many rows the run has.
        metrics: The figures that :meth:`note` was counted in.
    """

    def __init__(self, rows: int, metrics: RunMetrics) -> None:
        self._rows, self._metrics = rows, metrics
        self._agents: dict[str, int] = {}
        self._failed = array("H")

    def note(self, ordinal: int, agent: str) -> None:
        """Note that the last attempt of a row failed; beyond 65,535 agents nothing is remembered."""
        number = self._agents.setdefault(agent, len(self._agents) + 1)
        if number <= _MOST_AGENTS:
            if not self._failed:
                self._failed = array("H", bytes(2 * self._rows))
            self._failed[ordinal] = number

    def requeued(self, ordinal: int) -> None:
        """Take the failure of a row back that runs again; nothing when it did not fail in this run."""
        number = self._failed[ordinal] if self._failed else 0
        if number:
            self._failed[ordinal] = 0
            self._metrics.requeued(list(self._agents)[number - 1])
