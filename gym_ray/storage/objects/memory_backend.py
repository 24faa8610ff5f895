"""fsspec's ``memory://``: objects of this process, for tests and small runs.

Its own file objects show half a value and share one position between readers, so this works on its table instead.
"""

from __future__ import annotations

from typing import Any

from fsspec.implementations.memory import MemoryFile

from gym_ray.storage.objects.object_backend import ObjectFacts

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """Implements :class:`gym_ray.storage.objects.object_backend.ObjectBackend`.

    Args:
        file_system: fsspec's ``MemoryFileSystem``.
    """

    part_bytes = 8 * 1024 * 1024

    def __init__(self, file_system: Any) -> None:
        self._file_system = file_system
        self._objects: dict[str, Any] = file_system.store

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        """Put an object; one step of the table, so that one of several threads wins."""
        del mark
        file = MemoryFile(self._file_system, path, data)
        if not exclusive:
            self._objects[path] = file
        elif self._objects.setdefault(path, file) is not file:
            raise FileExistsError(path)

    def begin(self, path: str, mark: str) -> _Upload:
        """Begin an object."""
        return _Upload(self, path, mark)

    def facts(self, path: str) -> ObjectFacts:
        """Return the size; an answer is never lost here, so no mark has to be kept."""
        return ObjectFacts(self._object(path).getbuffer().nbytes, "")

    def read(self, path: str) -> bytes:
        """Return a whole object."""
        return bytes(self._object(path).getbuffer())

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return a part."""
        return bytes(self._object(path).getbuffer()[start:end])

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the end."""
        view = self._object(path).getbuffer()
        return bytes(view[-length:]), view.nbytes

    def find(self, prefix: str) -> list[str]:
        """Return paths."""
        return [path for path in list(self._objects) if path.startswith(prefix)]

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._objects.pop(path, None)

    def sweep(self, prefix: str, older_than_s: float) -> list[str]:
        """Return nothing: an upload is gone with its writer."""
        del prefix, older_than_s
        return []

    def close(self) -> None:
        """Do nothing."""

    def _object(self, path: str) -> Any:
        try:
            return self._objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None


class _Upload:
    def __init__(self, backend: MemoryBackend, path: str, mark: str) -> None:
        self._backend, self._path, self._mark = backend, path, mark
        self._parts: list[bytes] = []

    def part(self, data: bytes) -> None:
        self._parts.append(data)

    def complete(self, *, exclusive: bool) -> None:
        self._backend.put(self._path, b"".join(self._parts), exclusive=exclusive, mark=self._mark)

    def abort(self) -> None:
        self._parts.clear()
