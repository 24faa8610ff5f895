"""The storage contract: what a place that keeps evidence must be able to do, and nothing more.

Correctness above this line rests on unique names and atomic publication, never on locks.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Store"]


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
