"""How an actor says that it lives: one class for all of them, so that nobody writes the control method twice."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import warnings
from collections.abc import Awaitable
from dataclasses import dataclass

import ray

from gym_ray.log_context import name_attempts

__all__ = ["Health", "Watched"]

_log = logging.getLogger(__name__)
_LOOP_ENDED = 70
_START_FAILED = 71
_PAUSE_BEFORE_NEXT_START_S = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """What an actor says of itself.

    Attributes:
        ready: It can do its work.
        pid: Its process, on its own node.
        waits_for: What keeps it from being ready, "" when it does not know.
    """

    ready: bool
    pid: int
    waits_for: str = ""


class Watched:
    """Base of every actor: answers :meth:`health` from a thread of its own, also while its work blocks the loop.

    Foreign code can end the loop, with a ``sys.exit`` in a task of its own or by stopping it. An actor without a loop
    answers nobody for ever, so its process ends at once, and Ray starts another one.
    """

    _ready = False
    _waits_for = ""

    def __init__(self) -> None:
        for client in ("httpx", "httpcore"):
            # Both write the URLs of requests into their logs, and an upstream's URL may hold a key (B67).
            logging.getLogger(client).setLevel(logging.WARNING)
        name_attempts(logging.getLogger())
        # Ray constructs an asynchronous actor on its loop's thread, which runs nothing but the loop.
        watch = threading.Thread(target=_end_with, args=(threading.current_thread(),), name="loop watch", daemon=True)
        watch.start()

    def _keep_what_is_loaded(self) -> None:
        """Look no more for garbage among what is there now: a look at it all holds the loop for 0.1 to 0.3 s.

        Call it once, when modules are loaded and work has not begun.
        """
        gc.collect()
        gc.freeze()

    async def _begin(self, start: Awaitable[str]) -> str:
        """Await this actor's start and return its URL.

        Nobody asks a *restarted* actor whether it came up. When it did not, its process ends after a pause, and Ray
        starts another one: a port that is taken for a moment, or an engine that is still down, heals by itself.
        """
        try:
            url = await start
        except Exception as error:
            if not _restarted():
                raise
            _log.error("the restarted actor did not come up, its process ends: %s", error)
            await asyncio.sleep(_PAUSE_BEFORE_NEXT_START_S)
            os._exit(_START_FAILED)
        self._ready = True
        return url

    @ray.method(concurrency_group="control")
    def health(self) -> Health:
        """Return at once; reads plain attributes only, so nothing here can wait for the actor's own loop."""
        return Health(self._ready, os.getpid(), self._waits_for)


def _restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own property reads a deprecated one of Ray's
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def _end_with(loop_thread: threading.Thread) -> None:
    loop_thread.join()
    _log.critical("the event loop ended; the process ends with it")
    os._exit(_LOOP_ENDED)
