"""How an actor says that it lives: one class for all of them, so that nobody writes the control method twice."""

from __future__ import annotations

import os
from dataclasses import dataclass

import ray

__all__ = ["Health", "Watched"]


@dataclass(frozen=True, slots=True)
class Health:
    """What an actor says of itself.

    Attributes:
        ready: It can do its work.
        pid: Its process, on its own node.
    """

    ready: bool
    pid: int


class Watched:
    """Base of every actor: answers :meth:`health` from a thread of its own, also while its work blocks the loop."""

    _ready = False

    @ray.method(concurrency_group="control")
    def health(self) -> Health:
        """Return at once; reads plain attributes only, so nothing here can wait for the actor's own loop."""
        return Health(self._ready, os.getpid())
