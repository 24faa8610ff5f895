"""Reads a rollout's files without changing them: its records, and every reason why some may be missing (W39, B150).

A damaged line is left out and named; it never hides another record. A last line without its line feed is not read: its
writer may still be at work on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from gym_ray.storage.calls import FileCalls
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import CALL_WITHOUT_RECORD, MARKED_INCOMPLETE
from gym_ray.token_id_capture.token_files.append_files import lost_records
from gym_ray.token_id_capture.token_files.entry_lines import RawLine, iterate_lines, parse_line
from gym_ray.token_id_capture.token_files.line_index import KnownBytes, LineIndex, ScannedEntries
from gym_ray.token_id_capture.token_files.packed_lines import LINES_AT_ONCE, pack_lines
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_state import (
    ENTRIES_SUFFIX,
    INTENTS_SUFFIX,
    STATE_SUFFIX,
    RolloutState,
)

__all__ = ["Cursor", "EntriesSince", "all_problems", "has_evidence", "read_rollout", "read_since"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come in a rollout's record file (B50).

    Attributes:
        inode: Inode of the file, 0 when there was none.
        offset: Byte behind the last line that was read.
        known_bytes: Tell the file from a later one that got its inode.
    """

    inode: int
    offset: int
    known_bytes: KnownBytes = field(default_factory=KnownBytes)


@dataclass(frozen=True, slots=True)
class EntriesSince:
    """What a reader has not seen yet.

    Attributes:
        entries: Records in file order. A call whose writer died, or that was put twice, may come again.
        cursor: For the next read.
        restarted: The file is another one, or was cut: these are its records from the start.
    """

    entries: list[PackedEntry]
    cursor: Cursor
    restarted: bool


@contextmanager
def opened(folder: RolloutFolder, rollout_id: str, flags: int = os.O_RDONLY) -> Iterator[int | None]:
    """Open a rollout's record file; None when there is none.

    Raises:
        OSError: It cannot be opened.
    """
    try:
        fd = folder.calls.open(folder.path(rollout_id, ENTRIES_SUFFIX), flags)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        folder.calls.close(fd)


def read_rollout(folder: RolloutFolder, rollout_id: str) -> tuple[ScannedEntries, list[CaptureProblem]]:
    """Return the readable records with what is wrong in their file, and all there is to say against the rollout.

    Raises:
        OSError: A file cannot be read.
    """
    state, found, index, size = folder.state(rollout_id), ScannedEntries(rollout_id), LineIndex(), 0
    with opened(folder, rollout_id) as fd:
        if fd is not None:
            size = folder.calls.fstat(fd).st_size
            index.scan(folder.calls, fd, size, found)
    return found, all_problems(folder, state, found, index, size)


def all_problems(
    folder: RolloutFolder, state: RolloutState, found: ScannedEntries, index: LineIndex, size: int
) -> list[CaptureProblem]:
    """Return every reason why a rollout is incomplete; none: it is complete.

    Args:
        folder: The rollout's files.
        state: Its lifecycle.
        found: Its records.
        index: Their index.
        size: Size of their file.

    Raises:
        OSError: A file cannot be read.
    """
    rollout_id = found.rollout_id
    marks = folder.marks(rollout_id)
    if state.incomplete and not marks:
        marks = [CaptureProblem(MARKED_INCOMPLETE, "", f"{rollout_id}{STATE_SUFFIX} says so")]
    problems = [*found.problems, *(lost_records(state, index, size) if state.has_index else ()), *marks]
    named = {problem.model_call_id for problem in problems}
    dangling = [call_id for call_id in folder.intents(rollout_id) if call_id not in index.offsets]
    return problems + [CaptureProblem(CALL_WITHOUT_RECORD, call_id) for call_id in dangling if call_id not in named]


def has_evidence(folder: RolloutFolder, rollout_id: str) -> bool:
    """Return whether there is any record, begun call or mark (W30).

    Raises:
        OSError: A file cannot be read.
    """
    if folder.size(rollout_id, ENTRIES_SUFFIX) or folder.size(rollout_id, INTENTS_SUFFIX):
        return True
    if folder.is_marked(rollout_id):
        return True
    state = folder.state(rollout_id)
    return state.incomplete or state.retired


def read_since(folder: RolloutFolder, rollout_id: str, cursor: Cursor | None) -> EntriesSince:
    """Return the records behind a cursor, without a lock; lines that are none are left out.

    Raises:
        OSError: The file cannot be read.
    """
    moved = cursor is not None and cursor.offset > 0
    with opened(folder, rollout_id) as fd:
        if fd is None:
            return EntriesSince([], Cursor(0, 0), restarted=moved)
        info = folder.calls.fstat(fd)
        if cursor is None or not _fits(cursor, folder.calls, fd, info):
            return _read_from(folder.calls, fd, info, Cursor(info.st_ino, 0), restarted=moved)
        return _read_from(folder.calls, fd, info, cursor, restarted=False)


def _fits(cursor: Cursor, calls: FileCalls, fd: int, info: os.stat_result) -> bool:
    is_same = cursor.inode == info.st_ino and cursor.offset <= info.st_size
    return is_same and cursor.known_bytes.are_in(calls, fd)


def _read_from(calls: FileCalls, fd: int, info: os.stat_result, start: Cursor, *, restarted: bool) -> EntriesSince:
    entries: list[PackedEntry] = []
    lines = iterate_lines(lambda count, at: calls.pread(fd, count, at), start.offset, info.st_size)
    whole = (line for line in lines if line.terminated)
    last: RawLine | None = None
    while batch := list(islice(whole, LINES_AT_ONCE)):
        for line, packed in zip(batch, pack_lines([line.data for line in batch]), strict=True):
            try:
                entry = packed or _general(line.data)
            except ValueError:
                if line.is_last:
                    break  # it may be cut off yet
                entry = None
            if entry is not None:
                entries.append(entry)
            last = line
    if last is None:
        return EntriesSince(entries, start, restarted)
    end, known_bytes = last.offset + len(last.data) + 1, KnownBytes.of_line(last.data, last.offset)
    return EntriesSince(entries, Cursor(info.st_ino, end, known_bytes), restarted)


def _general(line: bytes) -> PackedEntry | None:
    """Return the record in a line; None for one that says nothing of a call, or what contradicts itself.

    Raises:
        ValueError: It is no JSON.
    """
    record = parse_line(line)
    try:
        return PackedEntry.of_json(record) if isinstance(record, dict) else None
    except ValueError:
        return None  # a snapshot names it; nothing can be linked to it
