"""Calls that nobody needs any more: one file a retirement, found by the rollout, believed only for the very call.

A retirement names rollout, call and digest. Whatever a key says, a row is retired only if it is that call with that
digest, so a wrong manifest removes nobody else's tokens. Rows stay in their segments until compaction drops them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from gym_ray.errors import StorageMissingError
from gym_ray.storage.store import SegmentStore
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import CallIdentity
from gym_ray.token_id_capture.staging.parquet.segments.layout import RETIRED_PREFIX, retired_name
from gym_ray.token_id_capture.staging.parquet.segments.schema import FORMAT, FORMAT_VERSION

__all__ = ["Retirements"]

_HASH_CHARACTERS: Final = 32
_DIRECTORY_CHARACTERS: Final = 3
_KEPT: Final = 1024
"""Retirements in memory."""

_Calls = frozenset[tuple[str, str]]


class Retirements:
    """The retirements of one store. May be used from several threads.

    Args:
        store: The store.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._files: OrderedDict[str, tuple[str, _Calls]] = OrderedDict()

    def retire(self, rollout_id: str, calls: Iterable[CallIdentity]) -> int:
        """Retire calls of one rollout, durably, and return how many were not retired before.

        Raises:
            StorageError: It could not be written; nothing is retired.
            ValueError: A call is of another rollout, or an earlier retirement is damaged.
        """
        wanted = dict.fromkeys(calls)
        strangers = [call.rollout_id for call in wanted if call.rollout_id != rollout_id]
        if strangers:
            raise ValueError(f"a retirement of rollout {rollout_id!r} names a call of rollout {strangers[0]!r}")
        known = self.of(rollout_id)
        new = [call for call in wanted if (call.model_call_id, call.digest) not in known]
        if new:
            name = retired_name(f"{_stem(rollout_id)}{secrets.token_hex(16)}")
            self._store.publish(name, _encoded(rollout_id, new))
        return len(new)

    def of(self, rollout_id: str) -> _Calls:
        """Return call id and digest of the retired calls of a rollout, as the store has them now.

        Raises:
            StorageError: They could not be read.
            ValueError: A retirement is damaged.
        """
        names = self._store.list(f"{RETIRED_PREFIX}{_stem(rollout_id)}")
        found = [self._read(name) for name in names]
        return frozenset().union(*(calls for rollout, calls in found if rollout == rollout_id))

    def all(self, max_parallel: int) -> set[CallIdentity]:
        """Return every retired call of the store.

        Args:
            max_parallel: Files that are read at once.

        Raises:
            StorageError: They could not be read.
            ValueError: A retirement is damaged.
        """
        names = self._store.list(RETIRED_PREFIX)
        with ThreadPoolExecutor(max_parallel, thread_name_prefix="retirements") as pool:
            found = list(pool.map(self._read, names))
        return {CallIdentity(rollout, call, digest) for rollout, calls in found for call, digest in calls}

    def _read(self, name: str) -> tuple[str, _Calls]:
        with self._lock:
            known = self._files.get(name)
        if known is not None:
            return known
        try:
            found = _decoded(self._store.read(name), f"{self._store.place}/{name}")
        except StorageMissingError:
            found = ("", frozenset())  # an operator removed it between the listing and now
        with self._lock:
            self._files[name] = found
            while len(self._files) > _KEPT:
                self._files.popitem(last=False)
        return found


def _stem(rollout_id: str) -> str:
    """Return what the names of a rollout's retirements begin with; thousands of directories keep each of them short."""
    hashed = hashlib.sha256(rollout_id.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{hashed[:_DIRECTORY_CHARACTERS]}/{hashed}-"


def _encoded(rollout_id: str, calls: Sequence[CallIdentity]) -> bytes:
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "rollout_id": rollout_id,
        "calls": [{"model_call_id": call.model_call_id, "digest": call.digest} for call in calls],
    }
    return json.dumps(document).encode() + b"\n"


def _decoded(data: bytes, place: str) -> tuple[str, _Calls]:
    try:
        return _calls(json.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{place} is damaged: {error}") from error


def _calls(document: Any) -> tuple[str, _Calls]:
    if document["format"] != FORMAT or document["version"] != FORMAT_VERSION:
        raise ValueError(f"it is no retirement in version {FORMAT_VERSION}")
    calls = frozenset((str(call["model_call_id"]), str(call["digest"])) for call in document["calls"])
    return str(document["rollout_id"]), calls
