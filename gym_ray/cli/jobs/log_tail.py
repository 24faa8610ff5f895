"""Reads the log of a benchmark's driver as it grows, on storage that may show it late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gym_ray.errors import StorageError

__all__ = ["LogTail", "last_error"]

_CHUNK_BYTES = 1 << 20
_LONGEST_BYTES = 1 << 20
"""A line that is longer is given in pieces, so that what is held is bounded whatever a program prints."""

_END_BYTES = 1 << 16
_ERROR = "error: "


class LogTail:
    """What of a growing file has not been read yet. The file need not exist yet; one that shrank is begun anew.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Give the lines that came since the last time.

        Args:
            last: Nothing more will come: what follows the last line feed is a line, too.

        Raises:
            StorageError: The file cannot be read.
        """
        while chunk := self._chunk():
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            if len(self._rest) >= _LONGEST_BYTES:
                piece, self._rest = _cut(self._rest)
                yield piece.decode(errors="replace")
        if last and self._rest:
            rest, self._rest = self._rest, b""
            yield rest.decode(errors="replace")

    def _chunk(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        self._offset += len(chunk)
        return chunk


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Return a line in two pieces, the second of which holds the beginning of a character at most."""
    for back in range(1, min(4, len(line)) + 1):
        byte = line[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte of a character, which says how many it has
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (line[:-back], line[-back:]) if back < needed else (line, b"")
    return line, b""


def last_error(path: Path) -> str:
    """Return the last error that a program reported at the end of a log, "" where there is none to be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _END_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""  # the state is known without it, and who wants the log is told there what is wrong with it
    errors = [line.removeprefix(_ERROR) for line in text.splitlines() if line.startswith(_ERROR)]
    return errors[-1].strip() if errors else ""
