"""When a benchmark's program is told to stop, and how firmly. Pure: the driver passes the time and sends the signals.

A program gets one SIGINT, on which ``eval run`` stores what has ended and leaves; another one, on which it leaves at
once; then SIGKILL. Whoever sends the driver SIGTERM may have sent it to the program as well, as Ray's job server does:
so the driver's own first signal waits a moment, lest it count as the second.
"""

from __future__ import annotations

import signal

__all__ = ["Stopping"]

_MOMENT_S = 1.0
_PATIENCE_S = 60.0
_LAST_S = 15.0
_AT_ONCE_S = 5.0


class Stopping:
    """The stop of one benchmark.

    Attributes:
        reason: Why it stops, "" while it does not.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._steps: list[tuple[float, signal.Signals]] = []
        self._signals = 0

    def request(self, reason: str, now: float) -> None:
        """Begin to stop because somebody asked for it in order; nothing changes where it stops already."""
        if not self.reason:
            self.reason = reason
            self._begin(now)

    def signalled(self, number: int, now: float) -> None:
        """Begin to stop because the driver got a signal; the second is taken for impatience, the third ends it."""
        self._signals += 1
        self.reason = self.reason or f"stopped by {signal.Signals(number).name}"
        if self._signals == 1:
            self._begin(now + _MOMENT_S)
        elif self._signals == 2:
            self._steps = [(now, signal.SIGINT), (now + _AT_ONCE_S, signal.SIGKILL)]
        else:
            self._steps = [(now, signal.SIGKILL)]

    def due(self, now: float) -> signal.Signals | None:
        """Return the signal that the program is to get now, and forget it."""
        if self._steps and self._steps[0][0] <= now:
            return self._steps.pop(0)[1]
        return None

    def _begin(self, first: float) -> None:
        patience = first + _PATIENCE_S
        self._steps = [(first, signal.SIGINT), (patience, signal.SIGINT), (patience + _LAST_S, signal.SIGKILL)]
