"""The steps of an examination, and who takes them on a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from gym_ray.errors import SettingsError
from gym_ray.storage.opening import open_store
from gym_ray.storage.shared_place.directory_hand import DirectoryHand
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.store_hand import StoreHand

__all__ = ["STEPS", "ProbeNode", "open_hand", "take_step"]

STEPS = frozenset(
    {
        *("begin", "work_alone", "prepare", "look", "change", "watch_visibility", "race", "clock"),
        *("hold_lock", "try_locks", "release_lock", "sweep", "finish"),
    }
)
"""What a node can be told to do."""


class ProbeNode(Protocol):
    """A node, seen from the one who asks; its steps are taken one after the other.

    Attributes:
        name: As messages call it.
    """

    name: str

    def start(self, step: str, *arguments: Any) -> Future[Any]:
        """Tell the node to take a step; the future fails with whatever went wrong, also when the node is gone."""


def open_hand(
    where: str,
    storage_options: Mapping[str, Any],
    run: str,
    me: int,
    make_calls: Callable[[], PlaceCalls] = PlaceCalls,
) -> DirectoryHand | StoreHand:
    """Return what takes the steps in this process.

    Raises:
        SettingsError: The store cannot be opened.
    """
    if where.startswith("/"):
        return DirectoryHand(where, run, me, make_calls())
    return StoreHand(open_store(where, storage_options=storage_options), run, me, make_calls())


def take_step(hand: DirectoryHand | StoreHand, step: str, arguments: Sequence[Any]) -> Any:
    """Take a step.

    Raises:
        SettingsError: There is no such step here.
        OSError: See the step.
    """
    if step not in STEPS or not hasattr(hand, step):
        raise SettingsError(
            type(hand).__name__, step, "there is no such step", f"use one of {', '.join(sorted(STEPS))}"
        )
    return getattr(hand, step)(*arguments)
