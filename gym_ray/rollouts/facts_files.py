"""Keeps the facts of joined records beside the run, so that metrics and health need not read the records again.

A facts file is a cache: buffered, never synced, and believed only where its place and digest are those of the record.
What is missing or contradicts the record is taken from the record itself; the two give the same figures, except that
the time of a run is known afterwards only where ``ng_perf`` has it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gym_ray import exact_json
from gym_ray.errors import InputError
from gym_ray.evidence.facts import RecordFacts, facts_of_record
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written

__all__ = ["FactsWriter", "read_facts"]

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 18
_DIGEST_BYTES = 16
_PLACE = re.compile(rb'\{"at":"([mf]):(\d{20}):(\d{12}):([0-9a-f]{32})","facts":')
_PLACE_BYTES = len('{"at":"m:') + 20 + 1 + 12 + 1 + 32 + len('","facts":')


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_DIGEST_BYTES).digest()


class FactsWriter:
    """The facts file of one process; threads may append at once. Close it with :meth:`close`.

    Nothing here fails a join: where the file cannot be written, one warning says so, and the facts are taken from the
    records later.

    Args:
        paths: The run; the file gets a random name in its directory of facts, at the first append.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.path = paths.facts / f"{secrets.token_hex(10)}.jsonl"
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._given_up = False

    def append(self, written: Written, facts: bytes) -> None:
        """Take the facts of a durable record in; they may wait in memory until :meth:`flush`.

        Args:
            written: Where the record lies, with its digest; without one the facts could never be believed, and are
                not kept.
            facts: One facts line without its line feed.
        """
        if len(written.digest) != _DIGEST_BYTES:
            return
        at = f"{written.file[0]}:{written.offset:020d}:{written.length:012d}:{written.digest.hex()}"
        line = b"".join((b'{"at":"', at.encode("ascii"), b'","facts":', facts, b"}\n"))
        self._guarded(lambda file: file.write(line))

    def flush(self) -> None:
        """Hand to the operating system what waits, so that other processes can read it."""
        with self._lock:
            opened = self._file is not None
        if opened:
            self._guarded(lambda file: file.flush())

    def close(self) -> None:
        """Write what waits and close the file; safe to repeat."""
        with self._lock:
            file, self._file = self._file, None
            self._given_up = True
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._say(error)

    def _guarded(self, act: Callable[[BinaryIO], object]) -> None:
        with self._lock:
            if self._given_up:
                return
            try:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self.path.open("xb", buffering=_BUFFER_BYTES)
                act(self._file)
            except OSError as error:
                self._given_up = True
                self._say(error)

    def _say(self, error: OSError) -> None:
        _log.warning("%s: facts cannot be kept; they will be read from the records: %s", self.path, error)


class _Cache:
    """Where the facts of one output's records lie in the facts files: about 30 bytes a record.

    Args:
        directory: The facts files.
        file: Whose facts.
        open_files: Closes what is opened here.
    """

    def __init__(self, directory: Path, file: OutputFile, open_files: ExitStack) -> None:
        self._files: list[BufferedReader] = []
        self._offsets, self._places = array("Q"), array("Q")
        self._numbers, self._lengths = array("H"), array("I")
        for path in sorted(directory.glob("*.jsonl"))[: 1 << 16] if directory.is_dir() else ():
            try:
                self._files.append(open_files.enter_context(path.open("rb")))
            except OSError as error:
                _log.warning("%s: facts cannot be read; they are taken from the records: %s", path, error)
                continue
            self._scan(file[0].encode("ascii"))
        offsets = np.frombuffer(self._offsets, dtype=np.uint64)
        self._order = np.argsort(offsets, kind="stable")
        self._next = 0

    def _scan(self, kind: bytes) -> None:
        place = 0
        for line in self._files[-1]:
            match = _PLACE.match(line)
            if match is not None and match[1] == kind and line.endswith(b"}\n"):
                self._offsets.append(int(match[2]))
                self._places.append(place)
                self._numbers.append(len(self._files) - 1)
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
            file = self._files[self._numbers[entry]]
            file.seek(self._places[entry])
            line = file.read(self._lengths[entry])
            match = _PLACE.match(line)
            if match is not None and int(match[3]) == length and match[4] == digest.hex().encode("ascii"):
                return RecordFacts.parse(line[_PLACE_BYTES:-2])
        return None


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
        cache = _Cache(paths.facts, file, open_files)
        output = open_files.enter_context(path.open("rb"))
        offset = 0
        for number, line in enumerate(output, 1):
            body = line.removesuffix(b"\n")
            if body.strip():
                digest = _digest(body)
                facts = cache.facts_at(offset, len(line), digest) or _recomputed(body, verdict_of)
                if facts is not None:
                    yield Written(file, offset, len(line), digest), facts
                elif damaged is None:
                    raise InputError(path, number, "", "the line is not a JSON object; `--salvage` sets it aside")
                else:
                    damaged(f"{path}, line {number}: not a JSON object")
            offset += len(line)


def _recomputed(line: bytes, verdict_of: Callable[[dict[str, Any]], Mapping[str, Any]]) -> RecordFacts | None:
    record = exact_json.loads_object(line)
    return None if record is None else RecordFacts.parse(facts_of_record(record, verdict_of(record)))
