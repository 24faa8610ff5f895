"""Writes records of other processes into a capture directory: group commit, each record once.

A record that is sent again, because the answer was lost or this process took the place of one that died, is found: in
memory while its writing is under way or not long over, else in its file, where its line stands byte for byte.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import CaptureError, StorageError
from gym_ray.model_call_capture.hosted.channel import HostedRecord, Receipt
from gym_ray.model_call_capture.recovery import lost_calls
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.model_call_capture.store import CaptureStore, capture_file_name
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.group_commit import GroupCommit
from gym_ray.storage.line_files import LineFiles
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.storage.posix import sync_directory
from gym_ray.storage.probe import check_directory

__all__ = ["HostedFiles"]

_REMEMBERED = 65_536
"""Calls whose outcome, or withdrawal, is remembered."""


class _Item:
    """One record on its way to its file."""

    takes_long = False

    def __init__(self, record: HostedRecord, owner: HostedFiles) -> None:
        self.file_name = capture_file_name(record.rollout_id)
        self._owner, self._call_id, self._line = owner, record.call_id, record.line
        self.receipt: Receipt | None = None

    def encode(self) -> bytes:
        line, self._line = self._line, b""
        return line

    def wanted(self) -> bool:
        return not self._owner.is_withdrawn(self._call_id)

    def committed(self, offset: int, length: int) -> None:  # noqa: ARG002 - whoever sent the line knows its length
        self.receipt = Receipt(offset)

    def failed(self, error: Exception) -> None:
        self.receipt = Receipt(None, str(error) or type(error).__name__)


class HostedFiles:
    """Implements :class:`gym_ray.model_call_capture.hosted.channel.RecordChannel` for a directory.

    Args:
        root: Absolute capture directory.
        timeout_s: How long a record, or a withdrawal, may take.
        calls: How the operating system is called.

    Raises:
        CaptureError: The directory cannot be written to, or has no working locks.
    """

    def __init__(self, root: Path, *, timeout_s: float = 30.0, calls: FileCalls | None = None) -> None:
        self._calls = calls = calls or file_calls_for(root)
        try:
            check_directory(root, calls)
        except StorageError as error:
            raise CaptureError(str(error)) from error
        self.place, self._timeout_s = str(root), timeout_s
        self._store, self._registry = CaptureStore(root, calls=calls), WriterRegistry(root, calls=calls)
        self._files = LineFiles(root, calls=calls)
        self._commits: GroupCommit[_Item] = GroupCommit(
            self._files, on_done=self._done, threads=calls.threads, name="hosted-capture"
        )
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._items: OrderedDict[str, _Item] = OrderedDict()
        self._withdrawn: OrderedDict[str, None] = OrderedDict()

    def append_many(self, records: Sequence[HostedRecord], *, again: bool = False) -> list[Receipt]:
        """Make records durable; see the protocol."""
        found = self._find(records) if again else {}
        new: list[_Item] = []
        with self._lock:
            items: list[_Item] = []
            for record in records:
                item = self._items.get(record.call_id)
                if item is None:
                    item = self._items[record.call_id] = _Item(record, self)
                    item.receipt = found.get(record.call_id)
                    if item.receipt is None:
                        new.append(item)
                items.append(item)
        for item in new:
            try:
                self._commits.submit(item)
            except StorageError as error:
                item.failed(error)
        self._wait(items)
        late = Receipt(None, f"{self.place}: not known to be durable after {self._timeout_s:g} s")
        receipts = [item.receipt or late for item in items]
        self._forget_old()
        return receipts

    def withdraw(self, call_ids: Sequence[str]) -> None:
        """Make sure that no record of these calls is written from now on; see the protocol.

        Raises:
            CaptureError: A record is being written, and that does not end.
        """
        with self._lock:
            self._withdrawn.update(dict.fromkeys(call_ids))
            while len(self._withdrawn) > _REMEMBERED:
                self._withdrawn.popitem(last=False)
            items = [self._items[call_id] for call_id in call_ids if call_id in self._items]
        if not self._wait(items):
            raise CaptureError(f"{self.place}: records of calls that were withdrawn are still being written")

    def is_withdrawn(self, call_id: str) -> bool:
        """Return whether a call was withdrawn; never waits."""
        return call_id in self._withdrawn

    def mark_incomplete(self, rollout_id: str) -> None:
        """Mark a rollout; see the protocol."""
        self._store.mark_incomplete(rollout_id)

    def lost_calls(self, writer_id: str, open_calls: Mapping[str, str]) -> dict[str, list[str]]:  # noqa: ARG002
        """Return which of these calls are in no file; see the protocol."""
        return lost_calls(self._store, open_calls)

    def register(self, writer: RegisteredWriter) -> None:
        """Register a writer; see the protocol."""
        self._registry.add(writer)

    def remove_writer(self, writer_id: str) -> None:
        """Take a writer out of the registry; see the protocol."""
        self._registry.remove(writer_id)

    def close(self) -> None:
        """Finish what was taken; idempotent."""
        if self._commits.close(self._timeout_s):
            self._files.close()

    def _done(self, items: Sequence[_Item]) -> None:
        with self._lock:
            for item in items:
                item.receipt = item.receipt or Receipt(None)
            self._settled.notify_all()

    def _wait(self, items: Sequence[_Item]) -> bool:
        def is_settled() -> bool:
            return all(item.receipt is not None for item in items)

        with self._lock:
            return self._settled.wait_for(is_settled, self._timeout_s)

    def _forget_old(self) -> None:
        with self._lock:
            while len(self._items) > _REMEMBERED and next(iter(self._items.values())).receipt is not None:
                self._items.popitem(last=False)

    def _find(self, records: Sequence[HostedRecord]) -> dict[str, Receipt]:
        """Return the receipts of records whose lines are in their files."""
        by_rollout: dict[str, list[HostedRecord]] = {}
        for record in records:
            by_rollout.setdefault(check_rollout_id(record.rollout_id), []).append(record)
        found: dict[str, Receipt] = {}
        for rollout_id, sent in by_rollout.items():
            snapshot = self._store.snapshot(rollout_id)
            if snapshot.error is not None:
                problem = f"cannot tell which records of {rollout_id} are there: {snapshot.error}"
                raise CaptureError(f"{self.place}: {problem}")
            data = snapshot.data or b""
            there = {record.call_id: at for record in sent if (at := _place_of(record.line, data)) is not None}
            if there:
                self._sync(rollout_id)
            found.update({call_id: Receipt(at) for call_id, at in there.items()})
        return found

    def _sync(self, rollout_id: str) -> None:
        """Make what is in a rollout's file durable: who wrote it may have died before it was."""
        path = self._store.path_for(rollout_id)
        try:
            fd = self._calls.open(str(path), os.O_RDONLY)
            try:
                self._calls.sync(fd)
            finally:
                self._calls.close(fd)
            sync_directory(self._calls, str(path.parent))
        except OSError as error:
            raise CaptureError(f"{path}: cannot be made durable: {error}") from error


def _place_of(line: bytes, data: bytes) -> int | None:
    """Return where a line stands in a file; None when it does not."""
    if data.startswith(line):
        return 0
    before = data.find(b"\n" + line)
    return None if before < 0 else before + 1
