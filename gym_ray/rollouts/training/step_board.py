"""Which rollouts of a step are decided, which wait to be delivered, and what that holds in bytes.

Each requested rollout is decided once, by whatever comes first, and delivered once: alone, or with its whole group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gym_ray.rollouts.training.outcomes import Outcome, Requested, lost_outcome

__all__ = ["StepBoard"]


class StepBoard:
    """The rollouts of one step.

    Args:
        requested: All of them, by ordinal.
        groups: Deliver all repeats of a task together.
    """

    def __init__(self, requested: Sequence[Requested], *, groups: bool) -> None:
        self._open = {item.ordinal: item for item in requested}
        self._of = dict(self._open)
        self._groups: dict[tuple[str, str], list[int]] = {}
        self._grouped = groups
        for item in requested:
            self._groups.setdefault(item.group, []).append(item.ordinal)
        self._held: dict[tuple[str, str], list[Outcome]] = {}
        self._ready: deque[tuple[Outcome, ...]] = deque()
        self._sizes: dict[int, int] = {}
        self.undelivered_bytes = 0

    @property
    def decided(self) -> bool:
        """Whether every rollout is decided."""
        return not self._open

    @property
    def over(self) -> bool:
        """Whether every rollout is decided and delivered."""
        return not self._open and not self._ready

    @property
    def waiting(self) -> int:
        """Deliveries that wait for whoever collects."""
        return len(self._ready)

    def is_open(self, ordinal: int) -> bool:
        """Whether a rollout is undecided."""
        return ordinal in self._open

    def open_ordinals(self) -> tuple[int, ...]:
        """Return the undecided rollouts."""
        return tuple(self._open)

    def requested(self, ordinal: int) -> Requested:
        """Return a requested rollout."""
        return self._of[ordinal]

    def group_of(self, ordinal: int) -> tuple[int, ...]:
        """Return the undecided rollouts of a rollout's group."""
        return tuple(item for item in self._groups[self._of[ordinal].group] if item in self._open)

    def find(self, rollout_ids: Iterable[str]) -> tuple[int, ...]:
        """Return the undecided rollouts with these ids, which may be those of any attempt."""
        wanted = set(rollout_ids)
        return tuple(
            ordinal
            for ordinal, item in self._open.items()
            if item.rollout_id in wanted or any(_is_attempt(given, item.rollout_id) for given in wanted)
        )

    def settle(self, outcome: Outcome, size: int = 0) -> bool:
        """Decide a rollout; nothing when it was decided before.

        Args:
            outcome: What became of it.
            size: Bytes that are held for it until it is delivered.

        Returns:
            Whether this decided it.
        """
        item = outcome.requested
        if self._open.pop(item.ordinal, None) is None:
            return False
        self._sizes[item.ordinal] = size
        self.undelivered_bytes += size
        if not self._grouped:
            self._ready.append((outcome,))
            return True
        held = self._held.setdefault(item.group, [])
        held.append(outcome)
        if len(held) == len(self._groups[item.group]):
            held.sort(key=lambda one: one.requested.ordinal)
            self._ready.append(tuple(self._held.pop(item.group)))
        return True

    def mask(self, ordinals: Iterable[int], reason: str) -> tuple[int, ...]:
        """Decide rollouts as lost; return those that were undecided."""
        return tuple(n for n in list(ordinals) if n in self._open and self.settle(lost_outcome(self._of[n], reason)))

    def take(self, most: int) -> list[tuple[Outcome, ...]]:
        """Return at most so many deliveries; they count as delivered."""
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        self.undelivered_bytes -= sum(self._sizes.pop(one.requested.ordinal) for unit in taken for one in unit)
        return taken

    def has_room(self, max_bytes: int) -> bool:
        """Whether more may start: bytes are left, or nobody could take anything that would free some."""
        return self.undelivered_bytes < max_bytes or not self._ready


def _is_attempt(given: str, base: str) -> bool:
    return given.startswith(base + "-a") and given[len(base) + 2 :].isdecimal()
