"""Where each call's record begins in a rollout's file, and which of its lines are wrong.

An index stays valid as long as the file only grows, and is extended from the end of what it covers. Before it is used,
some bytes of the file are compared with what is known of them: a file that is created after another was removed often
has the same inode number, and may have the same size.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from gym_ray.storage.calls import FileCalls
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import CONFLICTING_RECORD, DAMAGED_LINE, INVALID_RECORD
from gym_ray.token_id_capture.token_files.entry_lines import RawLine, is_same_record, iterate_lines, parse_line

__all__ = [
    "IndexCache",
    "KnownBytes",
    "LineIndex",
    "ScannedEntries",
    "line_at",
]


_log = logging.getLogger(__name__)
_CALL_ID: Final = b'"model_call_id":'
_WITNESS_BYTES: Final = 96
_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class KnownBytes:
    """Bytes that stand at an offset of a file, the call id of one record: another file hardly has the same there."""

    offset: int = 0
    data: bytes = b""

    @classmethod
    def of_line(cls, line: bytes, offset: int) -> KnownBytes:
        """Return known bytes of a record that begins at ``offset``."""
        at = max(line.find(_CALL_ID), 0)
        return cls(offset + at, line[at : at + _WITNESS_BYTES])

    def are_in(self, calls: FileCalls, fd: int) -> bool:
        """Return whether a file has these bytes at their offset."""
        return calls.pread(fd, len(self.data), self.offset) == self.data


def line_at(calls: FileCalls, fd: int, offset: int) -> bytes:
    """Return the line that begins at ``offset``, without its line feed."""
    blocks: list[bytes] = []
    while block := calls.pread(fd, _BLOCK_BYTES, offset):
        head, feed, _ = block.partition(b"\n")
        blocks.append(head)
        if feed:
            break
        offset += len(block)
    return b"".join(blocks)


@dataclass(slots=True)
class ScannedEntries:
    """What a scan found beyond the index.

    Attributes:
        rollout_id: The rollout whose records these must be.
        entries: Records in file order, one a call.
        problems: Lines that are no record of the rollout, and records that contradict an earlier one.
    """

    rollout_id: str
    entries: list[PackedEntry] = field(default_factory=list)
    problems: list[CaptureProblem] = field(default_factory=list)

    def add(self, record: dict[str, Any], call_id: str, offset: int) -> None:
        """Take the first record of a call."""
        try:
            entry = PackedEntry.of_json(record)
        except ValueError as error:
            self.problems.append(CaptureProblem(INVALID_RECORD, call_id, f"record at byte {offset}: {error}"))
            return
        if entry.rollout_id != self.rollout_id:
            detail = f"record at byte {offset} belongs to rollout {entry.rollout_id!r}"
            self.problems.append(CaptureProblem(INVALID_RECORD, call_id, detail))
            return
        self.entries.append(entry)


@dataclass(slots=True)
class LineIndex:
    """The records of one file up to an offset.

    Attributes:
        device: Device of the file.
        inode: Inode of the file.
        end: How many bytes are covered.
        offsets: Where the first record of each call begins.
        strays: Where lines begin that are no record, or that contradict an earlier one.
        unproven: Whether another writer appended something that may not be durable yet.
        torn_at: Where a last line begins that was cut short, None when there is none.
        is_open: Whether the last line is whole except for its line feed.
        known_bytes: Tell the file from another one.
    """

    device: int = 0
    inode: int = 0
    end: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    strays: list[int] = field(default_factory=list)
    unproven: bool = False
    torn_at: int | None = None
    is_open: bool = False
    known_bytes: KnownBytes = KnownBytes()

    def fits(self, calls: FileCalls, fd: int, device: int, inode: int, size: int) -> bool:
        """Return whether this is the index of the beginning of an open file."""
        is_same = (self.device, self.inode) == (device, inode) and self.end <= size
        return is_same and self.known_bytes.are_in(calls, fd)

    def changes(self, since: int = 0) -> int:
        """Return how many lines from an offset on each moved the version by one (B67, B68)."""
        if since <= 0:
            return len(self.offsets) + len(self.strays)
        return sum(offset >= since for offsets in (self.offsets.values(), self.strays) for offset in offsets)

    def add(self, call_id: str, line: bytes, offset: int) -> None:
        """Take in a record that was appended, with its line feed."""
        self.offsets[call_id] = offset
        self.end = offset + len(line)
        self.known_bytes = KnownBytes.of_line(line, offset)

    def scan(self, calls: FileCalls, fd: int, size: int, found: ScannedEntries | None = None) -> None:
        """Take in what stands between the index's end and ``size``.

        Args:
            calls: How the operating system is called.
            fd: The file.
            size: Its size.
            found: Gets the records themselves, if wanted.

        Raises:
            OSError: The file cannot be read.
        """
        self.torn_at = None
        if self.end == size:
            return
        self.is_open = False
        for line in iterate_lines(lambda count, offset: calls.pread(fd, count, offset), self.end, size):
            self.unproven = True
            self.is_open = not line.terminated
            record = self._parse(line, found)
            if record is None:
                continue
            first = self.offsets.get(record["model_call_id"])
            if first is None:
                self._take(record, line, found)
            elif not is_same_record(line_at(calls, fd, first), line.data):  # a copy is left out (W20)
                self._refuse(record, line, first, found)
        if self.torn_at is None:
            self.end = size

    def mend(self, calls: FileCalls, fd: int, path: str) -> None:
        """Repair the end of the file: cut off a torn last line (B68), or add the line feed to one that is whole (W16).

        Args:
            calls: How the operating system is called.
            fd: The file, scanned to its end, under the rollout's lock.
            path: Its path, for the log.

        Raises:
            OSError: It could not be done.
        """
        if self.torn_at is not None:
            _log.warning("%s: the last line was cut short at byte %d; it is cut off", path, self.torn_at)
            calls.truncate(fd, self.torn_at)
        elif self.is_open:
            self.end += calls.write_at(fd, b"\n", self.end)
        self.torn_at, self.is_open = None, False

    def _parse(self, line: RawLine, found: ScannedEntries | None) -> dict[str, Any] | None:
        """Return the record in a line; None when there is none."""
        try:
            record = parse_line(line.data)
        except ValueError:
            if line.is_last:  # its writer was cut off, so nobody was told that it is kept (B68)
                self.torn_at = self.end = line.offset
                return None
            problem = "is no JSON"
        else:
            if isinstance(record, dict) and isinstance(record.get("model_call_id"), str):
                return record
            problem = "is no record of a call"
        self.strays.append(line.offset)
        if found is not None:
            found.problems.append(CaptureProblem(DAMAGED_LINE, "", f"line at byte {line.offset} {problem}"))
        return None

    def _take(self, record: dict[str, Any], line: RawLine, found: ScannedEntries | None) -> None:
        call_id: str = record["model_call_id"]
        self.offsets[call_id] = line.offset
        self.known_bytes = KnownBytes.of_line(line.data, line.offset)
        if found is not None:
            found.add(record, call_id, line.offset)

    def _refuse(self, record: dict[str, Any], line: RawLine, first: int, found: ScannedEntries | None) -> None:
        self.strays.append(line.offset)
        if found is not None:
            detail = f"record at byte {line.offset} differs from the one at byte {first}"
            found.problems.append(CaptureProblem(CONFLICTING_RECORD, record["model_call_id"], detail))


class IndexCache:
    """The indices of the rollouts that were used last. Use one only while holding its rollout's lock for writing.

    Args:
        max_calls: How many calls all of them may hold; the index used least recently goes first.
    """

    def __init__(self, max_calls: int = 200_000) -> None:
        self._max_calls = max_calls
        self._lock = Lock()
        self._indices: OrderedDict[str, tuple[LineIndex, int]] = OrderedDict()
        self._calls = 0

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._indices

    def find(self, rollout_id: str) -> LineIndex | None:
        """Return an index, None if it is not kept; it then counts as used last."""
        with self._lock:
            if rollout_id not in self._indices:
                return None
            self._indices.move_to_end(rollout_id)
            return self._indices[rollout_id][0]

    def keep(self, rollout_id: str, index: LineIndex) -> None:
        """Keep an index; call it again when the index has grown."""
        self.drop(rollout_id)
        calls = len(index.offsets) + 1
        with self._lock:
            self._indices[rollout_id] = index, calls
            self._calls += calls
            while self._calls > self._max_calls and len(self._indices) > 1:
                _, (_, dropped) = self._indices.popitem(last=False)
                self._calls -= dropped

    def drop(self, rollout_id: str) -> None:
        """Forget an index."""
        with self._lock:
            _, calls = self._indices.pop(rollout_id, (None, 0))
            self._calls -= calls
