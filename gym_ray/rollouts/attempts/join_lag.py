"""Tells how far joining is behind: what has ended and is not stored yet, and for how long (D167).

A run whose joiners cannot keep up looks like a slow agent otherwise. Memory: one number for each attempt in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gym_ray.rollouts.metrics import Distribution

__all__ = ["JoinLag"]


class JoinLag:
    """The attempts that have ended and whose records are not durable yet.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at: dict[int, float] = {}  # in the order in which they ended
        self._lags_ms = Distribution()

    @contextmanager
    def unjoined(self, ordinal: int) -> Iterator[None]:
        """Count an attempt of a row as unjoined while the block lasts; a block that raises stored nothing."""
        ended_at = self._ended_at[ordinal] = self._clock()
        try:
            yield
            self._lags_ms.add((self._clock() - ended_at) * 1000)
        finally:
            del self._ended_at[ordinal]

    def oldest_s(self) -> float | None:
        """Return how long the oldest unjoined attempt has waited, None when there is none."""
        ended_at = next(iter(self._ended_at.values()), None)
        return None if ended_at is None else self._clock() - ended_at

    def p90_ms(self) -> float | None:
        """Return the p90 of the time from an attempt's end to its durable record, None before the first one."""
        return self._lags_ms.percentile(90)
