"""Who sits where: the workers and joiners of a collection, and what each has in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

from gym_ray.actors.calls import resources
from gym_ray.agents.context import ServerUrls
from gym_ray.errors import ClusterError

__all__ = ["Seat", "expect_back", "first_line", "least_busy_there"]

_LOOK_S = 0.1


@dataclass(slots=True)
class Seat:
    """One worker or joiner and what it has in hand; ``heard_at`` is when it last finished something, monotonic.

    ``urls`` is where its attempts find the servers from now on, None for where they were when it started.
    ``comes_back`` ends when the new process of a seat that lost its own answers; None for one that is there.
    """

    name: str
    node_id: str
    handle: Any
    busy: int = 0
    gone: bool = False
    heard_at: float = 0.0
    urls: ServerUrls | None = None
    comes_back: asyncio.Task[None] | None = None


def _least_busy(seats: Sequence[Seat], what: str) -> Seat:
    """Return the living seat with the least in hand; one that still comes back only when there is no other.

    Raises:
        ClusterError: None is left; the message names ``what`` they were.
    """
    living = [seat for seat in seats if not seat.gone]
    if not living:
        raise ClusterError(f"no {what} is left; the cluster has {resources()}")
    return min(living, key=lambda seat: (seat.comes_back is not None, seat.busy))


async def least_busy_there(seats: Sequence[Seat], what: str) -> Seat:
    """Return the living seat with the least in hand once its process answers; one that is there comes first.

    Raises:
        ClusterError: None is left; the message names ``what`` they were.
    """
    while (seat := _least_busy(seats, what)).comes_back is not None:
        await asyncio.shield(seat.comes_back)  # others wait for the same one
    return seat


def expect_back(seat: Seat) -> None:
    """Note that a seat lost its process: Ray fails calls to it, without running them, until it knows the new one."""
    if seat.comes_back is None:
        seat.comes_back = asyncio.ensure_future(_answers(seat))


async def _answers(seat: Seat) -> None:
    try:
        while True:
            try:
                await seat.handle.ready.remote()
            except ActorUnavailableError:
                await asyncio.sleep(_LOOK_S)
            else:
                return
    except RayTaskError:
        pass  # it answers; what it cannot do, it says to each attempt
    except (RayActorError, ActorUnschedulableError):  # it died for good
        seat.gone = True
    finally:
        seat.comes_back = None


def first_line(error: BaseException) -> str:
    """Return what Ray says first of an error; the rest of it is for whoever debugs Ray."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
