"""Reads the facts of a run's records in the order of their output, from the cache where it can be believed.

With an index that accounts for the output, records whose facts are cached are not read at all; of the rest, and of any
output that has no index, every line is read once.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from gym_ray import exact_json
from gym_ray.errors import InputError, StorageError
from gym_ray.evidence.facts import RecordFacts, facts_of_record
from gym_ray.rollouts.run_files.index_coverage import Coverage
from gym_ray.rollouts.run_files.record_reading import line_number
from gym_ray.rollouts.run_files.run_index import read_index, written_of
from gym_ray.rollouts.run_files.run_log import line_digest
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written
from gym_ray.storage.calls import FileCalls

__all__ = ["read_facts"]

_log = logging.getLogger(__name__)

_PLACE = re.compile(rb'\{"at":"([mf]):(\d{20}):(\d{12}):([0-9a-f]{32})","facts":')
_PLACE_BYTES = len('{"at":"m:') + 20 + 1 + 12 + 1 + 32 + len('","facts":')
_DIGEST_BYTES = 16
_MOST_OPEN = 64
_MOST_LINE_NUMBERS = 20
"""Damaged lines that are named by number, which costs a reading of all before; others are named by their byte."""


class _Cache:
    """Where the facts of one output's records lie in the facts files: about 30 bytes a record.

    Args:
        directory: The facts files.
        file: Whose facts.
        open_files: Closes what is opened here.
    """

    def __init__(self, directory: Path, file: OutputFile, open_files: ExitStack) -> None:
        self._paths: list[Path] = []
        self._files: dict[int, BufferedReader] = {}
        open_files.callback(self._close)
        self._offsets, self._places = array("Q"), array("Q")
        self._numbers, self._lengths = array("H"), array("I")
        for path in sorted(directory.glob("*.jsonl"))[: 1 << 16] if directory.is_dir() else ():
            try:
                with path.open("rb") as opened:
                    self._paths.append(path)
                    self._scan(opened, file[0].encode("ascii"))
            except OSError as error:
                _log.warning("%s: facts cannot be read; they are taken from the records: %s", path, error)
        offsets = np.frombuffer(self._offsets, dtype=np.uint64)
        self._order = np.argsort(offsets, kind="stable")
        self._next = 0

    def _scan(self, opened: BufferedReader, kind: bytes) -> None:
        place = 0
        for line in opened:
            match = _PLACE.match(line)
            if match is not None and match[1] == kind and line.endswith(b"}\n"):
                self._offsets.append(int(match[2]))
                self._places.append(place)
                self._numbers.append(len(self._paths) - 1)
                self._lengths.append(len(line))
            place += len(line)

    def facts_at(self, offset: int, length: int, digest: bytes) -> RecordFacts | None:
        """Return the facts of exactly this record, None without any; ask in the order of offsets."""
        while self._next < len(self._order) and self._offsets[self._order[self._next]] < offset:
            self._next += 1
        for position in range(self._next, len(self._order)):
            entry = self._order[position]
            if self._offsets[entry] != offset:
                return None
            line = self._line(self._numbers[entry], self._places[entry], self._lengths[entry])
            match = _PLACE.match(line)
            if match is not None and int(match[3]) == length and match[4] == digest.hex().encode("ascii"):
                return RecordFacts.parse(line[_PLACE_BYTES:-2])
        return None

    def _close(self) -> None:
        for opened in self._files.values():
            opened.close()

    def _line(self, number: int, place: int, length: int) -> bytes:
        """Read from a facts file; few are open at once, for every process of every session of a run left one."""
        try:
            if number not in self._files:
                if len(self._files) >= _MOST_OPEN:
                    self._files.pop(next(iter(self._files))).close()
                self._files[number] = self._paths[number].open("rb")
            file = self._files[number]
            file.seek(place)
            return file.read(length)
        except OSError:
            return b""  # taken away since it was listed; the record itself says the same


class _Places:
    """Where the index says that the records of one output lie, and what lies between; 40 bytes a record.

    Args:
        paths: The run.
        file: Which output.
        size: Bytes of it.
    """

    def __init__(self, paths: RunPaths, file: OutputFile, size: int) -> None:
        self._offsets, self._lengths, self._digests = array("Q"), array("Q"), bytearray()
        self._holes = [(0, size)] if size else []
        holes = self._accounted(paths, file, size)
        if holes is None:
            self._offsets, self._lengths, self._digests = array("Q"), array("Q"), bytearray()
        else:
            self._holes = holes
        self._order = np.argsort(np.frombuffer(self._offsets, np.uint64), kind="stable") if self._offsets else ()

    def _accounted(self, paths: RunPaths, file: OutputFile, size: int) -> list[tuple[int, int]] | None:
        """Take the index in and return the stretches that it does not name, None when it cannot be believed."""
        if not paths.index.is_file():
            return None
        coverage = Coverage()
        try:
            for frame in read_index(paths.index):
                written = written_of(frame)
                if written.file == file:
                    coverage.add(frame)
                    self._offsets.append(written.offset)
                    self._lengths.append(written.length)
                    self._digests += written.digest
            holes = coverage.holes(size)
            return holes if holes is None or coverage.last_is_there(paths.output_of(file), FileCalls()) else None
        except StorageError as error:
            _log.warning("the records are read as a whole: %s", error)
            return None

    def __iter__(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield offset, end and digest of each record in the order of the file; a digest of None is a stretch."""
        holes = iter([*self._holes, (1 << 63, 1 << 63)])
        start, end = next(holes)
        for entry in map(int, self._order):
            offset = self._offsets[entry]
            while start < offset:
                yield start, end, None
                start, end = next(holes)
            yield (
                offset,
                offset + self._lengths[entry],
                bytes(self._digests[entry * _DIGEST_BYTES : (entry + 1) * _DIGEST_BYTES]),
            )
        while start < 1 << 63:
            yield start, end, None
            start, end = next(holes)


def _nobody_looked(_record: dict[str, Any]) -> Mapping[str, Any]:
    return {}


def read_facts(
    paths: RunPaths,
    *,
    file: OutputFile = "main",
    verdict_of: Callable[[dict[str, Any]], Mapping[str, Any]] = _nobody_looked,
    damaged: Callable[[str], None] | None = None,
) -> Iterator[tuple[Written, RecordFacts]]:
    """Yield the facts of every record of one output, in the file's order, holding one record at a time.

    Args:
        paths: The run; any output of this shape, also of a peer that has no run directory. A missing output is empty.
        file: Which output.
        verdict_of: Health row of a record whose facts are not cached.
        damaged: Told of each line that is no JSON object, with its place; it is left out. None stops there.

    Raises:
        InputError: A line is no JSON object, and nobody wants to be told.
        OSError: The output cannot be read.
    """
    path = paths.output_of(file)
    if not path.exists():
        return
    with ExitStack() as open_files:
        cache, named = _Cache(paths.facts, file, open_files), 0
        output = open_files.enter_context(path.open("rb"))
        for start, end, digest in _Places(paths, file, path.stat().st_size):
            facts = None if digest is None else cache.facts_at(start, end - start, digest)
            if digest is not None and facts is not None:
                yield Written(file, start, end - start, digest), facts
                continue
            for offset, line in _lines(output, start, end):
                own = line_digest(line.removesuffix(b"\n"))
                facts = cache.facts_at(offset, len(line), own) or _recomputed(line, verdict_of)
                if facts is not None:
                    yield Written(file, offset, len(line), own), facts
                elif damaged is None:
                    problem = "the line is no JSON object; resume with --salvage to set it aside, or restore the file"
                    raise InputError(path, line_number(path, offset), "", problem)
                else:
                    named += 1
                    where = f"line {line_number(path, offset)}" if named <= _MOST_LINE_NUMBERS else f"byte {offset}"
                    damaged(f"{path}, {where}: not a JSON object")


def _lines(output: BufferedReader, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of the lines of a stretch that are not blank."""
    output.seek(start)
    while start < end and (line := output.readline()):
        if line.strip():
            yield start, line
        start += len(line)


def _recomputed(line: bytes, verdict_of: Callable[[dict[str, Any]], Mapping[str, Any]]) -> RecordFacts | None:
    record = exact_json.loads_object(line)
    return None if record is None else RecordFacts.parse(facts_of_record(record, verdict_of(record)))
