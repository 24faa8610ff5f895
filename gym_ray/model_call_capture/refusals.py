"""Says that calls are served but not captured, without letting a broken client flood the log (A16, W24)."""

from __future__ import annotations

import logging
import threading

__all__ = ["RefusalLog"]


class RefusalLog:
    """Logs the first refusal at once, then once an interval how many more there were.

    Args:
        log: Where warnings go.
        interval_s: Seconds between two summaries.
    """

    def __init__(self, log: logging.Logger, *, interval_s: float = 60.0) -> None:
        self._log, self._interval_s = log, interval_s
        self._lock = threading.Lock()
        self._more, self._reason = 0, ""
        self._timer: threading.Timer | None = None
        self._closed = False

    def say(self, reason: str) -> None:
        """Tell of one call; from any thread."""
        with self._lock:
            if self._timer is not None:
                self._more, self._reason = self._more + 1, reason
                return
            self._wait()
        self._log.warning("a model call is served but not captured: %s", reason)

    def close(self) -> None:
        """Tell what was not told yet. A refusal after this is told at once; idempotent."""
        with self._lock:
            self._closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._summarise()

    def _wait(self) -> None:
        if self._closed:
            return
        self._timer = threading.Timer(self._interval_s, self._interval_ended)
        self._timer.daemon = True  # close() ends it; a host that dies without must not wait for it
        self._timer.start()

    def _interval_ended(self) -> None:
        with self._lock:
            self._timer = None
            if self._more:
                self._wait()
        self._summarise()

    def _summarise(self) -> None:
        with self._lock:
            more, self._more = self._more, 0
            reason = self._reason
        if more:
            self._log.warning(
                "%d more model calls were served but not captured within %g s; the last: %s",
                more,
                self._interval_s,
                reason,
            )
