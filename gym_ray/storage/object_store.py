"""An object store behind fsspec: whole objects, created only where their name is free.

Correctness needs unique names and atomic puts, never locks, appends or kept listings. An answer that was lost on the
way is told from a foreign object by a random mark that each upload carries.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gym_ray.errors import SettingsError, StorageError, StorageExistsError, StorageMissingError
from gym_ray.storage.names import check_range, is_shown, name_parts, shown_url
from gym_ray.storage.objects.object_backend import ObjectBackend
from gym_ray.storage.objects.object_commit import create_works, settle
from gym_ray.storage.objects.object_failures import plain_problem
from gym_ray.storage.objects.object_opening import check_kind, holds_secrets, open_backend, without_secrets
from gym_ray.storage.objects.object_stream import ObjectStream

__all__ = ["ObjectStore"]

_T = TypeVar("_T")


class ObjectStore:
    """Implements :class:`gym_ray.storage.store.SegmentStore` below a URL.

    Thread-safe: calls block their own thread, requests run on fsspec's. The client is made on first use in each
    process, so a store may be pickled, and used after a fork.

    Args:
        url: Bucket or container and prefix.
        options: What fsspec is given; never shown.

    Raises:
        SettingsError: Nothing that is installed can open the URL, or its client knows an option by another name.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._options = url, dict(options or {})
        check_kind(url, self._options)
        self.place = shown_url(url)
        self._opened: tuple[int, ObjectBackend, str] | None = None
        self._inherited: list[Any] = []
        self._exclusive: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObjectStore.__init__(self, state["url"], state["options"])

    def __repr__(self) -> str:
        return f"ObjectStore({self.place!r})"

    @property
    def exclusive(self) -> bool:
        """Whether conditional puts and conditional ends of uploads work; see the contract."""
        if self._exclusive is None:
            self._exclusive = self._guarded("probe", "", lambda: create_works(self.backend, self._join("")[:-1]))
        return self._exclusive

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value; see the contract."""
        path, mark = self._path(name), secrets.token_hex(16)
        self._guarded("publish", name, lambda: self.backend.put(path, data, exclusive=False, mark=mark))

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name; see the contract.

        Raises:
            StorageError: This store cannot tell whether a name is free; see :attr:`exclusive`.
        """
        path, mark = self._path(name), secrets.token_hex(16)
        if not self.exclusive:
            raise StorageError(f"cannot create {self._at(name)}: this store has no create-if-absent")

        def is_ours() -> bool:
            return self.backend.facts(path).mark == mark

        def send() -> None:
            self.backend.put(path, data, exclusive=True, mark=mark)

        self._guarded("create", name, lambda: settle(send, is_ours))

    def stream(self, name: str) -> ObjectStream:
        """Begin a value; see the contract."""
        path = self._path(name)

        def guarded(what: str, work: Callable[[], None]) -> None:
            self._guarded(what, name, work)

        return ObjectStream(self.backend, path, lambda: self.exclusive, guarded)

    def list(self, prefix: str = "") -> list[str]:
        """Return published names; see the contract."""

        def find() -> list[str]:
            start = self._join("")
            names = (path[len(start) :] for path in self.backend.find(start + prefix))
            return sorted(name for name in names if is_shown(name))

        return self._guarded("list", prefix, find)

    def read(self, name: str) -> bytes:
        """Return a value; see the contract."""
        path = self._path(name)
        return self._guarded("read", name, lambda: self.backend.read(path))

    def size(self, name: str) -> int:
        """Return the size of a value in bytes; see the contract."""
        path = self._path(name)
        return self._guarded("read", name, lambda: self.backend.facts(path).size)

    def exists(self, name: str) -> bool:
        """Return whether a value has this name; see the contract."""
        try:
            self.size(name)
        except StorageMissingError:
            return False
        return True

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a value; see the contract. One request, unless nothing of it is there."""
        path = self._path(name)
        check_range(name, start, length)

        def read() -> bytes:
            if not length:
                self.backend.facts(path)
                return b""
            try:
                return self.backend.read_range(path, start, start + length)
            except FileNotFoundError:
                raise
            except Exception:
                if self.backend.facts(path).size <= start:  # a range beyond the end is refused
                    return b""
                raise

        return self._guarded("read", name, read)

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Return the end of a value and its size; see the contract. One request on S3, two on Azure."""
        path = self._path(name)
        check_range(name, 0, length)

        def read() -> tuple[bytes, int]:
            if not length:
                return b"", self.backend.facts(path).size
            try:
                return self.backend.read_tail(path, length)
            except FileNotFoundError:
                raise
            except Exception:
                if self.backend.facts(path).size == 0:  # it has no last byte
                    return b"", 0
                raise

        return self._guarded("read", name, read)

    def delete(self, name: str) -> None:
        """Remove a value; see the contract."""
        path = self._path(name)
        self._guarded("delete", name, lambda: self.backend.delete(path))

    def sync_dir(self, name: str = "") -> None:
        """Do nothing: every put is durable at once."""

    def sweep_temporary(self, older_than_s: float) -> tuple[str, ...]:
        """Abort the unfinished uploads of killed writers; see the contract."""
        return tuple(self._guarded("sweep", "", lambda: self.backend.sweep(self._join(""), older_than_s)))

    def close(self) -> None:
        """Give up connections; see the contract."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    @property
    def backend(self) -> ObjectBackend:
        """This process's client."""
        return self._open()[1]

    def _open(self) -> tuple[int, ObjectBackend, str]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            if opened is not None:
                self._inherited.append(opened)  # to be closed by nobody: its sockets are the parent's, too
            opened = (os.getpid(), *open_backend(self._url, self._options))
            self._opened = opened  # two threads at once make two clients, one of which is dropped
        return opened

    def _join(self, name: str) -> str:
        return f"{self._open()[2]}/{name}"

    def _path(self, name: str) -> str:
        parts = name_parts(name)
        return self._guarded("open", "", lambda: self._join("/".join(parts)))

    def _at(self, name: str) -> str:
        return f"{self.place}/{name}" if name else self.place

    def _guarded(self, what: str, name: str, work: Callable[[], _T]) -> _T:
        """Do something, and name what failed; the text of an error may hold credentials."""
        try:
            return work()
        except (StorageError, SettingsError):
            raise
        except Exception as error:  # noqa: BLE001 - boundary: every client library has errors of its own
            kind: type[StorageError] = StorageError
            text = str(error) or type(error).__name__
            if isinstance(error, FileExistsError):
                kind, text = StorageExistsError, f"it exists ({text})"
            elif isinstance(error, FileNotFoundError) and what == "read":
                kind, text = StorageMissingError, f"it does not exist ({text})"
            shown = f"cannot {what} {self._at(name)}: {without_secrets(text, self._options)}"
            cause = None if holds_secrets(error, self._options) else error
            plain = plain_problem(error)
            if plain:
                raise StorageError(f"cannot use {self.place}: {plain} ({shown})") from cause
            raise kind(shown) from cause
