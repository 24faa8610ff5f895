"""Who sits where: the workers and joiners of a collection, and what each has in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gym_ray.actors.calls import resources
from gym_ray.errors import ClusterError

__all__ = ["Seat", "least_busy"]


@dataclass(slots=True)
class Seat:
    """One worker or joiner and what it has in hand; ``heard_at`` is when it last finished something, monotonic."""

    name: str
    node_id: str
    handle: Any
    busy: int = 0
    gone: bool = False
    heard_at: float = 0.0


def least_busy(seats: Sequence[Seat], what: str) -> Seat:
    """Return the living seat with the least in hand.

    Raises:
        ClusterError: None is left; the message names ``what`` they were.
    """
    living = [seat for seat in seats if not seat.gone]
    if not living:
        raise ClusterError(f"no {what} is left; the cluster has {resources()}")
    return min(living, key=lambda seat: seat.busy)
