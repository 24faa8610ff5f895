"""Keeps the facts of joined records beside the run, so that metrics and health need not read the records again.

A facts file is a cache: buffered, never synced, and believed only where its place and digest are those of the record.
What is missing or contradicts the record is taken from the record itself; the two give the same figures, except that
the time of a run is known afterwards only where ``ng_perf`` has it. ``facts_reading`` beside this reads it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import BinaryIO

from gym_ray.rollouts.reports.facts_reading import read_facts
from gym_ray.rollouts.run_paths import RunPaths, Written

__all__ = ["FactsWriter", "read_facts"]

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 18
_DIGEST_BYTES = 16


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
