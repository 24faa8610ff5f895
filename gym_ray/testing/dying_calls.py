"""File calls of a process that dies after a number of changes, for tests of what a crash leaves behind."""

from __future__ import annotations

from gym_ray.testing.written_runs import UnsyncedCalls

__all__ = ["DiedError", "DiesAfter"]


class DiedError(Exception):
    """Stands for the process's death."""


class DiesAfter(UnsyncedCalls):
    """Lets a number of changes through; the next one, and all that follow, never happen."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def _step(self) -> None:
        if self._left == 0:
            raise DiedError
        self._left -= 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Do it, unless the process is dead."""
        self._step()
        return super().write(fd, data)

    def rename(self, source: str, target: str) -> None:
        """Do it, unless the process is dead."""
        self._step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        """Do it, unless the process is dead."""
        self._step()
        super().unlink(path)

    def truncate(self, fd: int, size: int) -> None:
        """Do it, unless the process is dead."""
        self._step()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        """Do it, unless the process is dead."""
        self._step()
        super().sync(fd)

    def sync_data(self, fd: int) -> None:
        """Do it, unless the process is dead."""
        self._step()
        super().sync_data(fd)
