"""Group commit over many files: what waits for one file is written and synced together, distinct files in parallel.

A file belongs to at most one thread at a time, and each is finished when its own sync ends, so one that hangs or is
locked holds up nothing but its own lines: when no thread comes back, another takes its place. Nothing is acknowledged
before it is durable, and nothing is dropped without being told.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from gym_ray.errors import StorageError
from gym_ray.storage.calls import SyncOutcome
from gym_ray.storage.line_files import LineFiles, StagedAppend, WouldWaitError

__all__ = ["CommitItem", "GroupCommit"]

_log = logging.getLogger(__name__)

_MOST_MORE = 64
"""Threads that are started in the place of others at most."""


class CommitItem(Protocol):
    """One or more lines for one file."""

    @property
    def file_name(self) -> str:
        """Name of the file."""

    @property
    def takes_long(self) -> bool:
        """Whether encoding takes so long that no other file should wait for it."""

    def encode(self) -> bytes:
        """Return whole lines; runs on a commit thread, once."""

    def wanted(self) -> bool:
        """Whether the lines are still to be written; asked under the file's lock, so it must not wait for anything."""

    def committed(self, offset: int, length: int) -> None:
        """The bytes are durable at ``offset``; runs on a commit thread."""

    def failed(self, error: Exception) -> None:
        """The bytes may not be durable; runs on a commit thread. Neither is told to an item that was not wanted."""


ItemT = TypeVar("ItemT", bound=CommitItem)


@dataclass(slots=True)
class _Batch(Generic[ItemT]):
    """What waited for one file, on its way there."""

    file_name: str
    items: list[ItemT]
    encoded: list[tuple[ItemT, bytes]] = field(default_factory=list)
    written: list[tuple[ItemT, bytes]] = field(default_factory=list)
    staged: StagedAppend | None = None

    def compose(self) -> bytes:
        self.written = [(item, data) for item, data in self.encoded if item.wanted()]
        return b"".join([data for _, data in self.written])


class GroupCommit(Generic[ItemT]):
    """Commits items on a few threads of its own.

    Args:
        files: Where the lines go.
        on_done: Told, on a commit thread, about items that have their outcome.
        threads: Each takes as many files at a time as ``files`` can sync at once; a file that is locked by another
            process, or gets an item that takes long, has a thread beside these. While files hang, up to 64 more are
            started in the place of the threads that wait for them.
        name: Prefix of the threads' names.
        patience_s: Ready files wait at most twice as long for threads that are all at work, before there is one more.
    """

    def __init__(
        self,
        files: LineFiles,
        *,
        on_done: Callable[[Sequence[ItemT]], None],
        threads: int = 16,
        name: str = "commit",
        patience_s: float = 0.25,
    ) -> None:
        self._files, self._on_done, self._name, self._patience_s = files, on_done, name, patience_s
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._lanes: dict[str, list[ItemT]] = {}  # a file is a key from its first waiting item until it is all done
        self._ready: deque[str] = deque()
        # One thread at a time is called to work, and takes all that is ready: each call costs a switch of threads.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._called = False
        self._closed = False
        self._beside: set[threading.Thread] = set()
        self._wanted, self._busy, self._rounds = threads, 0, 0
        self._threads: set[threading.Thread] = set()
        for _ in range(threads):
            self._start_thread()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True)
        self._watcher.start()

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
            self._make_ready([name])

    def close(self, timeout_s: float) -> bool:
        """Stop taking items, wait for those taken, end the threads.

        Returns:
            Whether everything taken had its outcome; False when a file did not answer within ``timeout_s``.
        """
        with self._lock:
            self._closed = True
            done = self._idle.wait_for(lambda: not self._lanes, timeout_s)
        self._ended.set()
        self._watcher.join()  # from here on no thread is started
        with self._lock:
            threads = [*self._threads, *self._beside]
        for _ in threads:
            self._calls.put(False)
        if done:
            for thread in threads:
                thread.join()
        return done

    def _start_thread(self) -> None:
        # Daemons: a sync that the kernel never ends must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise

    def _work(self) -> None:
        while self._calls.get():
            self._commit_files(self._take_ready())
            with self._lock:
                self._busy -= 1
                if len(self._threads) - self._busy > self._wanted:  # what hung goes on, and there are enough again
                    self._threads.discard(threading.current_thread())
                    return

    def _watch(self) -> None:
        """Start a thread more when all of them are away and files wait; a file that hangs keeps its thread."""
        rounds_before = None
        while not self._ended.wait(self._patience_s):
            with self._lock:
                rounds = self._rounds if self._called and self._busy == len(self._threads) else None
                more = len(self._threads) - self._wanted
            if rounds is not None and rounds == rounds_before and more < _MOST_MORE:
                self._replace_hung()
            rounds_before = rounds

    def _replace_hung(self) -> None:
        try:
            self._start_thread()
        except RuntimeError as error:
            _log.error("all commit threads wait for files, and no other can be started: %s", error)

    def _make_ready(self, names: Iterable[str]) -> None:
        """Give these files to the next thread; under the lock."""
        self._ready.extend(names)
        if self._ready and not self._called:
            self._called = True
            self._calls.put(True)

    def _take_ready(self) -> list[str]:
        with self._lock:
            names = [self._ready.popleft() for _ in range(min(len(self._ready), self._files.syncs_at_once))]
            self._called = False
            self._busy += 1
            self._rounds += 1
            self._make_ready(())
        return names

    def _commit_files(self, names: list[str]) -> None:
        """Write what waits for these files, and sync them together."""
        staged: list[_Batch[ItemT]] = []
        for batch in self._take_batches(names):
            if any(item.takes_long for item in batch.items):
                self._commit_beside(batch)
                continue
            self._encode(batch)
            try:
                if self._stage(batch, wait=False):
                    staged.append(batch)
                else:
                    self._finish([batch])
            except WouldWaitError:
                self._commit_beside(batch)
        self._sync(staged)

    def _take_batches(self, names: list[str]) -> list[_Batch[ItemT]]:
        with self._lock:
            batches = [_Batch(name, self._lanes[name]) for name in names]
            for name in names:
                self._lanes[name] = []
        return batches

    def _encode(self, batch: _Batch[ItemT]) -> None:
        for item in batch.items:
            try:
                batch.encoded.append((item, item.encode()))
            except Exception as error:  # noqa: BLE001 - boundary: one item that cannot be encoded fails alone
                item.failed(error)

    def _stage(self, batch: _Batch[ItemT], *, wait: bool) -> bool:
        """Write a batch to its file; whether it has to be synced now. If not, every item has its outcome."""
        if not batch.encoded:
            return False
        try:
            batch.staged = self._files.stage(batch.file_name, batch.compose, wait=wait)
        except WouldWaitError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told, or the lane is stuck for ever
            for item, _ in batch.encoded:
                item.failed(error)
            return False
        if batch.written:
            return True
        self._settle(batch, None)
        return False

    def _sync(self, batches: list[_Batch[ItemT]]) -> None:
        unsettled = dict(enumerate(batches))

        def settle(outcomes: list[SyncOutcome]) -> None:
            ended = [unsettled.pop(index) for index, _ in outcomes]
            for batch, (_, error) in zip(ended, outcomes, strict=True):
                self._settle(batch, error)
            self._finish(ended)

        try:
            self._files.sync_all([batch.staged for batch in batches if batch.staged is not None], settle)
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong is told, or the lanes are stuck for ever
            settle([(index, error) for index in unsettled])

    def _settle(self, batch: _Batch[ItemT], error: Exception | None) -> None:
        """Tell the items of a batch how its sync ended."""
        assert batch.staged is not None
        try:
            self._files.settle(batch.staged, error)
        except Exception as problem:  # noqa: BLE001 - boundary: as for staging
            for item, _ in batch.written:
                item.failed(problem)
            return
        offset = batch.staged.offset
        for item, data in batch.written:
            item.committed(offset, len(data))
            offset += len(data)

    def _commit_beside(self, batch: _Batch[ItemT]) -> None:
        """Commit a batch on a thread of its own, because it takes long to encode or its file is locked."""
        is_encoded = bool(batch.encoded)

        def commit() -> None:
            try:
                if not is_encoded:
                    self._encode(batch)
                if self._stage(batch, wait=True):
                    self._sync([batch])
                else:
                    self._finish([batch])
            finally:
                with self._lock:
                    self._beside.discard(thread)

        thread = threading.Thread(target=commit, name=f"{self._name}-beside-{batch.file_name}", daemon=True)
        with self._lock:
            self._beside.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            with self._lock:
                self._beside.discard(thread)
            for item in [item for item, _ in batch.encoded] if is_encoded else batch.items:
                item.failed(error)
            self._finish([batch])

    def _finish(self, batches: list[_Batch[ItemT]]) -> None:
        items = batches[0].items if len(batches) == 1 else [item for batch in batches for item in batch.items]
        try:
            self._on_done(items)
        except Exception:  # noqa: BLE001 - boundary, see below
            # Boundary: a listener that raises must not cost this thread, and with it every later file.
            names = ", ".join(batch.file_name for batch in batches)
            _log.exception("%s: the outcome of %d items could not be told", names, len(items))
        finally:
            with self._lock:
                self._pass_on([batch.file_name for batch in batches])

    def _pass_on(self, names: list[str]) -> None:
        """Files that have new items are ready again, the others are given up; under the lock."""
        again = []
        for name in names:
            if self._lanes[name]:
                again.append(name)
            else:
                del self._lanes[name]
        self._make_ready(again)
        if not self._lanes:
            self._idle.notify_all()
