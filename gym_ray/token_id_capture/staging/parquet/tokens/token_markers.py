"""Where the lifecycle of a rollout stands: names that are created, never locks that are held.

``frozen/<rollout>.json`` is created once, by the first freeze; a writer publishes first and looks for it afterwards,
and a freeze creates it first and lists afterwards, so that a row is listed or its writer is told.
``frozen/dropped/<rollout>.json`` is the fence of a drop: created before the last look at the evidence, it tells every
writer that publishes later, and it says so for good once nothing was found to have changed.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Final

from gym_ray.errors import CaptureError, StorageExistsError, StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.segments.layout import FROZEN_PREFIX, frozen_name, rollout_of_frozen

__all__ = ["DropFence", "TokenMarkers"]

_DROPPED: Final = f"{FROZEN_PREFIX}dropped/"


@dataclass(frozen=True, slots=True)
class DropFence:
    """What a drop says of itself.

    Attributes:
        snapshot_id: The snapshot that it drops.
        version: The version of that snapshot.
        done: Whether the evidence was found to be that of the snapshot; then the rollout is retired.
        token: Tells the fences of two drops apart.
        at: When the rollout was retired, seconds since 1970.
    """

    snapshot_id: str
    version: int
    done: bool = False
    token: str = ""
    at: float | None = None


class TokenMarkers:
    """The markers of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    def is_frozen(self, rollout_id: str) -> bool:
        """Return whether a rollout was frozen; one request, never answered from a listing.

        Raises:
            StorageError: It cannot be found out.
        """
        return self._store.exists(frozen_name(rollout_id))

    def is_retired(self, rollout_id: str) -> bool:
        """Return whether a drop fences a rollout off from writers; asked of frozen rollouts only.

        Raises:
            StorageError: It cannot be found out.
        """
        return self._store.exists(_dropped_name(rollout_id))

    def freeze(self, rollout_id: str) -> str:
        """Return the id of the rollout's snapshot, which is frozen from now on.

        Raises:
            CaptureError: The store has no create-if-absent, so that nothing can be frozen; or the marker is no marker.
            StorageError: It could not be done.
        """
        if not self._store.exclusive:
            raise CaptureError(
                f"{self._store.place}: {rollout_id} cannot be frozen: this store cannot create a name only if it is "
                "absent; use one that can, or a directory"
            )
        snapshot_id = uuid.uuid4().hex
        try:
            self._store.create(frozen_name(rollout_id), _encode(rollout_id=rollout_id, snapshot_id=snapshot_id))
        except StorageExistsError:
            return self._snapshot_id(frozen_name(rollout_id), self._store.read(frozen_name(rollout_id)))
        return snapshot_id

    def snapshot_id(self, rollout_id: str) -> str | None:
        """Return the id of the rollout's snapshot, None if there is none.

        Raises:
            CaptureError: The marker is no marker.
            StorageError: It could not be read.
        """
        name = frozen_name(rollout_id)
        try:
            return self._snapshot_id(name, self._store.read(name))
        except StorageMissingError:
            return None

    def fence(self, rollout_id: str) -> DropFence | None:
        """Return the fence of the drop that was begun, None if there is none.

        Raises:
            CaptureError: It is no fence.
            StorageError: It could not be read.
        """
        name = _dropped_name(rollout_id)
        try:
            found = self._members(name, self._store.read(name))
        except StorageMissingError:
            return None
        try:
            at = found.get("at")
            return DropFence(
                str(found["snapshot_id"]),
                int(found["version"]),
                found["done"] is True,
                str(found.get("token", "")),
                None if at is None else float(at),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CaptureError(f"{self._store.place}/{name} is no note of a drop: {error!r}") from error

    def raise_fence(self, rollout_id: str, snapshot_id: str, version: int) -> DropFence:
        """Fence a rollout off from writers, and return the fence; one that another drop left is replaced.

        That of a drop that was done meanwhile stays, and is returned.

        Raises:
            CaptureError: Something else stands there.
            StorageError: It could not be done.
        """
        fence = DropFence(snapshot_id, version, token=secrets.token_hex(8))
        try:
            self._store.create(_dropped_name(rollout_id), _encoded_fence(rollout_id, fence))
        except StorageExistsError:
            found = self.fence(rollout_id)
            if found is not None and found.done:
                return found
            self._put_fence(rollout_id, fence)
        return fence

    def lower_fence(self, rollout_id: str, fence: DropFence) -> None:
        """Take a fence away again if it is still this one.

        Raises:
            CaptureError: Something else stands there.
            StorageError: It could not be done.
        """
        if self.fence(rollout_id) == fence:
            self._store.delete(_dropped_name(rollout_id))

    def retire(self, rollout_id: str, fence: DropFence) -> None:
        """Say for good that a rollout was handed over.

        Raises:
            StorageError: It could not be done.
        """
        done = DropFence(fence.snapshot_id, fence.version, done=True, token=fence.token, at=time.time())
        self._put_fence(rollout_id, done)

    def dropped(self) -> list[str]:
        """Return the rollouts that a listing shows a fence of, sorted.

        Raises:
            StorageError: It could not be done.
        """
        names = self._store.list(_DROPPED)
        return sorted(rollout_of_frozen(FROZEN_PREFIX + name.removeprefix(_DROPPED)) for name in names)

    def forget_dropped(self, rollout_id: str, fence: DropFence) -> None:
        """Remove the markers of a rollout that was retired, the fence last: until then, who asks finds it again.

        Raises:
            CaptureError: The fence is damaged.
            StorageError: It could not be done.
        """
        if self.snapshot_id(rollout_id) == fence.snapshot_id:
            self._store.delete(frozen_name(rollout_id))
        self.lower_fence(rollout_id, fence)

    def forget(self, rollout_id: str) -> None:
        """Remove the markers, so that the rollout is new.

        Raises:
            StorageError: It could not be done.
        """
        self._store.delete(_dropped_name(rollout_id))
        self._store.delete(frozen_name(rollout_id))

    def _put_fence(self, rollout_id: str, fence: DropFence) -> None:
        self._store.publish(_dropped_name(rollout_id), _encoded_fence(rollout_id, fence))

    def _snapshot_id(self, name: str, data: bytes) -> str:
        snapshot_id = self._members(name, data).get("snapshot_id")
        if not isinstance(snapshot_id, str) or not snapshot_id:
            raise CaptureError(f"{self._store.place}/{name} is no marker of a frozen rollout: it has no snapshot_id")
        return snapshot_id

    def _members(self, name: str, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except ValueError as error:
            raise CaptureError(f"{self._store.place}/{name} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise CaptureError(f"{self._store.place}/{name} is no JSON object")
        return found


def _dropped_name(rollout_id: str) -> str:
    return _DROPPED + frozen_name(rollout_id).removeprefix(FROZEN_PREFIX)


def _encoded_fence(rollout_id: str, fence: DropFence) -> bytes:
    return _encode(rollout_id=rollout_id, **asdict(fence))


def _encode(**members: object) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"
