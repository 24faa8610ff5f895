"""Threads that wait for foreign sinks, and do not keep the process from ending when one of them never answers.

A pool of the standard library joins its threads when the interpreter ends; with a sink that hangs, it would never end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["StagingThreads"]

_IDLE_S: Final = 10.0

_Work = Callable[[], None]


class StagingThreads:
    """Runs work on daemon threads: one that is idle, or a new one. Idle threads end by themselves after a while.

    How many there are is the caller's business: no more than are busy at once.

    Args:
        idle_s: How long a thread waits for more work.
    """

    def __init__(self, *, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._work: queue.SimpleQueue[tuple[_Work, _Work] | None] = queue.SimpleQueue()
        self._busy = self._idle = 0

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._busy

    @property
    def alive(self) -> int:
        """How many threads there are."""
        return self._busy + self._idle

    def run(self, work: _Work, after: _Work) -> None:
        """Run ``work`` on a thread, and ``after`` there once that thread is free for more; neither may raise.

        Raises:
            RuntimeError: No thread is idle, and the system has no more.
        """
        with self._changed:
            if self._idle:
                self._idle -= 1
            else:  # work is handed over by the queue alone: what a thread is started with, it holds until it ends
                threading.Thread(target=self._serve, name="staging", daemon=True).start()
            self._busy += 1
            self._work.put((work, after))

    def close(self, timeout_s: float | None = None) -> int:
        """Wait until no thread is busy, end the idle ones, and return how many are busy still.

        Args:
            timeout_s: Longest wait; None for no bound.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout_s)
            for _ in range(self._idle):
                self._work.put(None)
            return self._busy

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            work, after = job
            work()
            with self._changed:
                self._busy -= 1
                self._idle += 1
                self._changed.notify_all()
            after()
            del job, work, after  # an idle thread holds no tokens and no media

    def _next(self) -> tuple[_Work, _Work] | None:
        """Return the next work, which is counted as begun, or None when this thread is to end."""
        try:
            job = self._work.get(timeout=self._idle_s)
        except queue.Empty:
            job = None
        if job is not None:
            return job
        with self._changed:
            try:
                job = self._work.get_nowait()
            except queue.Empty:
                pass
            else:
                if job is not None:  # given between the end of the wait and this line
                    return job
                self._work.put(None)  # another thread's sign to end
            self._idle -= 1
            return None
