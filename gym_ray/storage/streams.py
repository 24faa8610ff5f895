"""A value on its way into a store: written piece by piece, there all at once, and gone unless it was published.

The usual file object publishes what it has when it is closed, also by an exception or by the garbage collector, and
so shows half a value. Here :meth:`StreamedValue.close` never publishes.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["StreamedValue"]


class StreamedValue(io.RawIOBase):
    """A binary file object for one new value; used in a ``with`` block, by one thread at a time.

    Leaving the block, closing it or losing the last reference to it discards all that was written, unless
    :meth:`publish` has returned. A fork of the process has no part in it: there nothing is written or discarded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size, self._process = 0, os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        """Take all of ``data``; it may be reused once this returns.

        Returns:
            Its length in bytes.

        Raises:
            StorageError: It could not be written; the value is discarded.
            ValueError: The value was published, discarded or closed.
        """
        self._check_open()
        view = memoryview(data).cast("B")
        try:
            self._take(view)
        except BaseException:
            self.close()
            raise
        self._size += len(view)
        return len(view)

    def publish(self) -> None:
        """Put the value under its name; whole and durable when this returns.

        A value of the same bytes that is already there counts as this one: its writer may be a request of ours whose
        answer was lost.

        Raises:
            StorageExistsError: Another value has the name.
            StorageError: It could not be done.
            ValueError: The value was published, discarded or closed.
        """
        self._check_open()
        try:
            self._publish()
        finally:
            self.close()

    def close(self) -> None:
        """Discard what was not published; does nothing the second time."""
        if self.closed:
            return
        super().close()
        if os.getpid() == self._process:
            self._discard()

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise ValueError(f"this value is being written by process {self._process}")
        if self.closed:
            raise ValueError("this value was published, discarded or closed")

    @abstractmethod
    def _take(self, view: memoryview) -> None:
        """Write a piece; keeps no reference to it."""

    @abstractmethod
    def _publish(self) -> None:
        """Put what was written under its name."""

    @abstractmethod
    def _discard(self) -> None:
        """Leave nothing of what was written but a published value; raises nothing, also when it was done before."""
