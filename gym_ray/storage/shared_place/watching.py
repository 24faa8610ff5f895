"""Look for what another node did until it is seen or patience is over, and say how long that took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

__all__ = ["watch"]

_PAUSE_S = 0.02
"""Between two looks; a lag is known no more exactly than that."""


def watch(others: Iterable[int], is_seen: Callable[[int], bool], patience_s: float) -> dict[int, float | None]:
    """Return for each other node after how many seconds its change was seen: 0.0 at the first look, None never.

    Args:
        others: Whose changes to look for.
        is_seen: Whether the change of one of them is seen now.
        patience_s: How long to look.
    """
    begun = time.monotonic()
    found: dict[int, float | None] = {}
    waiting = list(others)
    for other in waiting:
        found[other] = 0.0 if is_seen(other) else None
    waiting = [other for other in waiting if found[other] is None]
    while waiting and time.monotonic() - begun < patience_s:
        time.sleep(_PAUSE_S)
        for other in waiting:
            if is_seen(other):
                found[other] = time.monotonic() - begun
        waiting = [other for other in waiting if found[other] is None]
    return found
