"""How a message lists what there is, when what was asked for is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["some_of"]

_NAMED: Final = 8


def some_of(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are; ``none`` for no name."""
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return (", ".join(listed[:_NAMED]) or "none") + more
