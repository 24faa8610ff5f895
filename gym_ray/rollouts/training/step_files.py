"""The directory of a training loop's steps: their numbers, the rows they were given, and how each of them ended.

A step's files are those of a run of its own, and stay. A number is used once; a step that a killed loop left half
finished is closed as interrupted and never taken up, since its weights are gone.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id
from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.posix import PosixStore

__all__ = ["StepDirectory", "step_lines"]

_STEP: Final = re.compile(r"step-([0-9]{6,})(?:\.|_)")
_CLOSED: Final = "step.json"
_LOCK: Final = "collector.jsonl"
_LOOK_S: Final = 0.2
_TAG_BYTES: Final = 6
_GIVEN: Final = "collect(rows)"


def step_lines(rows: object) -> list[bytes]:
    """Return the rows of a step as lines of JSON: they are judged in the caller's process, before anything runs.

    An id that a row brings gets digits of the step in front: the same id in two steps names two rollouts, and their
    calls must not mix.

    Raises:
        InputError: There are no rows, or one is none; the message counts from 1.
    """
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping | str | bytes):
        raise InputError(_GIVEN, 0, "", f"rows are a list of mappings, this is {type(rows).__name__}")
    tag = secrets.token_hex(_TAG_BYTES)
    lines = [_line(line, row, tag) for line, row in enumerate(rows, start=1)]
    if not lines:
        raise InputError(_GIVEN, 0, "", "a step was given no rows; give at least one")
    return lines


class StepDirectory:
    """Where the steps of one loop are. Close it with :meth:`close`.

    Args:
        directory: The directory; created where it is missing.
        patience_s: How long to wait for a collector of it that is being ended.

    Raises:
        StorageError: Another collector uses it, or it cannot be written.
    """

    def __init__(self, directory: Path, *, patience_s: float = 20.0) -> None:
        self.directory = directory
        self._numbering = threading.Lock()
        self._lock = _lock_in_time(RunPaths.of(directory / _LOCK), patience_s)
        try:
            self.interrupted = tuple(self._close_interrupted())
            self._next = max(self._numbers(), default=0) + 1
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others use the directory; idempotent."""
        self._lock.close()

    def paths(self, number: int) -> RunPaths:
        """Return where a step writes."""
        return RunPaths.of(self.directory / f"step-{number:06}.jsonl")

    def next_step(self, lines: Iterable[bytes]) -> tuple[int, Path]:
        """Take the next number and write the rows of its step, see :func:`step_lines`; return both number and file.

        Threads may call it at once.

        Raises:
            StorageError: They cannot be written; the number is not used.
        """
        with self._numbering:
            number = self._next
            source = self.directory / f"step-{number:06}_input.jsonl"
            PosixStore(self.directory).create(source.name, b"".join(lines))
            self._next = number + 1
        return number, source

    def note_closed(self, number: int, state: str, figures: Mapping[str, Any]) -> None:
        """Write down how a step ended, beside its run; a step that was noted before stays as it was.

        Raises:
            StorageError: It cannot be written.
        """
        place = self.paths(number).directory
        place.mkdir(parents=True, exist_ok=True)
        if not (place / _CLOSED).exists():
            PosixStore(place).publish(_CLOSED, exact_json.dumps({"step": number, "state": state, **figures}))

    def _numbers(self) -> set[int]:
        matches = (_STEP.match(path.name) for path in self.directory.iterdir())
        return {int(match[1]) for match in matches if match is not None}

    def _close_interrupted(self) -> list[int]:
        left = sorted(n for n in self._numbers() if not (self.paths(n).directory / _CLOSED).exists())
        for number in left:
            self.note_closed(number, "interrupted", {})
        return left


def _lock_in_time(paths: RunPaths, patience_s: float) -> RunLock:
    until = time.monotonic() + patience_s
    while True:
        try:
            return RunLock(paths)
        except StorageError:  # one that is being ended gives it back in a moment
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


def _line(line: int, row: Mapping[str, Any], tag: str) -> bytes:
    if not isinstance(row, Mapping):
        raise InputError(_GIVEN, line, "", f"a row is a mapping, this is {type(row).__name__}")
    given = row.get("_ng_rollout_id")
    try:
        if given is not None:
            row = {**row, "_ng_rollout_id": f"{tag}-{check_rollout_id(given, '_ng_rollout_id')}"}
        # The strict writer: an array that a loop left in a row must not become a text that looks like one.
        return json.dumps(dict(row), allow_nan=False).encode("ascii") + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(_GIVEN, line, "", f"not a row that can be written as JSON: {error}") from error
