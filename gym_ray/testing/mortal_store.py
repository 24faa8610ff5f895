"""A directory store whose process dies at a chosen change: what a crash at any step leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gym_ray.storage.posix import PosixStore
from gym_ray.storage.posix_stream import PosixStream

__all__ = ["Killed", "MortalStore"]


class Killed(BaseException):
    """The process is gone."""


class MortalStore(PosixStore):
    """A directory whose process dies before or after a change; ``steps`` counts the changes."""

    def __init__(self, root: Path, dies_at: float = float("inf")) -> None:
        super().__init__(root)
        self.steps, self.dies_at = 0, dies_at

    def _step(self, change: Callable[[], None]) -> None:
        for _ in ("behind the change before", "right before this one"):
            if self.steps >= self.dies_at:
                raise Killed
            self.steps += 1
        change()

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value, as one change."""
        publish = super().publish
        self._step(lambda: publish(name, data))

    def create(self, name: str, data: bytes) -> None:
        """Put a new value, as one change."""
        create = super().create
        self._step(lambda: create(name, data))

    def delete(self, name: str) -> None:
        """Remove a value, as one change."""
        delete = super().delete
        self._step(lambda: delete(name))

    def stream(self, name: str) -> PosixStream:
        """Begin a value; publishing it is one change."""
        value = super().stream(name)
        publish = value.publish
        value.publish = lambda: self._step(publish)  # type: ignore[method-assign]
        return value
