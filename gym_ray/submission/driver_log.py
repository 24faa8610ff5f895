"""What the programs of a benchmark print: into its log and on to standard output, without secrets that are known.

Neither a full disk nor a closed output may end an evaluation; what could not be kept is counted and said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from gym_ray.settings.plain_yaml import REDACTED
from gym_ray.settings.problems import MIN_SECRET_CHARS

__all__ = ["DriverLog"]

_LONGEST_HELD = 1 << 16
"""Bytes without a line end that are held back, so that a secret in them is found whole."""


class DriverLog:
    """The log of one benchmark. Not for use by several threads.

    Args:
        path: The file; it is appended to.
        secrets: Texts that are replaced by asterisks.
        echo: A descriptor that gets the same bytes; it stays open.
    """

    def __init__(self, path: Path, secrets: Iterable[str], echo: int) -> None:
        self.path = path
        self.lost_bytes = 0
        self.problem = ""
        lines = {line.strip() for secret in secrets for line in (secret, *secret.splitlines())}
        found = sorted((line for line in lines if len(line) >= MIN_SECRET_CHARS), key=len, reverse=True)
        self._longest = max((len(os.fsencode(text)) for text in found), default=1)
        self._secrets = re.compile(b"|".join(re.escape(text.encode("utf-8", "surrogateescape")) for text in found))
        self._has_secrets = bool(found)
        self._held = b""
        self._echo: int | None = echo
        self._file: int | None = None
        self._open()

    def feed(self, data: bytes) -> None:
        """Take output; whole lines are written, the rest is held until its line ends or is too long to wait for."""
        self._held += data
        end = self._held.rfind(b"\n") + 1
        if not end and len(self._held) > _LONGEST_HELD:
            end = self._cut()
        if end:
            ready, self._held = self._held[:end], self._held[end:]
            self._put(ready)

    def say(self, text: str) -> None:
        """Write a line of the driver's own, behind all that was taken before."""
        self.flush()
        self._put(f"[driver] {text}\n".encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            ready, self._held = self._held + b"\n", b""
            self._put(ready)

    def remark(self) -> str:
        """Return what could not be kept, "" when all could."""
        return f"{self.lost_bytes} bytes of output are not in {self.path}: {self.problem}" if self.problem else ""

    def close(self) -> None:
        """Write what is held and close the file."""
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _cut(self) -> int:
        """Return where to cut a line that is too long: no secret lies across, and the longest may still begin there."""
        end = len(self._held) - self._longest + 1
        for found in self._secrets.finditer(self._held) if self._has_secrets else ():
            if found.start() < end < found.end():
                return found.start()
        return end

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.problem = str(error.strerror)

    def _put(self, data: bytes) -> None:
        if self._has_secrets:
            data = self._secrets.sub(REDACTED.encode(), data)
        if self._file is None:
            self.lost_bytes += len(data)
        else:
            self._write(self._file, data)
        self._tell(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:  # a full disk; there may be room again for what comes later
            self.problem = str(error.strerror)
            self.lost_bytes += len(rest)

    def _tell(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._echo is not None:
                rest = rest[os.write(self._echo, rest) :]
        except OSError:  # nobody reads it any more; the file has it
            self._echo = None
