"""Which rollouts a resolver keeps in memory: the ones used last, within bounds (B51, W12)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage

__all__ = ["DEFAULT_MAX_TOKENS", "LineageCache", "RolloutState"]

# 256 MB, which is what the 8,000,000 tokens of B51 take as lists.
DEFAULT_MAX_TOKENS: Final = 64_000_000


@dataclass(slots=True, eq=False)
class RolloutState:
    """One rollout in memory; its lock is held by whoever uses it.

    Attributes:
        lineage: Its calls.
        cursor: How far its records were read, None before the first time.
        broken: Why nothing can be said of it; empty if something can.
    """

    lineage: RolloutLineage
    cursor: Any | None = None
    broken: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    counted: int = 0


class LineageCache:
    """Rollouts by id, least recently used ones forgotten first; safe for threads.

    Bounds are totals that are kept up to date, never sums. The rollout in use is never forgotten, however large.

    Args:
        make: Makes the state of a rollout that is not known.
        max_rollouts: Most rollouts to keep.
        max_tokens: Most tokens to keep, calls included at what they cost.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(self, make: Callable[[str], RolloutState], *, max_rollouts: int, max_tokens: int) -> None:
        for name, bound in (("max_rollouts", max_rollouts), ("max_tokens", max_tokens)):
            if bound <= 0:
                raise ValueError(f"{name} must be at least 1, not {bound}")
        self._make, self._max_rollouts, self._max_tokens = make, max_rollouts, max_tokens
        self._states: OrderedDict[str, RolloutState] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """Memory in use, in tokens of four bytes."""
        return self._tokens

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._states

    def rollouts(self) -> list[str]:
        """Return the ids that are kept, the one to be forgotten next first."""
        with self._lock:
            return list(self._states)

    @contextmanager
    def using(self, rollout_id: str) -> Iterator[RolloutState]:
        """Hold the state of a rollout, alone; one that is not known is made."""
        with self._lock:
            state = self._states.get(rollout_id)
            if state is None:
                state = self._states[rollout_id] = self._make(rollout_id)
            self._states.move_to_end(rollout_id)
        try:
            with state.lock:
                yield state
        finally:
            self._settle(rollout_id, state)

    def forget(self, rollout_id: str) -> None:
        """Forget one rollout; what is in use stays with its user."""
        with self._lock:
            state = self._states.pop(rollout_id, None)
            self._tokens -= state.counted if state else 0

    def clear(self) -> None:
        """Forget everything; what is in use stays with its user."""
        with self._lock:
            self._states.clear()
            self._tokens = 0

    def _settle(self, rollout_id: str, used: RolloutState) -> None:
        with self._lock:
            if self._states.get(rollout_id) is used:
                weight = used.lineage.weight
                self._tokens += weight - used.counted
                used.counted = weight
            while len(self._states) > 1 and self._over_bounds():
                _, forgotten = self._states.popitem(last=False)
                self._tokens -= forgotten.counted

    def _over_bounds(self) -> bool:
        return len(self._states) > self._max_rollouts or self._tokens > self._max_tokens
