"""The calls of a node that looks at a directory: those of files, and those that tell of the place and of the time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gym_ray.storage.calls import FileCalls

__all__ = ["PlaceCalls"]


class PlaceCalls(FileCalls):
    """The real thing; a test gives a node others, and that node sees another place. All raise ``OSError``."""

    def list_names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order."""
        return os.listdir(path)  # noqa: PTH208 - names are wanted, not paths

    def space(self, path: str) -> os.statvfs_result:
        """Describe the file system that holds a path."""
        return os.statvfs(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def mountinfo(self) -> str:
        """Return the table of mounts; "" on a system that has none."""
        try:
            return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return ""

    def now(self) -> float:
        """Return this node's clock, unix seconds."""
        return time.time()
