"""Google Cloud Storage through gcsfs: one conditional put, or a conditional upload of a file.

gcsfs's own file objects publish what they have when they are closed or collected, so a large value waits in a local
temporary file, and goes out as a whole. Nothing here is gcsfs's own but the names of its arguments.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from gym_ray.storage.objects.object_backend import ObjectFacts

__all__ = ["GcsBackend"]

_MARK = "gymrayupload"
_log = logging.getLogger(__name__)


def _mode(exclusive: bool) -> str:
    return "create" if exclusive else "overwrite"


class GcsBackend:
    """Implements :class:`gym_ray.storage.objects.object_backend.ObjectBackend`.

    Args:
        file_system: A ``GCSFileSystem`` of this process.
    """

    part_bytes = 8 * 1024 * 1024

    def __init__(self, file_system: Any) -> None:
        self.file_system = file_system

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        """Put a whole object."""
        self.file_system.pipe_file(path, data, metadata={_MARK: mark}, chunksize=self.part_bytes, mode=_mode(exclusive))

    def begin(self, path: str, mark: str) -> GcsUpload:
        """Begin an object that waits in a local file."""
        return GcsUpload(self, path, mark)

    def facts(self, path: str) -> ObjectFacts:
        """Return size and mark."""
        info = self.file_system.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return ObjectFacts(int(info["size"]), (info.get("metadata") or {}).get(_MARK, ""))

    def read(self, path: str) -> bytes:
        """Return a whole object."""
        return bytes(self.file_system.cat_file(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return a part."""
        return bytes(self.file_system.cat_file(path, start=start, end=end))

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the end, and ask for the size first."""
        size = self.facts(path).size
        return self.read_range(path, max(0, size - length), size), size

    def find(self, prefix: str) -> list[str]:
        """Return paths, from a listing of this moment."""
        self.file_system.invalidate_cache()
        found = self.file_system.find(prefix.rpartition("/")[0])
        return [path for path in found if path.startswith(prefix)]

    def delete(self, path: str) -> None:
        """Remove an object."""
        try:
            self.file_system.rm_file(path)
        except FileNotFoundError:
            return

    def sweep(self, prefix: str, older_than_s: float) -> list[str]:
        """Return nothing: what a killed writer left is a local temporary file, or dropped by Google after a week."""
        del prefix, older_than_s
        return []

    def close(self) -> None:
        """Leave the connections to the garbage collector: fsspec has no common way to close them."""


class GcsUpload:
    """A value in a local temporary file."""

    def __init__(self, backend: GcsBackend, path: str, mark: str) -> None:
        self._backend, self._path, self._mark = backend, path, mark
        fd, self._local = tempfile.mkstemp(prefix="gym-ray-upload-")
        self._file = os.fdopen(fd, "wb")

    def part(self, data: bytes) -> None:
        """Write a piece."""
        self._file.write(data)

    def complete(self, *, exclusive: bool) -> None:
        """Send the file."""
        self._file.flush()
        self._backend.file_system.put_file(
            self._local,
            self._path,
            metadata={_MARK: self._mark},
            chunksize=self._backend.part_bytes,
            mode=_mode(exclusive),
        )
        self.abort()

    def abort(self) -> None:
        """Remove the file."""
        try:
            self._file.close()
        except OSError as error:  # what could not be written is thrown away
            _log.debug("%s: %s", self._local, error)
        Path(self._local).unlink(missing_ok=True)
