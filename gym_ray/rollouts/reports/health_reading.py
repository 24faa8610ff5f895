"""Checks the health of stored records, line by line, in several processes where that is worth their start (D110).

The main output alone is read. A damaged line is a row of the report like any other, so that nothing is left out.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, NamedTuple

from gym_ray import exact_json
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.errors import ChildInterpreterError, GymRayError, InputError, StorageError
from gym_ray.evidence.compact import is_compact, without_payloads
from gym_ray.evidence.health import RULES_VERSION, check_stored, located, partly_unreadable, unreadable_row
from gym_ray.rollouts.run_files.parts_files import with_payloads
from gym_ray.rollouts.run_files.record_reading import lines_between
from gym_ray.rollouts.run_paths import RunPaths, Written

__all__ = ["CheckedLine", "HealthRules", "check_range", "check_stored_line", "checked_rows"]

_log = logging.getLogger(__name__)

_RANGE_BYTES: Final = 8 << 20
_MOST_WORKERS: Final = 8
_RANGES_A_WORKER: Final = 32
"""A process that checks fewer takes longer to start than it saves."""
_SEEK_BYTES: Final = 1 << 16
_LONGEST_ERROR: Final = 500
_NAMES: Final = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "_ng_rollout_id", "stage_index")
"""What tells a record apart from others, whatever became of the rest of it."""


class CheckedLine(NamedTuple):
    """One line that is not blank.

    Attributes:
        offset: Its first byte in the file.
        length: Its bytes, line feed included.
        number: Its number in its range, from 0.
        answer: Its verdict row, or why it has none.
    """

    offset: int
    length: int
    number: int
    answer: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class HealthRules:
    """How records are checked; it is pickled.

    Attributes:
        ignored: Checks that do not run.
        version: Which calls the token comparison sums, see :mod:`gym_ray.evidence.health.rules`.
    """

    ignored: frozenset[str] = frozenset()
    version: int = RULES_VERSION


def check_stored_line(paths: RunPaths, line: bytes, rules: HealthRules) -> dict[str, Any] | str:
    """Return the verdict row of a stored line, with the payloads of a compact record, or why it has none.

    A compact record whose parts cannot be read has a row that says so; its payloads are then unobserved, and so is all
    evidence where the record's own description of them is damaged.
    """
    try:
        record = exact_json.loads(line)
    except ValueError as error:
        return f"the line is not JSON: {str(error)[:_LONGEST_ERROR]}"
    if not isinstance(record, dict) or not is_compact(record):
        return check_stored(record, ignored=rules.ignored, rules_version=rules.version)
    problem = None
    try:
        record = with_payloads(paths, record)
    except GymRayError as error:
        problem, record = str(error), _readable(record)
    row = check_stored(record, ignored=rules.ignored, rules_version=rules.version)
    if problem is None or isinstance(row, str):
        return row
    return partly_unreadable(row, problem, ignored=rules.ignored)


def _readable(record: dict[str, Any]) -> dict[str, Any]:
    try:
        return without_payloads(record)
    except GymRayError:
        return {name: record[name] for name in _NAMES if name in record}


def checked_rows(
    paths: RunPaths, rules: HealthRules, *, workers: int | None = None
) -> Iterator[tuple[Written, dict[str, Any]]]:
    """Yield place and verdict row of every line of the main output that is not blank, in the file's order.

    Args:
        paths: The run.
        rules: How to check.
        workers: Processes that check; None for one for each processor up to 8, and for none beside this one where the
            file is small.

    Raises:
        InputError: There is no output.
        StorageError: It cannot be read.
    """
    if not paths.output.is_file():
        raise InputError(paths.output, 0, "", "there is no such output; name the records of a run")
    first_line = 1
    ranges, torn_at, torn = _cut(paths)
    for checked, count in _in_order(paths, rules, ranges, _processes(workers, len(ranges))):
        for line in checked:
            written = Written("main", line.offset, line.length)
            yield written, _row(paths, rules, line.answer, first_line + line.number)
        first_line += count
    if torn.strip():
        answer = check_stored_line(paths, torn, rules)
        if isinstance(answer, str):
            answer = f"{answer}; the last line has no line feed: it is torn, or still being written"
        yield Written("main", torn_at, len(torn)), _row(paths, rules, answer, first_line)


def check_range(paths: RunPaths, rules: HealthRules, start: int, end: int) -> tuple[list[CheckedLine], int]:
    """Check the lines of a part of the main output that ends behind a line feed.

    Returns:
        Those that are not blank, and how many there are with those that are.

    Raises:
        StorageError: The file cannot be read.
    """
    checked, count = [], 0
    for offset, line in lines_between(paths.output, start, end):
        if line.strip():
            checked.append(CheckedLine(offset, len(line) + 1, count, check_stored_line(paths, line, rules)))
        count += 1
    return checked, count


def _row(paths: RunPaths, rules: HealthRules, answer: dict[str, Any] | str, line: int) -> dict[str, Any]:
    source = paths.output.name
    if isinstance(answer, str):
        return unreadable_row(source, line, answer, ignored=rules.ignored)
    return located(answer, source, line) if answer["findings"] else answer


def _cut(paths: RunPaths) -> tuple[list[tuple[int, int]], int, bytes]:
    """Cut the output behind line feeds into ranges of about one size; return them, and what follows the last one."""
    ranges, start = [], 0
    try:
        with paths.output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            whole = _behind_last_feed(file, size)
            while start < whole:
                end = _behind_next_feed(file, min(start + _RANGE_BYTES, whole) - 1)
                ranges.append((start, end))
                start = end
            file.seek(whole)
            return ranges, whole, file.read(size - whole)
    except OSError as error:
        raise StorageError(f"{paths.output}: cannot be read: {error}") from error


def _behind_last_feed(file: BinaryIO, end: int) -> int:
    """Return the place behind the last line feed before ``end``, 0 without one."""
    while end > 0:
        begin = max(0, end - _SEEK_BYTES)
        file.seek(begin)
        feed = file.read(end - begin).rfind(b"\n")
        if feed >= 0:
            return begin + feed + 1
        end = begin
    return 0


def _behind_next_feed(file: BinaryIO, start: int) -> int:
    """Return the place behind the first line feed from ``start`` on; there is one."""
    file.seek(start)
    while chunk := file.read(_SEEK_BYTES):
        feed = chunk.find(b"\n")
        if feed >= 0:
            return start + feed + 1
        start += len(chunk)
    return start  # the file was cut while it was looked at


def _processes(asked: int | None, ranges: int) -> int:
    """Return how many processes check; 1 is this one."""
    if asked is not None:
        return max(1, min(asked, ranges))
    return max(1, min(len(os.sched_getaffinity(0)), _MOST_WORKERS, ranges // _RANGES_A_WORKER))


def _in_order(
    paths: RunPaths, rules: HealthRules, ranges: list[tuple[int, int]], processes: int
) -> Iterator[tuple[list[CheckedLine], int]]:
    """Yield what each range holds, in order; at most a few ranges a process are looked at ahead."""
    if processes == 1:
        for start, end in ranges:
            yield check_range(paths, rules, start, end)
        return
    idle: SimpleQueue[ChildInterpreter[tuple[list[CheckedLine], int]]] = SimpleQueue()
    with ExitStack() as closing:
        for _ in range(processes):
            child = ChildInterpreter(check_range)
            closing.callback(child.close)
            idle.put(child)
        threads = closing.enter_context(ThreadPoolExecutor(processes, thread_name_prefix="gym-ray-health"))

        def checked(start: int, end: int) -> tuple[list[CheckedLine], int]:
            child = idle.get()
            try:
                return child.call(paths, rules, start, end)
            except ChildInterpreterError as error:
                _log.warning("%s: a part is checked by this process, since another could not: %s", paths.output, error)
                return check_range(paths, rules, start, end)
            finally:
                idle.put(child)

        waiting: deque[Future[tuple[list[CheckedLine], int]]] = deque()
        closing.callback(lambda: [future.cancel() for future in waiting])
        for start, end in ranges:
            waiting.append(threads.submit(checked, start, end))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
