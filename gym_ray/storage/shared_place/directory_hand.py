"""One node's part of examining a directory: it does what it is told there, step by step, and says what it saw.

It judges nothing. Everything it makes lies in one hidden directory of the run, which any node removes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gym_ray.storage.durable_files import OWNER_ONLY, OWNER_ONLY_DIRECTORY, replace_file, sync_directory, write_all
from gym_ray.storage.shared_place.evidence import Alone, Change, PlaceFacts
from gym_ray.storage.shared_place.leftovers import PREFIX, remove_run, sweep_killed
from gym_ray.storage.shared_place.mounts import mount_of
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.watching import watch

__all__ = ["DirectoryHand"]

_BEFORE, _AFTER = b"before\n", b"after\n"
_ALONE_BYTES = 256 * 1024
_ROUNDS = 8
_THERE_BEFORE = (Change.APPEND, Change.TRUNCATE, Change.REPLACE, Change.REMOVE)


class DirectoryHand:
    """Works in a directory for one node.

    Args:
        root: The directory, an absolute path.
        run: What this examination is called; part of a file name.
        me: This node's number.
        calls: How the operating system is called.
    """

    def __init__(self, root: str, run: str, me: int, calls: PlaceCalls | None = None) -> None:
        self._root, self._run, self._me = root, run, me
        self._calls = calls or PlaceCalls()
        self._own = f"{PREFIX}{run}"
        self._created: list[str] = []
        self._held: int | None = None

    def begin(self, create: bool) -> PlaceFacts:
        """Look at the place, and make the run's directory there.

        Args:
            create: Create the place when it is missing, until :meth:`finish`.
        """
        try:
            if create:
                self._create_root()
            info = self._calls.stat(self._root)
        except FileNotFoundError:
            return PlaceFacts(False, "there is no such directory")
        except OSError as error:
            return PlaceFacts(False, f"it cannot be looked at: {error}")
        if not stat.S_ISDIR(info.st_mode):
            return PlaceFacts(False, "it is no directory")
        problem = ""
        try:
            self._calls.makedirs(self._at(""), OWNER_ONLY_DIRECTORY)
            sweep_killed(self._calls, self._root, self._own)
        except OSError as error:
            problem = f"it cannot be written: {error}"
        return self._facts(problem)

    def _create_root(self) -> None:
        missing = [str(path) for path in (Path(self._root), *Path(self._root).parents) if not path.exists()]
        if missing:
            self._calls.makedirs(self._root, OWNER_ONLY_DIRECTORY)
        self._created = missing

    def _facts(self, problem: str) -> PlaceFacts:
        mount = mount_of(os.path.realpath(self._root), self._calls.mountinfo())
        try:
            space = self._calls.space(self._root)
        except OSError:
            return PlaceFacts(True, problem, mount)
        inodes = space.f_favail if space.f_files else None  # some file systems count none
        return PlaceFacts(True, problem, mount, space.f_bavail * space.f_frsize, inodes)

    def work_alone(self) -> Alone:
        """Write, sync, name, rename and lock files that no other node looks at."""
        timings: dict[str, tuple[float, ...]] = {}
        path = self._at(f"alone-{self._me}")
        try:
            timings["append and sync"] = self._append_and_sync(path)
            replace_file(self._calls, Path(path), _AFTER, OWNER_ONLY)
            if self._read(path) != _AFTER:
                return Alone("a file that was replaced is not the new one", latencies_s=timings)
            locks = self._lock_alone(path)
            self._calls.unlink(path)
        except OSError as error:
            return Alone(f"it cannot be written: {error}", latencies_s=timings)
        return Alone("", locks, timings)

    def _append_and_sync(self, path: str) -> tuple[float, ...]:
        took = []
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        try:
            for _ in range(_ROUNDS):
                begun = time.perf_counter()
                write_all(self._calls, fd, bytes(_ALONE_BYTES // _ROUNDS))
                self._calls.sync_data(fd)
                took.append(time.perf_counter() - begun)
        finally:
            self._calls.close(fd)
        sync_directory(self._calls, self._at(""))
        return tuple(took)

    def _lock_alone(self, path: str) -> str:
        first = self._calls.open(path, os.O_RDWR)
        second = self._calls.open(path, os.O_RDWR)
        try:
            if not self._calls.lock_exclusive(first, wait=False):
                return "a lock of a fresh file is held already"
            return "a lock does not keep a second writer out" if self._tries(second) else ""
        except OSError as error:
            return f"files cannot be locked: {error}"
        finally:
            self._calls.close(second)
            self._calls.close(first)

    def _tries(self, fd: int) -> bool:
        return self._calls.lock_exclusive(fd, wait=False)

    def prepare(self, others: Sequence[int]) -> None:
        """Lay down what will change.

        Raises:
            OSError: It could not be done.
        """
        del others
        for change in _THERE_BEFORE:
            self._write(self._name(change, self._me), _BEFORE)
        self._write(self._lock_name(self._me), b"")

    def look(self, others: Sequence[int], change: Change) -> None:
        """Look at what the others will change, so that what is kept of it on the way is old afterwards."""
        for other in others:
            self._is_seen(change, other)

    def change(self, change: Change) -> None:
        """Make a change, durable when it returns.

        Raises:
            OSError: It could not be done.
        """
        path = self._name(change, self._me)
        if change is Change.REPLACE:
            replace_file(self._calls, Path(path), _AFTER, OWNER_ONLY)
        elif change is Change.REMOVE:
            self._calls.unlink(path)
            sync_directory(self._calls, self._at(""))
        elif change is Change.TRUNCATE:
            self._cut(path)
        elif change is Change.IDENTITY:
            self._write(path, self._identity(self._me))
        else:
            self._write(path, _AFTER)

    def _cut(self, path: str) -> None:
        fd = self._calls.open(path, os.O_RDWR)
        try:
            self._calls.truncate(fd, 0)
            self._calls.sync(fd)
        finally:
            self._calls.close(fd)

    def watch_visibility(self, change: Change, others: Sequence[int], patience_s: float) -> dict[int, float | None]:
        """Return after how many seconds each other node's change was seen here: 0.0 at once, None never."""
        return watch(others, lambda other: self._is_seen(change, other), patience_s)

    def _is_seen(self, change: Change, other: int) -> bool:
        path = self._name(change, other)
        if change is Change.LIST:
            try:
                return Path(path).name in self._calls.list_names(self._at(""))
            except FileNotFoundError:
                return False
        found = self._read(path)
        if change is Change.REMOVE:
            return found is None
        wanted = {
            Change.IDENTITY: self._identity(other),
            Change.APPEND: _BEFORE + _AFTER,
            Change.TRUNCATE: b"",
        }
        return found == wanted.get(change, _AFTER)

    def hold_lock(self) -> str:
        """Take this node's lock and keep it; return "" or what is wrong."""
        try:
            self._held = self._calls.open(self._lock_name(self._me), os.O_RDWR)
            taken = self._calls.lock_exclusive(self._held, wait=False)
        except OSError as error:
            return f"files cannot be locked: {error}"
        return "" if taken else "a lock of its own file is held already"

    def release_lock(self) -> None:
        """Give it up."""
        if self._held is not None:
            self._calls.close(self._held)
            self._held = None

    def try_locks(self, others: Sequence[int], free: bool) -> dict[int, str]:
        """Try the locks of the others; return for each "" if it was as it should be, else what happened.

        Args:
            others: Whose.
            free: Whether they have been given up, so that all may be had, by several at the same time.
        """
        return {other: self._try_lock(other, free) for other in others}

    def _try_lock(self, other: int, free: bool) -> str:
        kind: Callable[..., bool] = self._calls.lock_shared if free else self._calls.lock_exclusive
        try:
            fd = self._calls.open(self._lock_name(other), os.O_RDWR)
            try:
                taken = kind(fd, wait=False)
            finally:
                self._calls.close(fd)
        except OSError as error:
            return f"files cannot be locked: {error}"
        if free:
            return "" if taken else "a lock that was given up is still held"
        return "two nodes hold one lock" if taken else ""

    def race(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Try to be the one who makes each name, in two ways; return those that were got.

        Raises:
            OSError: It could not be tried.
        """
        return {way: [name for name in names if got(name)] for way, got in self._ways().items()}

    def _ways(self) -> dict[str, Callable[[str], bool]]:
        return {"exclusive open": self._open_first, "link": self._link_first}

    def _open_first(self, name: str) -> bool:
        try:
            self._calls.close(
                self._calls.open(self._at(f"open-{name}"), os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
            )
        except FileExistsError:
            return False
        return True

    def _link_first(self, name: str) -> bool:
        source = self._at(f"source-{self._me}-{name}")
        self._write(source, _AFTER)
        try:
            self._calls.link(source, self._at(f"link-{name}"))
        except FileExistsError:
            return False
        finally:
            self._calls.unlink(source)
        return True

    def clock(self) -> float:
        """Return this node's clock, unix seconds."""
        return self._calls.now()

    def sweep(self) -> None:
        """Give up what is held, and remove the run's directory, whoever's files are in it.

        Raises:
            OSError: Something is left.
        """
        self.release_lock()
        remove_run(self._calls, self._at(""))

    def finish(self) -> None:
        """Remove the directories that :meth:`begin` made, unless somebody has put something there.

        Raises:
            OSError: It could not be done.
        """
        for path in self._created:
            try:
                self._calls.remove_directory(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return
        self._created = []

    def _at(self, name: str) -> str:
        return f"{self._root}/{self._own}/{name}".rstrip("/")

    def _name(self, change: Change, node: int) -> str:
        return self._at(f"{change.name.lower()}-{node}")

    def _lock_name(self, node: int) -> str:
        return self._at(f"lock-{node}")

    def _identity(self, node: int) -> bytes:
        return f"{self._run} {node}\n".encode()

    def _write(self, path: str, data: bytes) -> None:
        """Append to a file, durably."""
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        try:
            write_all(self._calls, fd, data)
            self._calls.sync_data(fd)
        finally:
            self._calls.close(fd)
        sync_directory(self._calls, self._at(""))

    def _read(self, path: str) -> bytes | None:
        """Return what a file that is opened now holds; None: it is not there."""
        try:
            fd = self._calls.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return self._calls.pread(fd, 4096, 0)
        finally:
            self._calls.close(fd)
