"""What an object store can do, seen from above: whole objects, conditional or not, and their parts.

Every method blocks, may be called from many threads, and raises whatever its client library raises;
``FileNotFoundError`` and ``FileExistsError`` mean what they say. Paths begin with the bucket or container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ObjectBackend", "ObjectFacts", "ObjectUpload"]


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What is known of an object.

    Attributes:
        size: Bytes.
        mark: The mark that it was uploaded with, "" for none.
    """

    size: int
    mark: str


class ObjectUpload(Protocol):
    """An object that is sent in parts, by one thread at a time."""

    def part(self, data: bytes) -> None:
        """Send the next part, or wait until there is room to; the object is not there yet."""

    def complete(self, *, exclusive: bool) -> None:
        """Put all parts under the name, which must be free if ``exclusive``."""

    def abort(self) -> None:
        """Give up all parts; never waits for long, and raises nothing."""


class ObjectBackend(Protocol):
    """One bucket's client, of one process."""

    part_bytes: int
    """How large parts are, except for the last."""

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        """Put a whole object, in one step; ``exclusive``: only if the name is free."""

    def begin(self, path: str, mark: str) -> ObjectUpload:
        """Begin an object that is sent in parts."""

    def facts(self, path: str) -> ObjectFacts:
        """Return what is known of an object now."""

    def read(self, path: str) -> bytes:
        """Return a whole object."""

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes ``start`` to ``end``, exclusive, of an object that has the first of them."""

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, at least one, and its size."""

    def find(self, prefix: str) -> list[str]:
        """Return the paths of all objects that begin with ``prefix``, as they are now."""

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""

    def sweep(self, prefix: str, older_than_s: float) -> list[str]:
        """Abort uploads below ``prefix`` that began longer ago, and return their paths."""

    def close(self) -> None:
        """Give up connections."""
