"""Marks that must not be lost: rollouts whose marker is not on disk yet, tried again until it is.

A marker cannot be promised on a full or hung disk. Until it is durable the mark lives here, and the quiesce answer
carries it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from gym_ray.errors import CaptureError

__all__ = ["IncompleteMarks", "MarkPlace"]

_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 30.0


class MarkPlace(Protocol):
    """Where marks are kept."""

    def mark_incomplete(self, rollout_id: str) -> None:
        """Mark a rollout as having lost a record; durable when it returns.

        Raises:
            CaptureError: The mark could not be made durable.
        """


class IncompleteMarks:
    """Marks rollouts incomplete, durably as soon as the disk lets it; safe for any number of threads.

    Args:
        store: Where the markers go.
        on_marked: Told, on any thread, the calls whose rollout's marker is durable now.
        retry_interval_s: Pause before the marks that failed are tried again; it doubles while the disk refuses them.
    """

    def __init__(
        self, store: MarkPlace, *, on_marked: Callable[[list[str]], None], retry_interval_s: float = 1.0
    ) -> None:
        self._store, self._on_marked, self._retry_interval_s = store, on_marked, retry_interval_s
        self._lock = threading.Lock()
        self._pending: dict[str, set[str]] = {}
        self._untried: set[str] = set()
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._retry, name="capture-marks", daemon=True)
        self._thread.start()

    def add(self, rollout_id: str, call_id: str) -> None:
        """Take a mark into memory at once; it becomes durable on a thread of ours."""
        with self._lock:
            self._pending.setdefault(rollout_id, set()).add(call_id)
            self._untried.add(rollout_id)
        self._changed.set()

    def mark(self, rollout_id: str, call_ids: Iterable[str]) -> None:
        """Take a mark into memory and try it once on this thread, and no other mark. Blocks as long as the disk does.

        Where the disk refuses it, it is tried again on a thread of ours.
        """
        with self._lock:
            self._pending.setdefault(rollout_id, set()).update(call_ids)
        if not self._try([rollout_id]):
            self._changed.set()

    def pending(self) -> frozenset[str]:
        """Return the rollouts whose marker is not durable yet."""
        with self._lock:
            return frozenset(self._pending)

    def drop(self, rollout_id: str) -> None:
        """Forget the marks of a rollout that begins anew; a marker that is being written may still appear."""
        with self._lock:
            self._pending.pop(rollout_id, None)

    def close(self, timeout_s: float) -> frozenset[str]:
        """Try once more, end the thread, and return the rollouts that are still without a durable marker."""
        self._stopping = True
        self._changed.set()
        self._thread.join(timeout_s)
        return self.pending()

    def _try(self, rollout_ids: Iterable[str]) -> bool:
        """Try these marks, and return whether all of them are durable now."""
        succeeded = True
        for rollout_id in rollout_ids:
            with self._lock:
                call_ids = set(self._pending.get(rollout_id, ()))
            if not call_ids:
                continue
            try:
                self._store.mark_incomplete(rollout_id)
            except CaptureError as error:
                _log.warning("%s", error)
                succeeded = False
                continue
            with self._lock:
                left = self._pending.pop(rollout_id, set()) - call_ids
                if left:
                    self._pending[rollout_id] = left
            self._on_marked(list(call_ids))
        return succeeded

    def _retry(self) -> None:
        """Try new marks at once and once; those that failed wait for the next round, however many new ones come."""
        pause_s, round_at = self._retry_interval_s, 0.0
        while not self._stopping:
            self._changed.wait(max(0.0, round_at - time.monotonic()) if self.pending() else None)
            self._changed.clear()
            with self._lock:
                untried, self._untried = self._untried, set()
            if self._try(untried) and not self.pending():
                pause_s, round_at = self._retry_interval_s, 0.0
            elif round_at == 0.0:
                round_at = time.monotonic() + pause_s
            elif time.monotonic() >= round_at:
                succeeded = self._try(self.pending())
                pause_s = self._retry_interval_s if succeeded else min(2 * pause_s, _LONGEST_PAUSE_S)
                round_at = time.monotonic() + pause_s
        self._try(self.pending())
