"""Group commit over many files: what waits for one file is written and synced together, distinct files in parallel.

A file belongs to at most one thread at a time, so one that hangs or is locked holds up nothing but its own lines.
Nothing is acknowledged before it is durable, and nothing is dropped without being told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from gym_ray.errors import StorageError
from gym_ray.storage.line_files import LineFiles, WouldWaitError

__all__ = ["CommitItem", "GroupCommit"]

_log = logging.getLogger(__name__)


class CommitItem(Protocol):
    """One or more lines for one file."""

    @property
    def file_name(self) -> str:
        """Name of the file."""

    def encode(self) -> bytes:
        """Return whole lines; runs on a commit thread, once."""

    def wanted(self) -> bool:
        """Whether the lines are still to be written; asked under the file's lock, so it must not wait for anything."""

    def committed(self, offset: int, length: int) -> None:
        """The bytes are durable at ``offset``; runs on a commit thread."""

    def failed(self, error: Exception) -> None:
        """The bytes may not be durable; runs on a commit thread. Neither is told to an item that was not wanted."""


ItemT = TypeVar("ItemT", bound=CommitItem)


class GroupCommit(Generic[ItemT]):
    """Commits items on a few threads of its own.

    Args:
        files: Where the lines go.
        on_done: Told, on a commit thread, about items that have their outcome.
        threads: Files synced at the same time; a file locked by another process gets a thread beside these.
        name: Prefix of the threads' names.
    """

    def __init__(
        self,
        files: LineFiles,
        *,
        on_done: Callable[[Sequence[ItemT]], None],
        threads: int = 16,
        name: str = "commit",
    ) -> None:
        self._files, self._on_done, self._name = files, on_done, name
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._lanes: dict[str, list[ItemT]] = {}  # a file is a key from its first waiting item until it is all done
        self._ready: SimpleQueue[str | None] = SimpleQueue()
        self._closed = False
        self._waiting: set[threading.Thread] = set()
        self._threads = [
            # Daemons: a sync that the kernel never ends must not keep the process from ending.
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: ItemT) -> None:
        """Take one item; it is told the outcome exactly once unless its file never answers.

        Raises:
            StorageError: The group commit is closed.
        """
        name = item.file_name
        with self._lock:
            if self._closed:
                raise StorageError(f"{name}: the writer is closed")
            lane = self._lanes.get(name)
            if lane is not None:
                lane.append(item)
                return
            self._lanes[name] = [item]
        self._ready.put(name)

    def close(self, timeout_s: float) -> bool:
        """Stop taking items, wait for those taken, end the threads.

        Returns:
            Whether everything taken had its outcome; False when a file did not answer within ``timeout_s``.
        """
        with self._lock:
            self._closed = True
            done = self._idle.wait_for(lambda: not self._lanes, timeout_s)
            waiting = list(self._waiting)
        for _ in self._threads:
            self._ready.put(None)
        if done:
            for thread in [*self._threads, *waiting]:
                thread.join()
        return done

    def _work(self) -> None:
        while True:
            name = self._ready.get()
            if name is None:
                return
            self._commit_lane(name)

    def _commit_lane(self, name: str) -> None:
        with self._lock:
            items, self._lanes[name] = self._lanes[name], []
        encoded = self._encode(items)
        try:
            self._commit(name, encoded, wait=False)
        except WouldWaitError:
            self._wait_for_lock(name, items, encoded)
            return
        self._finish(name, items)

    def _encode(self, items: list[ItemT]) -> list[tuple[ItemT, bytes]]:
        encoded = []
        for item in items:
            try:
                encoded.append((item, item.encode()))
            except Exception as error:  # noqa: BLE001 - boundary: one item that cannot be encoded fails alone
                item.failed(error)
        return encoded

    def _commit(self, name: str, encoded: list[tuple[ItemT, bytes]], *, wait: bool) -> None:
        if not encoded:
            return
        written: list[tuple[ItemT, bytes]] = []

        def compose() -> bytes:
            written[:] = [(item, data) for item, data in encoded if item.wanted()]
            return b"".join([data for _, data in written])

        try:
            offset = self._files.append_composed(name, compose, wait=wait)
        except WouldWaitError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told, or the lane is stuck for ever
            for item, _ in encoded:
                item.failed(error)
            return
        for item, data in written:
            item.committed(offset, len(data))
            offset += len(data)

    def _wait_for_lock(self, name: str, items: list[ItemT], encoded: list[tuple[ItemT, bytes]]) -> None:
        def commit() -> None:
            try:
                self._commit(name, encoded, wait=True)
                self._finish(name, items)
            finally:
                with self._lock:
                    self._waiting.discard(thread)

        thread = threading.Thread(target=commit, name=f"{self._name}-wait-{name}", daemon=True)
        with self._lock:
            self._waiting.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            with self._lock:
                self._waiting.discard(thread)
            for item, _ in encoded:
                item.failed(error)
            self._finish(name, items)

    def _finish(self, name: str, items: list[ItemT]) -> None:
        try:
            self._on_done(items)
        except Exception:  # noqa: BLE001 - boundary, see below
            # Boundary: a listener that raises must not cost this thread, and with it every later file.
            _log.exception("%s: the outcome of %d items could not be told", name, len(items))
        finally:
            with self._lock:
                more = bool(self._lanes[name])
                if not more:
                    del self._lanes[name]
                    if not self._lanes:
                        self._idle.notify_all()
            if more:
                self._ready.put(name)
