"""Marks that must not be lost: rollouts whose marker is not on disk yet, tried again until it is.

A marker cannot be promised on a full or hung disk. Until it is durable the mark lives here, and the quiesce answer
carries it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.store import CaptureStore

__all__ = ["IncompleteMarks"]

_log = logging.getLogger(__name__)


class IncompleteMarks:
    """Marks rollouts incomplete, durably as soon as the disk lets it; safe for any number of threads.

    Args:
        store: Where the markers go.
        on_marked: Told, on any thread, the calls whose rollout's marker is durable now.
        retry_interval_s: Pause between two rounds over the marks that are not durable.
    """

    def __init__(
        self, store: CaptureStore, *, on_marked: Callable[[list[str]], None], retry_interval_s: float = 1.0
    ) -> None:
        self._store, self._on_marked, self._retry_interval_s = store, on_marked, retry_interval_s
        self._lock = threading.Lock()
        self._pending: dict[str, list[str]] = {}
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._retry, name="capture-marks", daemon=True)
        self._thread.start()

    def add(self, rollout_id: str, call_id: str) -> None:
        """Take a mark into memory at once; it becomes durable on a thread of ours."""
        with self._lock:
            self._pending.setdefault(rollout_id, []).append(call_id)
        self._changed.set()

    def pending(self) -> frozenset[str]:
        """Return the rollouts whose marker is not durable yet."""
        with self._lock:
            return frozenset(self._pending)

    def try_all(self) -> bool:
        """Try every mark that is not durable, and return whether all are now. Blocks as long as the disk does."""
        with self._lock:
            todo = {rollout_id: list(call_ids) for rollout_id, call_ids in self._pending.items()}
        for rollout_id, call_ids in todo.items():
            try:
                self._store.mark_incomplete(rollout_id)
            except CaptureError as error:
                _log.warning("%s", error)
                continue
            with self._lock:
                left = [call_id for call_id in self._pending.pop(rollout_id, []) if call_id not in call_ids]
                if left:
                    self._pending[rollout_id] = left
            self._on_marked(call_ids)
        with self._lock:
            return not self._pending

    def close(self, timeout_s: float) -> frozenset[str]:
        """Try once more, end the thread, and return the rollouts that are still without a durable marker."""
        self._stopping = True
        self._changed.set()
        self._thread.join(timeout_s)
        return self.pending()

    def _retry(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            stopping = self._stopping
            if not self.try_all() and not stopping:
                self._changed.wait(self._retry_interval_s)
                self._changed.set()
            if stopping:
                return
