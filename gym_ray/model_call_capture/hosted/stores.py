"""An object store that another process reaches for a model server: whole segments go there, each in one call.

A segment is made by the server itself, under its own name and number. So a call that is repeated, because its answer
was lost or the other process died, meets the server's own bytes and nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.model_call_capture.registry import own_place
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore
from gym_ray.storage.streams import StreamedValue

__all__ = ["HostedStores", "RemoteStore", "StoreChannel"]

_METHODS: Final = frozenset(
    {"create", "delete", "exists", "list", "publish", "read", "read_range", "read_tail", "size", "sweep_temporary"}
)


class StoreChannel(Protocol):
    """The way to a process that reaches an object store."""

    @property
    def place(self) -> str:
        """Where the captures are, for messages."""

    def call_store(self, own: bool, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method of the store of captures, or of the one beside it.

        Raises:
            StorageError: It failed there, or is not known to have been done.
            CaptureError: The other process cannot be reached.
        """


class HostedStores:
    """The other end: the two stores of a place, for whoever may not reach them.

    Args:
        location: URL of the captures.

    Raises:
        SettingsError: Nothing that is installed can open the URL.
        StorageError: The store cannot be written to.
    """

    def __init__(self, location: CaptureLocation) -> None:
        options = location.storage_options
        self._store = open_store(location.where, storage_options=options)
        self._own = open_store(own_place(location.where), storage_options=options)
        self.place = self._store.place
        _ = self._store.exclusive  # a real attempt to write

    def call_store(self, own: bool, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method of one of the stores.

        Raises:
            StorageError: It failed; or nobody may call it.
        """
        store = self._own if own else self._store
        if method == "exclusive":
            return store.exclusive
        if method not in _METHODS:
            raise StorageError(f"{self.place}: {method} cannot be called from elsewhere")
        work: Callable[..., Any] = getattr(store, method)
        return work(*arguments)

    def close(self) -> None:
        """Give up connections."""
        self._store.close()
        self._own.close()


class RemoteStore(SegmentStore):
    """Implements :class:`gym_ray.storage.store.SegmentStore` through a channel, but for values in parts.

    Args:
        channel: The way to the process that reaches the store.
        own: The store beside the captures is meant.
    """

    def __init__(self, channel: StoreChannel, *, own: bool) -> None:
        self._channel, self._is_own = channel, own
        self._place = own_place(channel.place) if own else channel.place
        self._exclusive: bool | None = None

    @property
    def place(self) -> str:
        """Place of the store behind it."""
        return self._place

    @property
    def exclusive(self) -> bool:
        """Whether names can be created exclusively; asked once."""
        if self._exclusive is None:
            self._exclusive = bool(self._call("exclusive"))
        return self._exclusive

    def publish(self, name: str, data: bytes) -> None:
        """Put or replace a value; see the contract."""
        self._call("publish", name, data)

    def create(self, name: str, data: bytes) -> None:
        """Put a value under a new name; see the contract. A repeated call may meet the value of the first."""
        self._call("create", name, data)

    def list(self, prefix: str = "") -> list[str]:
        """Return published names; see the contract."""
        names: list[str] = self._call("list", prefix)
        return names

    def read(self, name: str) -> bytes:
        """Return a value; see the contract."""
        return bytes(self._call("read", name))

    def delete(self, name: str) -> None:
        """Remove a value; see the contract."""
        self._call("delete", name)

    def sync_dir(self, name: str = "") -> None:
        """Do nothing: every put is durable at once."""

    def stream(self, name: str) -> StreamedValue:
        """Refuse: a value goes there in one call.

        Raises:
            StorageError: Always.
        """
        raise StorageError(f"{self._place}/{name}: cannot be sent in parts through another process")

    def size(self, name: str) -> int:
        """Return the size of a value in bytes; see the contract."""
        return int(self._call("size", name))

    def exists(self, name: str) -> bool:
        """Return whether a value has this name; see the contract."""
        return bool(self._call("exists", name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a value; see the contract."""
        return bytes(self._call("read_range", name, start, length))

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Return the end of a value and its size; see the contract."""
        data, size = self._call("read_tail", name, length)
        return bytes(data), int(size)

    def sweep_temporary(self, older_than_s: float) -> Sequence[str]:
        """Remove what killed writers left; see the contract."""
        swept: Sequence[str] = self._call("sweep_temporary", older_than_s)
        return swept

    def close(self) -> None:
        """Leave the channel to its owner."""

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._channel.call_store(self._is_own, method, arguments)
