"""Nodes of one process that see a place wrongly: what one machine cannot show of shared file systems.

Each class is the file calls of one such node, in the form that goes wrong in the field.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gym_ray.storage.shared_place.directory_hand import DirectoryHand
from gym_ray.storage.shared_place.hands import take_step
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.store_hand import StoreHand

__all__ = [
    "CachingCalls",
    "ElsewhereCalls",
    "FailingCalls",
    "HandNode",
    "LocalLockCalls",
    "RacyCalls",
    "SkewedCalls",
    "TaggedCalls",
]


class HandNode:
    """A node that is a thread of this process, as :class:`gym_ray.storage.shared_place.hands.ProbeNode`.

    Args:
        name: As messages call it.
        hand: What takes the steps.
        before: Called with each step before it is taken; it may raise or wait.

    Attributes:
        steps: The steps that it was told, in order.
    """

    def __init__(self, name: str, hand: DirectoryHand | StoreHand, before: Callable[[str], None] | None = None) -> None:
        self.name, self._hand, self._before = name, hand, before
        self.steps: list[str] = []
        self._thread = ThreadPoolExecutor(1)

    def start(self, step: str, *arguments: Any) -> Future[Any]:
        """Tell the node to take a step."""
        self.steps.append(step)
        return self._thread.submit(self._take, step, arguments)

    def _take(self, step: str, arguments: tuple[Any, ...]) -> Any:
        if self._before is not None:
            self._before(step)
        return take_step(self._hand, step, arguments)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True)


class ElsewhereCalls(PlaceCalls):
    """Another directory is mounted at the same path here.

    Args:
        root: The path that all nodes use.
        other: The directory that this node finds there.
    """

    def __init__(self, root: Path, other: Path) -> None:
        self._root, self._other = str(root), str(other)

    def _there(self, path: str) -> str:
        return self._other + path[len(self._root) :] if path.startswith(self._root) else path

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open it there."""
        return super().open(self._there(path), flags, mode)

    def stat(self, path: str) -> os.stat_result:
        """Describe it there."""
        return super().stat(self._there(path))

    def link(self, source: str, target: str) -> None:
        """Link it there."""
        super().link(self._there(source), self._there(target))

    def rename(self, source: str, target: str) -> None:
        """Rename it there."""
        super().rename(self._there(source), self._there(target))

    def unlink(self, path: str) -> None:
        """Remove it there."""
        super().unlink(self._there(path))

    def makedirs(self, path: str, mode: int = 0o777) -> None:
        """Create it there."""
        super().makedirs(self._there(path), mode)

    def list_names(self, path: str) -> list[str]:
        """List it there."""
        return super().list_names(self._there(path))

    def space(self, path: str) -> os.statvfs_result:
        """Describe it there."""
        return super().space(self._there(path))

    def remove_directory(self, path: str) -> None:
        """Remove it there."""
        super().remove_directory(self._there(path))


class LocalLockCalls(PlaceCalls):
    """Locks do not leave this node, as on NFS with ``nolock``: its own processes keep each other out, nobody else."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int]] = {}

    def _flock(self, fd: int, kind: int, wait: bool) -> bool:
        del kind, wait
        info = self.fstat(fd)
        place = (info.st_dev, info.st_ino)
        if place in self._held.values():
            return False
        self._held[fd] = place
        return True

    def unlock(self, fd: int) -> None:
        """Give it up."""
        self._held.pop(fd, None)

    def close(self, fd: int) -> None:
        """Close, and give it up."""
        self._held.pop(fd, None)
        super().close(fd)


class CachingCalls(PlaceCalls):
    """What was once seen is answered from memory for a while, as by a client of NFS that caches attributes.

    Args:
        lag_s: How long an answer is kept.
        contents: Whether what is in files is kept.
        names: Whether it is kept that a name is not there.
        listings: Whether lists of names are kept.
    """

    def __init__(self, lag_s: float, *, contents: bool = False, names: bool = False, listings: bool = False) -> None:
        self._lag_s, self._contents, self._names, self._listings = lag_s, contents, names, listings
        self._kept: dict[str, tuple[float, bytes | None]] = {}
        self._lists: dict[str, tuple[float, list[str]]] = {}
        self._stale: dict[int, bytes] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open for writing as it is, for reading as it is remembered."""
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_DIRECTORY):
            self._kept.pop(path, None)
            return super().open(path, flags, mode)
        found = self._remembered(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        fd = super().open(os.devnull, os.O_RDONLY)
        self._stale[fd] = found
        return fd

    def _remembered(self, path: str) -> bytes | None:
        kept = self._kept.get(path)
        if kept is not None and time.monotonic() - kept[0] < self._lag_s:
            return kept[1]
        try:
            found: bytes | None = Path(path).read_bytes()
        except FileNotFoundError:
            found = None
        if self._contents if found is not None else self._names:
            self._kept[path] = (time.monotonic(), found)
        return found

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read as it is remembered."""
        stale = self._stale.get(fd)
        return super().pread(fd, size, offset) if stale is None else stale[offset : offset + size]

    def close(self, fd: int) -> None:
        """Close."""
        self._stale.pop(fd, None)
        super().close(fd)

    def list_names(self, path: str) -> list[str]:
        """List as it is remembered."""
        kept = self._lists.get(path)
        if self._listings and kept is not None and time.monotonic() - kept[0] < self._lag_s:
            return kept[1]
        names = super().list_names(path)
        self._lists[path] = (time.monotonic(), names)
        return names


class FailingCalls(PlaceCalls):
    """The place cannot be written here: full, read-only, or not allowed.

    Args:
        number: The error's number, such as ``errno.ENOSPC``.
        writes_only: Names can be made, and only bytes find no room.
    """

    def __init__(self, number: int, *, writes_only: bool = False) -> None:
        self._number, self._writes_only = number, writes_only

    def _fail(self) -> OSError:
        return OSError(self._number, os.strerror(self._number))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Fail."""
        del fd, data
        raise self._fail()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Fail to create."""
        if flags & os.O_CREAT and not self._writes_only:
            raise self._fail()
        return super().open(path, flags, mode)

    def makedirs(self, path: str, mode: int = 0o777) -> None:
        """Fail, unless it is there, as elsewhere."""
        if not self._writes_only and not Path(path).is_dir():
            raise self._fail()
        super().makedirs(path, mode)


class RacyCalls(PlaceCalls):
    """Exclusive creation that looks first and creates afterwards, so that several win; and a link that replaces.

    Args:
        gate: Passed by all such nodes between the look and the creation.
    """

    def __init__(self, gate: threading.Barrier) -> None:
        self._gate = gate

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Create whatever another one does meanwhile."""
        if flags & os.O_EXCL and "/open-" in path:
            if Path(path).exists():
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._gate.wait(10)
            flags &= ~os.O_EXCL
        return super().open(path, flags, mode)


class SkewedCalls(PlaceCalls):
    """A clock that is ahead.

    Args:
        ahead_s: By how much.
    """

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def now(self) -> float:
        """Return the wrong time."""
        return super().now() + self._ahead_s


class TaggedCalls(PlaceCalls):
    """A node with another table of mounts and other space.

    Args:
        mountinfo: The table.
        space: What is left, by name of a field.
    """

    def __init__(self, mountinfo: str = "", **space: int) -> None:
        self._mountinfo, self._space = mountinfo, space

    def mountinfo(self) -> str:
        """Return the table."""
        return self._mountinfo

    def space(self, path: str) -> os.statvfs_result:
        """Return what is said to be left."""
        found = super().space(path)
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("f_")} | self._space
        order = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "flag", "namemax", "fsid")
        return os.statvfs_result([fields[f"f_{name}"] for name in order])
