"""Call our actors and wait for them, so that an error of ours arrives as itself and an interrupt finds its moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RayTaskError,
    TaskUnschedulableError,
)

from gym_ray.errors import ClusterError, GymRayError, ServerStartError

__all__ = ["MOMENT_S", "OnWait", "get", "offer", "resources", "wait"]

MOMENT_S = 0.25
"""How long this process leaves its interrupts waiting."""

OnWait = Callable[[str], None]


def get(references: Any, timeout_s: float | None, on_wait: OnWait | None = None) -> Any:
    """Fetch results of our actors; an error of ours arrives as itself.

    Args:
        references: One reference, or a list of them.
        timeout_s: Longest wait, None for as long as it takes.
        on_wait: Called every moment until then; it may raise to give up. Between its calls nothing of Ray runs in this
            thread, so it is where an interrupt belongs.

    Raises:
        GymRayError: What the actor raised.
        ClusterError: An actor's process ended, or raised something that is not ours.
        ServerStartError: No answer in time.
    """
    try:
        if on_wait is not None:
            _wait_in_moments(references if isinstance(references, list) else [references], timeout_s, on_wait)
        return ray.get(references, timeout=timeout_s)
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, GymRayError) else ClusterError(f"an actor failed: {cause!r}") from error
    except (RayActorError, ActorUnschedulableError, TaskUnschedulableError) as error:
        raise ClusterError(f"an actor's process ended: {error}") from error
    except GetTimeoutError as error:
        raise ServerStartError(f"actors not up after {timeout_s:g} s; {offer()}") from error


def _wait_in_moments(references: list[Any], timeout_s: float | None, on_wait: OnWait) -> None:
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while time.monotonic() < until:
        _, pending = ray.wait(references, num_returns=len(references), timeout=MOMENT_S)
        if not pending:
            return
        on_wait("")


def wait(reference: Any, timeout_s: float) -> bool:
    """Return whether a call is over, after at most ``timeout_s``."""
    done, _ = ray.wait([reference], timeout=timeout_s)
    return bool(done)


def resources() -> dict[str, float]:
    """Return what the whole cluster offers, for messages and defaults."""
    offered: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return offered


def offer() -> str:
    """Return what the cluster has and what of it is free, as part of a message: actors that wait lack one of both."""
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return f"the cluster has {resources()}, of which {free.get('CPU', 0.0):g} CPU are free"
