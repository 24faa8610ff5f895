"""Examine a directory from the nodes of the cluster in ``RAY_ADDRESS``, also with a second node that is not right.

    python doctor_on_nodes.py DIRECTORY OTHER

Prints one JSON object: the reports, what the short check said of either directory, and how long it took. The covered
directory, if OTHER is one, is another on the second node.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from gym_ray.actors.cluster import connected
from gym_ray.actors.doctor import check_place, check_shared
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import GymRayError
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.testing.wrong_places import ElsewhereCalls, LocalLockCalls


class DyingCalls(PlaceCalls):
    """The node's process ends when it is to hold a lock."""

    def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
        if "/lock-" in Path(f"/proc/self/fd/{fd}").readlink().as_posix():
            os._exit(1)
        return super().lock_exclusive(fd, wait=wait)


class OnSecond:
    """Gives the second node other calls."""

    def __init__(self, first: str, make: Callable[[], PlaceCalls]) -> None:
        self.first, self.make = first, make

    def __call__(self) -> PlaceCalls:
        return PlaceCalls() if ray.get_runtime_context().get_node_id() == self.first else self.make()


def short(place: str) -> str:
    try:
        check_shared([place], timeout_s=6)
    except GymRayError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(directory: str, other: str) -> dict[str, Any]:
    location, told = CaptureLocation.of(directory), {}
    with connected("gym-ray/doctor-test", address=os.environ["RAY_ADDRESS"]):
        first = ray.get_runtime_context().get_node_id()
        wrong = {
            "good": PlaceCalls,
            "locks": LocalLockCalls,
            "differs": lambda: ElsewhereCalls(Path(directory), Path(other)),
            "dies": DyingCalls,
        }
        for name, make in wrong.items():
            told[name] = asdict(check_place(location, patience_s=0.5, make_calls=OnSecond(first, make)))
        short(directory)  # processes of the nodes start with the first
        begun = time.monotonic()
        told["shared"] = short(directory)
        told["took_s"] = time.monotonic() - begun
        told["other"] = short(other)
        told["missing"] = short(f"{directory}/new")
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
