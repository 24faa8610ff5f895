"""The two clocks of a reader, so that tests need no waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ReadingClock"]


@dataclass(frozen=True, slots=True)
class ReadingClock:
    """Clocks.

    Attributes:
        wall: Unix seconds, for what other machines read.
        steady: Seconds that never jump, for how long something lasts.
    """

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
