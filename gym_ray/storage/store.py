"""The storage contract: what a place that keeps evidence must be able to do, and nothing more.

Correctness above this line rests on unique names and atomic publication, never on locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gym_ray.storage.streams import StreamedValue

__all__ = ["SegmentStore", "Store"]


class Store(Protocol):
    """Named immutable values; names are relative, ``/`` separates parts; every method is safe across processes."""

    def publish(self, name: str, data: bytes) -> None:
        """Put ``data`` under ``name``, replacing what was there; a reader sees the old or the new value, never a mix.

        Durable when it returns.

        Raises:
            StorageError: It could not be done; the old value, if any, is intact.
        """

    def create(self, name: str, data: bytes) -> None:
        """Put ``data`` under a name that must not exist; among several callers exactly one wins.

        Durable when it returns.

        Raises:
            StorageExistsError: The name exists.
            StorageError: It could not be done.
        """

    def list(self, prefix: str = "") -> list[str]:
        """Return all published names that begin with ``prefix``, sorted; half-written values are never listed."""

    def read(self, name: str) -> bytes:
        """Return the whole value.

        Raises:
            StorageMissingError: The name does not exist.
            StorageError: It could not be read.
        """

    def delete(self, name: str) -> None:
        """Remove a name durably; a missing one is not an error.

        Raises:
            StorageError: It could not be done.
        """

    def sync_dir(self, name: str = "") -> None:
        """Make the entries below the directory ``name`` durable; nothing to do where every put is durable at once.

        Raises:
            StorageError: It could not be done.
        """


class SegmentStore(Store, Protocol):
    """A :class:`Store` that also takes values too large for memory, and gives parts of them.

    Every method may be called from several threads at once.

    A value is there whole or not at all: it is never seen half-written, whatever happens to its writer.
    """

    @property
    def place(self) -> str:
        """Where the values are, for messages; holds no credentials."""

    @property
    def exclusive(self) -> bool:
        """Whether :meth:`create` works here: found out once by really trying, which leaves nothing behind.

        Raises:
            StorageError: It could not be found out.
        """

    def stream(self, name: str) -> StreamedValue:
        """Begin a value; it is under its name once :meth:`StreamedValue.publish` has returned, and not before.

        Raises:
            StorageError: It could not be begun.
        """

    def size(self, name: str) -> int:
        """Return how many bytes a value has.

        Raises:
            StorageMissingError: The name does not exist.
            StorageError: It could not be found out.
        """

    def exists(self, name: str) -> bool:
        """Return whether a value has this name now; never answered from a listing that was kept.

        Raises:
            StorageError: It could not be found out.
        """

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on; fewer only where the value ends.

        Raises:
            StorageMissingError: The name does not exist.
            StorageError: It could not be read.
        """

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Return the last ``length`` bytes, all where there are fewer, and the size of the whole value.

        Raises:
            StorageMissingError: The name does not exist.
            StorageError: It could not be read.
        """

    def sweep_temporary(self, older_than_s: float) -> Sequence[str]:
        """Remove what killed writers left unpublished, and return where it was.

        Args:
            older_than_s: What was begun more recently may belong to a writer that lives.

        Raises:
            StorageError: It could not be done.
        """

    def close(self) -> None:
        """Give up connections; the store can be used again."""
