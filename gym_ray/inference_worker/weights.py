"""Which weights a worker's engine serves, kept beside its calls: a restarted worker must not stamp calls with another.

A trainer says it once. What a worker forgot would be a wrong stamp on every later call, and nobody would see it.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym_ray.errors import DamagedRecordError, StorageMissingError
from gym_ray.storage.store import SegmentStore

__all__ = ["WeightVersion"]


class _Kept(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    weight_version: int = Field(ge=0)


class WeightVersion:
    """The version that calls are stamped with when they are admitted (C104); call it to read it.

    Args:
        version: The version to begin with, 0 or more.
        store: Where it is kept; None keeps it in memory alone.
        name: Name of the worker, which its restarted process has, too.
    """

    def __init__(self, version: int = 0, store: SegmentStore | None = None, name: str = "") -> None:
        self._version, self._store = version, store
        self._place = f"workers/{quote(name, safe='')}.json"
        self._saying = asyncio.Lock()

    @classmethod
    def kept_in(cls, store: SegmentStore, name: str) -> WeightVersion:
        """Return what a worker of this name was told last, 0 if it was told nothing.

        Raises:
            DamagedRecordError: What is kept there is no version.
            StorageError: It could not be read.
        """
        weights = cls(0, store, name)
        try:
            kept = store.read(weights._place)
        except StorageMissingError:
            return weights
        try:
            weights._version = _Kept.model_validate_json(kept).weight_version
        except ValidationError as error:
            place = f"{store.place}/{weights._place}"
            raise DamagedRecordError(f"{place} holds no weight version; remove it, and say it anew") from error
        return weights

    def __call__(self) -> int:
        """Return the version."""
        return self._version

    async def say(self, version: int) -> int:
        """Stamp the calls that are admitted from now on with another version, and return the one before.

        Raises:
            StorageError: It could not be kept; nothing changed.
        """
        async with self._saying:
            if self._store is not None:
                kept = _Kept(weight_version=version).model_dump_json().encode()
                await asyncio.to_thread(self._store.publish, self._place, kept)
            before, self._version = self._version, version
            return before
