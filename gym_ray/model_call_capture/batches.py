"""Gathers records that wait for a slow place, so that many of them go there at once.

What waits while a batch is on its way is the next one. A second batch sets out beside the first only when it is worth a
request of its own or has waited too long, so that a lone record that comes first costs the others nothing and a request
that hangs holds up nobody for long. When many calls are open, a record also waits for company by itself: for a small
share of the time that its call took. Nothing is acknowledged before it was sent, nothing is dropped without being told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gym_ray.errors import StorageError

__all__ = ["BatchItem", "Batches"]

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_ENOUGH = 16
"""Records that are worth a request, however many may follow."""
_COMPANY = 8
"""Open calls for which a record waits."""
_SECOND_AFTER_S, _MORE_AFTER_S = 0.5, 2.0
"""How long records wait for one batch that is on its way, and for several."""


class BatchItem(Protocol):
    """One record that waits."""

    @property
    def nbytes(self) -> int:
        """About how many bytes it has."""

    @property
    def patience_s(self) -> float:
        """How long it may wait for others."""

    def failed(self, error: Exception) -> None:
        """The record may not be durable."""


ItemT = TypeVar("ItemT", bound=BatchItem)


class Batches(Generic[ItemT]):
    """Sends items in batches, on threads of its own.

    Args:
        place: Where they go, for messages.
        send: Makes a batch durable and tells each item its outcome; blocks, and may run several times at once.
        on_done: Told, on a thread, about a batch whose items have their outcome.
        open_calls: Says how many calls are open, those that wait here among them.
        most_items: Items of one batch.
        most_bytes: Bytes of one batch, unless it is one item.
        most_pending_bytes: Items are refused while more than this is in memory.
        most_at_once: Batches that are on their way at the same time.
        lingers: Whether records wait for company while many calls are open.
    """

    def __init__(
        self,
        place: str,
        send: Callable[[list[ItemT]], None],
        *,
        on_done: Callable[[Sequence[ItemT]], None],
        open_calls: Callable[[], int],
        most_items: int,
        most_bytes: int,
        most_pending_bytes: int = 256 * _MIB,
        most_at_once: int = 4,
        lingers: bool = True,
    ) -> None:
        self._place, self._send, self._on_done, self._open_calls = place, send, on_done, open_calls
        self._most_items, self._most_bytes = most_items, most_bytes
        self._most_pending, self._most_at_once = most_pending_bytes, most_at_once
        self._lingers = lingers
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._waiting: deque[tuple[ItemT, int, float]] = deque()  # with its size and the time it came
        self._waiting_bytes = self._pending_bytes = 0
        self._go_at = 0.0  # when the first of those that wait has no patience left
        self._sent_now = 0  # batches on their way
        self._closed = False
        # Daemons: a request that never ends must not keep the process from ending.
        self._thread = threading.Thread(target=self._gather, name="capture-batches", daemon=True)
        self._thread.start()

    def submit(self, item: ItemT) -> None:
        """Take one item; it is told its outcome unless its request never ends.

        Raises:
            StorageError: It was not taken: closed, or too much waits already.
        """
        size, patience_s, now = item.nbytes, item.patience_s, time.monotonic()
        with self._lock:
            if self._closed:
                raise StorageError(f"{self._place}: the writer is closed")
            if self._pending_bytes and self._pending_bytes + size > self._most_pending:
                raise StorageError(f"{self._place}: {self._pending_bytes} bytes of records wait; no more are taken")
            self._go_at = min(self._go_at, now + patience_s) if self._waiting else now + patience_s
            self._waiting.append((item, size, now))
            self._waiting_bytes += size
            self._pending_bytes += size
            count = len(self._waiting)
            is_alone = not self._sent_now and not self._has_company()
            if count in (1, _ENOUGH) or self._waiting_bytes >= self._most_bytes or is_alone:
                self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Take no more items, send those that wait, end the thread.

        Returns:
            Whether everything taken had its outcome within the time.
        """
        with self._lock:
            self._closed = True
            self._changed.notify()
            done = self._settled.wait_for(lambda: not self._waiting and not self._sent_now, timeout_s)
        if done:
            self._thread.join()
        return done

    def _gather(self) -> None:
        while batch := self._take():
            # A thread a batch: it costs little beside the request, and one that hangs is simply never seen again.
            thread = threading.Thread(target=self._commit, args=batch, name="capture-batch", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left
                _log.warning(
                    "%s: no thread can be started, so records go one batch after the other: %s", self._place, error
                )
                self._commit(*batch)

    def _take(self) -> tuple[list[ItemT], int] | None:
        with self._lock:
            while True:
                pause_s: float | None = None
                if self._waiting:
                    pause_s = self._pause(time.monotonic())
                    if pause_s is not None and pause_s <= 0:
                        return self._pop()
                elif self._closed:
                    return None
                self._changed.wait(pause_s)

    def _pause(self, now: float) -> float | None:
        """Return how long what waits should go on waiting; None until something changes. Under the lock."""
        if self._sent_now >= self._most_at_once:
            return None
        is_full = len(self._waiting) >= _ENOUGH or self._waiting_bytes >= self._most_bytes
        came = self._waiting[0][2]
        if self._closed:
            return 0.0
        if self._sent_now > 1:
            return came + _MORE_AFTER_S - now
        if is_full:
            return 0.0
        if self._sent_now == 1:
            return came + _SECOND_AFTER_S - now
        return self._go_at - now if self._has_company() else 0.0

    def _has_company(self) -> bool:
        return self._lingers and self._open_calls() - len(self._waiting) >= _COMPANY

    def _pop(self) -> tuple[list[ItemT], int]:
        items: list[ItemT] = []
        nbytes = 0
        while self._waiting and len(items) < self._most_items:
            item, size, _ = self._waiting[0]
            if items and nbytes + size > self._most_bytes:
                break
            self._waiting.popleft()
            items.append(item)
            nbytes += size
        self._waiting_bytes -= nbytes
        self._go_at = time.monotonic()  # what is left has waited before
        self._sent_now += 1
        return items, nbytes

    def _commit(self, items: list[ItemT], nbytes: int) -> None:
        try:
            self._send(items)
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told to all whose records these were
            for item in items:
                item.failed(error)
        try:
            self._on_done(items)
        except Exception:  # noqa: BLE001 - boundary: a listener that raises must not cost the place of a batch
            _log.exception("%s: the outcome of %d records could not be told", self._place, len(items))
        with self._lock:
            self._sent_now -= 1
            self._pending_bytes -= nbytes
            self._changed.notify()
            self._settled.notify_all()
