"""A large object on its way into a store: small ones go out as one put, larger ones in parts."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from gym_ray.storage.objects.object_backend import ObjectBackend, ObjectUpload
from gym_ray.storage.objects.object_commit import holds, settle
from gym_ray.storage.streams import StreamedValue

__all__ = ["ObjectStream"]


class ObjectStream(StreamedValue):
    """An object of a :class:`gym_ray.storage.object_store.ObjectStore` that is being written.

    Holds one part in memory, and the upload those on their way. Nothing is sent before the first part is full.

    Args:
        backend: This process's client.
        path: Path of the object.
        is_exclusive: Whether the store can take a name exclusively; asked at the end.
        guarded: Calls something, and translates what it raises.
    """

    def __init__(
        self,
        backend: ObjectBackend,
        path: str,
        is_exclusive: Callable[[], bool],
        guarded: Callable[[str, Callable[[], None]], None],
    ) -> None:
        super().__init__()
        self._backend, self._path = backend, path
        self._is_exclusive, self._guarded = is_exclusive, guarded
        self._mark = secrets.token_hex(16)
        self._sha256 = hashlib.sha256()
        self._gathered = bytearray()
        self._upload: ObjectUpload | None = None

    def _take(self, view: memoryview) -> None:
        self._sha256.update(view)
        while len(view):
            room = self._backend.part_bytes - len(self._gathered)
            self._gathered += view[:room]
            view = view[room:]
            if len(self._gathered) == self._backend.part_bytes:
                self._guarded("write", self._send_part)

    def _send_part(self) -> None:
        if self._upload is None:
            self._upload = self._backend.begin(self._path, self._mark)
        part, self._gathered = bytes(self._gathered), bytearray()
        self._upload.part(part)

    def _publish(self) -> None:
        exclusive = self._is_exclusive()
        self._guarded("publish", lambda: settle(lambda: self._send(exclusive), self._is_there))

    def _send(self, exclusive: bool) -> None:
        if not exclusive and self._is_taken():
            raise FileExistsError(self._path)
        if self._upload is None:
            self._backend.put(self._path, bytes(self._gathered), exclusive=exclusive, mark=self._mark)
            return
        if self._gathered:
            self._send_part()
        self._upload.complete(exclusive=exclusive)
        self._upload = None

    def _is_taken(self) -> bool:
        try:
            self._backend.facts(self._path)
        except FileNotFoundError:
            return False
        return True

    def _is_there(self) -> bool:
        if self._backend.facts(self._path).mark == self._mark:
            return True
        return holds(self._backend, self._path, self._size, self._sha256.digest())

    def _discard(self) -> None:
        self._gathered = bytearray()
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.abort()
