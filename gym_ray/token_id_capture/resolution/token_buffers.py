"""Growing buffers that the calls of a chain share: a call is a buffer and a length, a child adds its own tokens.

What was written stays as it is: a call that continues an earlier point of a chain copies, so a view that was given out
never changes (W4, W6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.token_arrays import TokenArray

__all__ = ["TokenPool", "TokenRun"]

_SMALLEST_GROWTH: Final = 256
_NARROW, _WIDE = np.dtype(np.uint32), np.dtype(np.uint64)


class _Buffer:
    """Cells with room for more; the first ``used`` of them are written and never change."""

    __slots__ = ("cells", "shown", "used")

    def __init__(self, cells: NDArray[Any]) -> None:
        self.used = 0
        self.hold(cells)

    def hold(self, cells: NDArray[Any]) -> None:
        """Go on with other cells, which hold what was written."""
        self.cells, shown = cells, cells.view()
        shown.flags.writeable = False
        self.shown = shown


@dataclass(frozen=True, slots=True, eq=False)
class TokenRun:
    """The first ``length`` tokens of a shared buffer."""

    _buffer: _Buffer
    length: int

    def view(self, start: int = 0, stop: int | None = None) -> TokenArray:
        """Return tokens ``start`` to ``stop`` of the run, read-only and without a copy."""
        return cast("TokenArray", self._buffer.shown[start : self.length if stop is None else stop])


class TokenPool:
    """The buffers of one rollout.

    Not safe for threads: whoever extends holds the rollout's lock. Views need none.

    Attributes:
        reserved: Tokens that all buffers have room for, kept as a running total (W12).
    """

    def __init__(self) -> None:
        self.reserved = 0

    def start(self, parts: Sequence[TokenArray]) -> TokenRun:
        """Return a run of its own that holds the parts one after the other."""
        size = sum(part.size for part in parts)
        buffer = _Buffer(self._cells(size, _dtype_of(parts)))
        return _append(buffer, parts)

    def extend(self, run: TokenRun, parts: Sequence[TokenArray]) -> TokenRun:
        """Return ``run`` followed by the parts; in the same buffer, if nothing follows ``run`` there yet."""
        size = sum(part.size for part in parts)
        if not size:
            return run
        buffer, dtype = run._buffer, _dtype_of(parts)  # noqa: SLF001 - both classes are the two halves of one thing
        if run.length != buffer.used or dtype.itemsize > buffer.cells.itemsize:
            return self.start([run.view(), *parts])
        if buffer.used + size > buffer.cells.size:
            self._grow(buffer, buffer.used + size)
        return _append(buffer, parts)

    def _grow(self, buffer: _Buffer, needed: int) -> None:
        old = buffer.cells
        cells = self._cells(max(needed, old.size * 3 // 2, old.size + _SMALLEST_GROWTH), old.dtype)
        cells[: buffer.used] = old[: buffer.used]
        buffer.hold(cells)  # only now, for views that are taken meanwhile
        self.reserved -= old.size

    def _cells(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        self.reserved += size
        return np.empty(size, dtype)


def _dtype_of(parts: Sequence[TokenArray]) -> np.dtype[Any]:
    return _WIDE if any(part.itemsize > 4 for part in parts) else _NARROW


def _append(buffer: _Buffer, parts: Sequence[TokenArray]) -> TokenRun:
    end = buffer.used
    for part in parts:
        begin, end = end, end + part.size
        buffer.cells[begin:end] = part
    buffer.used = end
    return TokenRun(buffer, end)
